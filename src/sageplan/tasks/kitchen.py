"""Kitchen: D4RL's Franka arm at kitchen fittings, on gymnasium-robotics' model of them.

The 60 numbers of an observation are the positions of the arm's 9 joints and of 21 coordinates of the objects, both
with sensor noise, then the 30 that are wanted of them (0 where the task wants nothing).
"""

from __future__ import annotations

import functools
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sageplan.errors import ConfigError, MissingExtraError
from sageplan.tasks.physics import load_mujoco
from sageplan.tasks.raycast import Camera, picture
from sageplan.tasks.world import Float64Array, Outcome
from sageplan.types import BoolArray

JOINTS, POSITIONS = 9, 30
FRAME_SKIP = 40
CLOSE = 0.3  # an element is done when nearer than this to its goal, over all of its coordinates
MAX_SPEED = 2.0  # of a joint under action 1; rad/s, m/s for the fingers


@dataclass(frozen=True)
class Element:
    """Something to move: its coordinates among the 30 positions, and what they should become."""

    where: slice
    goal: tuple[float, ...]


ELEMENTS: dict[str, Element] = {
    "bottom burner": Element(slice(11, 13), (-0.88, -0.01)),
    "top burner": Element(slice(15, 17), (-0.92, -0.01)),
    "light switch": Element(slice(17, 19), (-0.69, -0.05)),
    "slide cabinet": Element(slice(19, 20), (0.37,)),
    "hinge cabinet": Element(slice(20, 22), (0.0, 1.45)),
    "microwave": Element(slice(22, 23), (-0.75,)),
    "kettle": Element(slice(23, 30), (-0.23, 0.75, 1.62, 0.99, 0.0, 0.0, -0.06)),
}
VARIANTS: dict[str, tuple[str, ...]] = {
    "partial": ("microwave", "kettle", "light switch", "slide cabinet"),
    "mixed": ("microwave", "kettle", "bottom burner", "light switch"),
}

# D4RL's start is one noisy observation of the settled scene; the kettle's quaternion is not of length 1.
START = np.array([
    0.148388023, -1.76848573, 1.84390296, -2.4768576, 0.260252026, 0.712533105, 1.59515394, 0.0479267505, 0.0371350919,
    -2.6627985e-4, -5.18043486e-5, 3.1287722e-5, -4.51199853e-5, -3.90842156e-6, -4.22629655e-5, 6.28065475e-5,
    4.04984708e-5, 4.62730939e-4, -2.26906415e-4, -4.65501369e-4, -6.44129196e-3, -1.77048263e-3, 1.08009684e-3,
    -0.26939744, 0.350383255, 1.61944683, 1.00618764, 4.0639512e-3, -6.62095997e-3, -2.68278933e-4,
])  # fmt: skip

# Bounds of the positions that the arm's joints may be sent to.
LOWEST = np.array([-2.9, -1.8, -2.9, -3.1, -2.9, 0.0, -2.9, 0.0, 0.0])
HIGHEST = np.array([2.9, 1.8, 2.9, 0.0, 2.9, 3.8, 2.9, 0.04, 0.04])

# The noise is uniform within ±NOISE: a tenth of the amplitude that D4RL states for each coordinate. The amplitudes
# were made for other objects, which is why a hinge has more of it than a burner.
NOISE = 0.1 * np.repeat([0.1, 0.005, 0.0005, 0.005, 0.1, 0.005, 0.1, 0.005], [9, 2, 6, 3, 3, 3, 3, 1])

_CAMERA = Camera(position=(-0.82, -1.19, 3.26), target=(-0.2, 0.5, 2.0))


