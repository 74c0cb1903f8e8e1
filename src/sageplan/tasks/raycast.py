"""Pictures of any MuJoCo model without OpenGL: one ray per pixel, cast by MuJoCo itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

_SKY = np.array([222.0, 228.0, 235.0])
_TOWARDS_LIGHT = np.array([-0.35, -0.5, 0.79])
_AMBIENT = 0.45


@dataclass(frozen=True)
class Camera:
    """Where a picture is taken from: `position` and the point `target` in its middle, in world coordinates.

    view  vertical angle of view in degrees
    """

    position: tuple[float, float, float]
    target: tuple[float, float, float]
    view: float = 45.0

    def rays(self, width: int, height: int) -> Float64Array:
        """[height, width, 3] unit vectors through the middles of the pixels, top row first."""
        forward = np.subtract(self.target, self.position, dtype=np.float64)
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, [0, 0, 1])
        right /= np.linalg.norm(right)
        up = np.cross(right, forward)
        pixel = 2 * np.tan(np.radians(self.view) / 2) / height
        x = (np.arange(width) - (width - 1) / 2) * pixel
        y = ((height - 1) / 2 - np.arange(height)) * pixel
        rays: Float64Array = forward + x[:, None] * right + y[:, None, None] * up
        rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
        return rays


def picture(
    mujoco: Any, model: Any, data: Any, camera: Camera, width: int, height: int, groups: tuple[int, ...] = (0, 1, 2)
) -> npt.NDArray[np.uint8]:
    """[height, width, 3] of the geoms in `groups`; the poses in `data` must be up to date (`mj_kinematics`).

    Surfaces are shaded by their slope, which is measured from the distances of neighbouring pixels.
    """
    rays = camera.rays(width, height)
    geoms, distances = np.empty(height * width, np.int32), np.empty(height * width)
    arguments: dict[str, Any] = {
        "m": model,
        "d": data,
        "pnt": np.array(camera.position, np.float64),
        "vec": rays.ravel(),
        "geomgroup": np.isin(np.arange(6), groups).astype(np.uint8),
        "flg_static": True,
        "bodyexclude": -1,
        "geomid": geoms,
        "dist": distances,
        "nray": height * width,
        "cutoff": float(mujoco.mjMAXVAL),
    }
    if "normal:" in (mujoco.mj_multiRay.__doc__ or ""):  # an argument of later versions, without a default
        arguments["normal"] = None
    mujoco.mj_multiRay(**arguments)
    hit = (geoms >= 0).reshape(height, width)
    points = np.array(camera.position) + rays * np.where(hit, distances.reshape(height, width), 1e3)[..., None]
    light = _AMBIENT + (1 - _AMBIENT) * np.maximum(_normals(points, rays) @ _TOWARDS_LIGHT, 0)
    colours = 255 * geom_colours(model)[np.maximum(geoms, 0)].reshape(height, width, 3)
    shaded = np.where(hit[..., None], colours * light[..., None], _SKY)
    image: npt.NDArray[np.uint8] = np.clip(np.rint(shaded), 0, 255).astype(np.uint8)
    return image


def geom_colours(model: Any) -> Float64Array:
    """[G, 3] between 0 and 1: a geom's own colour, or its material's where it has one."""
    colours: Float64Array = model.geom_rgba[:, :3].astype(np.float64)
    with_material = model.geom_matid >= 0
    colours[with_material] = model.mat_rgba[model.geom_matid[with_material], :3]
    return np.clip(colours, 0, 1)


def _normals(points: Float64Array, rays: Float64Array) -> Float64Array:
    """[H, W, 3] unit normals that face the camera, of surface points [H, W, 3].

    Of the two neighbours on either side the nearer is taken, so that an edge takes nothing from what is behind it.
    """
    tangents = []
    for axis in (0, 1):
        step = np.diff(points, axis=axis)
        ahead = np.concatenate([step, np.take(step, [-1], axis)], axis)
        behind = np.concatenate([np.take(step, [0], axis), step], axis)
        nearer = np.linalg.norm(ahead, axis=-1) < np.linalg.norm(behind, axis=-1)
        tangents.append(np.where(nearer[..., None], ahead, behind))
    normals: Float64Array = np.cross(tangents[0], tangents[1])
    normals /= np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-300)
    return np.where((normals * rays).sum(-1, keepdims=True) > 0, -normals, normals)
