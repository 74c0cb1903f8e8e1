"""HalfCheetah, Hopper and Walker2d as in D4RL's version 2: Gym's v2 rewards and ends on MuJoCo 2.0's physics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sageplan.errors import ConfigError
from sageplan.tasks.bodies import Bodies
from sageplan.tasks.drawing import draw_side
from sageplan.tasks.physics import compile_model, gymnasium_spec, load_mujoco
from sageplan.tasks.world import Float64Array, Outcome
from sageplan.types import BoolArray


@dataclass(frozen=True)
class Kind:
    """What tells one of the three from another.

    file         Gymnasium's model
    frame_skip   simulation steps under one action
    alive        reward of a step for not having ended before it
    effort       cost of an action's squared norm
    speed_limit  velocities in observations are clipped to ± this
    """

    file: str
    frame_skip: int
    alive: float
    effort: float
    speed_limit: float


KINDS = {
    "halfcheetah": Kind("half_cheetah.xml", 5, alive=0.0, effort=0.1, speed_limit=np.inf),
    "hopper": Kind("hopper.xml", 4, alive=1.0, effort=1e-3, speed_limit=10.0),
    "walker2d": Kind("walker2d.xml", 4, alive=1.0, effort=1e-3, speed_limit=10.0),
}


class Locomotion:
    """A batch of runners in the x–z plane: position (x, z, pitch, joints), reward for speed along x."""

    def __init__(self, world: str, num_envs: int, legacy: bool = True) -> None:
        self.name, self.kind, self.num_envs = world, _kind(world), num_envs
        self._bodies = Bodies(load_model(world, legacy=legacy), self.kind.frame_skip, num_envs)

    def reset(self, index: int, rng: np.random.Generator) -> None:
        model = self._bodies.simulator.model
        if self.name == "halfcheetah":
            qpos = model.qpos0 + rng.uniform(-0.1, 0.1, model.nq)
            qvel = 0.1 * rng.standard_normal(model.nv)
        else:
            qpos = model.qpos0 + rng.uniform(-0.005, 0.005, model.nq)
            qvel = rng.uniform(-0.005, 0.005, model.nv)
        self._bodies.states[index] = np.concatenate([qpos, qvel])

    def step(self, actions: Float64Array, live: BoolArray) -> Outcome:
        actions = np.clip(actions, -1, 1)
        x = self._bodies.qpos[:, 0].copy()
        gave_up = self._bodies.step(actions, live)
        qpos, qvel = self._bodies.qpos, self._bodies.qvel
        rewards = reward(self.kind, (qpos[:, 0] - x) / self._bodies.simulator.step_time, actions)
        # Gym raised an exception where MuJoCo gave up; here it ends that one episode.
        ended = fallen(self.name, qpos, qvel) | gave_up
        return Outcome(np.where(live & ~gave_up, rewards, 0.0), ended & live)

    def observe(self) -> Float64Array:
        return observation(self.kind, self._bodies.qpos, self._bodies.qvel)

    def info(self, index: int) -> dict[str, Any]:
        return {"qpos": self._bodies.qpos[index].copy(), "qvel": self._bodies.qvel[index].copy()}

    def render(self, index: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        return draw_side(self._bodies.simulator.model, self._bodies.qpos[index], width, height)

    def close(self) -> None:
        self._bodies.simulator.close()


def load_model(world: str, *, legacy: bool) -> Any:
    mujoco = load_mujoco(world)
    return compile_model(mujoco, gymnasium_spec(mujoco, _kind(world).file, world), legacy=legacy)


def reward(kind: Kind, speed: Float64Array, actions: Float64Array) -> Float64Array:
    """[B] of steps at mean speeds [B] under clipped actions [B, A]."""
    result: Float64Array = speed + kind.alive - kind.effort * np.square(actions).sum(1)
    return result


def observation(kind: Kind, qpos: Float64Array, qvel: Float64Array) -> Float64Array:
    """[B, S] all but x of positions [B, nq] and velocities [B, nv]."""
    limit = kind.speed_limit
    return np.concatenate([qpos[:, 1:], np.clip(qvel, -limit, limit) if limit < np.inf else qvel], axis=1)


def fallen(world: str, qpos: Float64Array, qvel: Float64Array) -> BoolArray:
    """[B] whether the episode ends; put so that NaN ends it, too."""
    height, pitch = qpos[:, 1], qpos[:, 2]
    if world == "halfcheetah":
        return np.zeros(len(qpos), np.bool_)
    if world == "walker2d":
        well = (height > 0.8) & (height < 2.0) & (np.abs(pitch) < 1.0)
    else:
        calm = (np.abs(qpos[:, 2:]) < 100).all(1) & (np.abs(qvel) < 100).all(1)
        well = calm & (height > 0.7) & (np.abs(pitch) < 0.2)
    return np.asarray(~well)


def _kind(world: str) -> Kind:
    if world not in KINDS:
        raise ConfigError(f"there is no runner '{world}'; choose one of {', '.join(KINDS)}")
    return KINDS[world]