class Kitchen:
    """A batch of kitchens; implements `sageplan.tasks.world.World`.

    Every kitchen has its own MjData, because MuJoCo's solver goes on from the forces of the step before and so
    these belong to its state. A step of 40 substeps takes about a millisecond, all of it outside Python's lock.
    """

    def __init__(self, variant: str, num_envs: int, *, legacy: bool = True, threads: int | None = None) -> None:
        """`legacy` restores the contact margins of D4RL's MuJoCo; threads: as many as there are processors."""
        if variant not in VARIANTS:
            raise ConfigError(f"there is no kitchen task '{variant}'; choose one of {', '.join(VARIANTS)}")
        self.num_envs = num_envs
        self.elements = VARIANTS[variant]
        self.goal = np.zeros(POSITIONS)
        for name in self.elements:
            self.goal[ELEMENTS[name].where] = ELEMENTS[name].goal
        self._mujoco = load_mujoco("Kitchen")
        self.model = _kitchen_model(legacy)
        self._data = [self._mujoco.MjData(self.model) for _ in range(num_envs)]
        self._rngs = [np.random.default_rng(0) for _ in range(num_envs)]
        self._dt = FRAME_SKIP * float(self.model.opt.timestep)
        self._readings = np.zeros((num_envs, POSITIONS))  # noisy positions, as last observed
        self._open = np.ones((num_envs, len(self.elements)), np.bool_)  # still to be completed
        workers = min(threads or os.cpu_count() or 1, num_envs)
        self._pool = ThreadPoolExecutor(workers, "kitchen") if workers > 1 else None
        self._workers = workers

    def reset(self, index: int, rng: np.random.Generator) -> None:
        self._rngs[index] = rng
        self._open[index] = True
        self._mujoco.mj_resetData(self.model, self._data[index])
        self.set_positions(index, START)

    def set_positions(self, index: int, positions: npt.NDArray[np.floating]) -> None:
        """Put kitchen `index` at rest at positions [30] and look at it anew; this completes no element."""
        data = self._data[index]
        data.qpos[:] = positions
        data.qvel[:] = 0
        self._mujoco.mj_forward(self.model, data)
        self._look(index)

    def step(self, actions: Float64Array, live: BoolArray) -> Outcome:
        # The speed is laid onto the last noisy reading, as in D4RL: noise of the arm feeds back into its motion.
        aims = self._readings[:, :JOINTS] + self._dt * MAX_SPEED * np.clip(actions, -1, 1)
        aims = np.clip(aims, LOWEST, HIGHEST)
        moving = np.flatnonzero(live)
        if self._pool is not None and len(moving) > 1:
            shares = [moving[first :: self._workers] for first in range(self._workers)]
            list(self._pool.map(lambda share: self._advance(share, aims), shares))
        else:
            self._advance(moving, aims)
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, np.bool_)
        for index in moving:
            self._look(int(index))
        # D4RL judges by what it observes, so noise can complete an element a little early
        completed = self._open & live[:, None] & (self._distances() < CLOSE)
        self._open &= ~completed
        rewards[moving] = completed[moving].sum(1)
        terminated[moving] = ~self._open[moving].any(1)
        return Outcome(rewards, terminated)

    def observe(self) -> Float64Array:
        return np.concatenate([self._readings, np.broadcast_to(self.goal, self._readings.shape)], axis=1)

    def info(self, index: int) -> dict[str, Any]:
        """qpos [30] and qvel [29] without noise, goal [30], and the names of the elements completed so far."""
        data = self._data[index]
        done = [name for name, still in zip(self.elements, self._open[index], strict=True) if not still]
        return {"qpos": data.qpos.copy(), "qvel": data.qvel.copy(), "goal": self.goal.copy(), "completed": done}

    def render(self, index: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        data = self._mujoco.MjData(self.model)  # a copy: a look may not change what happens
        data.qpos[:] = self._data[index].qpos
        self._mujoco.mj_kinematics(self.model, data)
        return picture(self._mujoco, self.model, data, _CAMERA, width, height)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _advance(self, indices: npt.NDArray[np.intp], aims: Float64Array) -> None:
        for index in indices:
            self._data[index].ctrl[:] = aims[index]
            self._mujoco.mj_step(self.model, self._data[index], FRAME_SKIP)

    def _look(self, index: int) -> None:
        noise = NOISE * self._rngs[index].uniform(-1, 1, POSITIONS)
        self._readings[index] = self._data[index].qpos + noise

    def _distances(self) -> Float64Array:
        """[B, T] of every element from its goal."""
        off = self._readings - self.goal
        return np.stack([np.linalg.norm(off[:, ELEMENTS[name].where], axis=1) for name in self.elements], axis=1)


@functools.cache
def _kitchen_model(legacy: bool) -> Any:
    """The compiled model, shared by all who simulate it."""
    mujoco = load_mujoco("Kitchen")
    # found without importing it, which would register dozens of environments
    package = importlib.util.find_spec("gymnasium_robotics")
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError("gymnasium-robotics", "tasks", "Kitchen")
    folder = Path(package.submodule_search_locations[0], "envs", "assets", "kitchen_franka", "kitchen_assets")
    spec = mujoco.MjSpec.from_file(str(folder / "kitchen_env_model.xml"))
    if legacy and tuple(int(part) for part in mujoco.__version__.split(".")[:2]) >= (3, 5):
        _restore_margins(spec)
    model = spec.compile()
    if model.nq != POSITIONS or model.nu != JOINTS:
        raise ConfigError(
            f"the kitchen of the installed gymnasium-robotics has {model.nq} positions and {model.nu} motors, expected "
            f"{POSITIONS} and {JOINTS}: install another version"
        )
    return model


def _restore_margins(spec: Any) -> None:
    """Two geoms touch from the larger of their margins on, as until MuJoCo 3.4; later versions add them.

    With the sum, the kettle rests 1 mm higher than where D4RL recorded it. A geom here has one and the same margin
    or none. Half of it for all makes every sum right but those of two that had none (the arm's links, the floor
    and the arm's stand): these are listed as pairs, whose margin is their own.
    """
    model = spec.compile()
    geoms = [geom for geom in spec.geoms if geom.contype or geom.conaffinity]
    bare = [geom for geom in geoms if geom.margin == 0]
    for number, geom in enumerate(bare):
        geom.name = geom.name or f"bare {number}"
    for geom in geoms:
        geom.margin = model.geom_margin.max() / 2
    for number, one in enumerate(bare):
        for other in bare[number + 1 :]:
            if _may_touch(model, *model.geom_bodyid[[one.id, other.id]]):
                spec.add_pair(geomname1=one.name, geomname2=other.name, margin=0.0)


def _may_touch(model: Any, one: int, other: int) -> bool:
    """MuJoCo's own rule: not if fixed to each other; nor if one carries the other, unless that one stands still."""
    rigid = model.body_weldid[[one, other]]
    bases = model.body_weldid[model.body_parentid[rigid]]
    if rigid[0] == rigid[1]:
        return False
    return bool((rigid == 0).any() or (rigid[0] != bases[1] and rigid[1] != bases[0]))
