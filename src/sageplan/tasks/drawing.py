"""Pictures of tasks in NumPy alone, so that they come out on any machine, without a display or a graphics driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sageplan.errors import ConfigError
from sageplan.tasks.physics import load_mujoco
from sageplan.tasks.world import Float64Array
from sageplan.types import BoolArray

Picture = npt.NDArray[np.uint8]

PAPER, WALL, GROUND, GROUND_DARK = (246, 244, 240), (74, 82, 96), (196, 205, 196), (172, 184, 174)
GOAL, GOAL_EDGE, BODY = (255, 205, 120), (224, 142, 30), (52, 116, 190)

_SIDE_HEIGHT, _SIDE_CENTRE = 2.6, 0.85  # metres shown, and the height in the middle of the picture
_OUTLINE = 1.5  # pixels


class Capsule(NamedTuple):
    """All points within a radius of the line from start to end; a disc or a ball where these are one.

    start, end  [2] or [3]
    colour      red, green, blue from 0 to 255
    """

    start: Float64Array
    end: Float64Array
    radius: float
    colour: tuple[int, int, int]


class Canvas:
    """A picture of a part of the plane, painted over from back to front; `up` tells which way v points in it."""

    def __init__(self, width: int, height: int, centre: Sequence[float], scale: float, *, up: bool) -> None:
        if width < 1 or height < 1:
            raise ConfigError(f"a picture of {width} × {height} pixels cannot be drawn; both must be at least 1")
        self._pixels = np.empty((height, width, 3))
        self._pixels[:] = PAPER
        across, down = (np.arange(size, dtype=np.float64) + 0.5 - size / 2 for size in (width, height))
        self._axis_u = across / scale + centre[0]
        self._axis_v = (-down if up else down) / scale + centre[1]
        self._scale = scale

    @property
    def picture(self) -> Picture:
        """[height, width, 3]"""
        return np.rint(self._pixels).astype(np.uint8)

    def box(self, low: Sequence[float], high: Sequence[float], colour: tuple[int, int, int]) -> None:
        rows, columns = self._part(low, high)
        inside_u = np.minimum(self._axis_u[columns] - low[0], high[0] - self._axis_u[columns])
        inside_v = np.minimum(self._axis_v[rows] - low[1], high[1] - self._axis_v[rows])
        cover = np.clip(inside_v * self._scale + 0.5, 0, 1)[:, None] * np.clip(inside_u * self._scale + 0.5, 0, 1)
        self._paint((rows, columns), cover, colour)

    def capsule(self, shape: Capsule, edge: tuple[int, int, int] | None = None) -> None:
        """With an outline, by default a darker one of its own colour."""
        start, end = shape.start, shape.end
        low, high = np.minimum(start, end) - shape.radius, np.maximum(start, end) + shape.radius
        rows, columns = self._part(low, high)
        u, v = self._axis_u[columns] - start[0], self._axis_v[rows, None] - start[1]
        along_u, along_v = end[0] - start[0], end[1] - start[1]
        share = np.clip((u * along_u + v * along_v) / max(along_u**2 + along_v**2, 1e-12), 0, 1)
        distance = np.hypot(u - share * along_u, v - share * along_v)
        depth = (shape.radius - distance) * self._scale  # pixels inside
        darker = (int(0.6 * shape.colour[0]), int(0.6 * shape.colour[1]), int(0.6 * shape.colour[2]))
        self._paint((rows, columns), np.clip(depth + 0.5, 0, 1), edge or darker)
        self._paint((rows, columns), np.clip(depth + 0.5 - _OUTLINE, 0, 1), shape.colour)

    def _part(self, low: Sequence[float] | Float64Array, high: Sequence[float] | Float64Array) -> tuple[slice, slice]:
        """Rows and columns of a rectangle, with room for its soft edge."""
        edge = 1 / self._scale
        return (
            _between(self._axis_v, low[1] - edge, high[1] + edge),
            _between(self._axis_u, low[0] - edge, high[0] + edge),
        )

    def _paint(self, where: tuple[slice, slice], cover: Float64Array, colour: tuple[int, int, int]) -> None:
        part = self._pixels[where]
        part += cover[..., None] * (np.array(colour) - part)


def draw_side(model: Any, qpos: Float64Array, width: int, height: int) -> Picture:
    """[height, width, 3] a runner in the x–z plane, the camera moving along; the ground changes colour every metre."""
    scale = height / _SIDE_HEIGHT
    centre = float(qpos[0])
    canvas = Canvas(width, height, (centre, _SIDE_CENTRE), scale, up=True)
    reach = width / scale / 2 + 1
    for metre in range(int(np.floor(centre - reach)), int(np.ceil(centre + reach))):
        canvas.box((metre, -_SIDE_HEIGHT), (metre + 1, 0), GROUND if metre % 2 else GROUND_DARK)
    for shape in moving_capsules(model, qpos):
        canvas.capsule(shape._replace(start=shape.start[[0, 2]], end=shape.end[[0, 2]]))
    return canvas.picture


def draw_maze(
    walls: BoolArray, goal: Float64Array, goal_radius: float, shapes: Sequence[Capsule], width: int, height: int
) -> Picture:
    """[height, width, 3] a maze from above, the way its map is printed: row 0 at the top, column 0 on the left.

    Everything is measured in cells from the top left corner, across before down: goal [2], radius and shapes.
    """
    rows, columns = walls.shape
    scale = min(width / columns, height / rows)
    canvas = Canvas(width, height, (columns / 2, rows / 2), scale, up=False)
    overlap = 0.5 / scale  # or hair lines would show between walls
    for row, column in np.argwhere(walls):
        canvas.box((column - overlap, row - overlap), (column + 1 + overlap, row + 1 + overlap), WALL)
    canvas.capsule(Capsule(goal, goal, goal_radius, GOAL), GOAL_EDGE)
    for shape in shapes:
        canvas.capsule(shape)
    return canvas.picture


def moving_capsules(model: Any, qpos: Float64Array) -> list[Capsule]:
    """The capsules and spheres of a model's bodies, in three dimensions, in a pose qpos [nq]."""
    mujoco = load_mujoco("rendering")
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    shapes = []
    for geom in np.flatnonzero(model.geom_bodyid > 0):
        half = 0.0 if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_SPHERE else float(model.geom_size[geom, 1])
        axis = half * data.geom_xmat[geom].reshape(3, 3)[:, 2]
        red, green, blue = (int(255 * share) for share in model.geom_rgba[geom, :3])
        centre, radius = data.geom_xpos[geom], float(model.geom_size[geom, 0])
        shapes.append(Capsule(centre - axis, centre + axis, radius, (red, green, blue)))
    return shapes


def _between(axis: Float64Array, low: float, high: float) -> slice:
    inside = np.flatnonzero((axis >= low) & (axis <= high))
    return slice(int(inside[0]), int(inside[-1]) + 1) if len(inside) else slice(0, 0)
