"""One task as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from sageplan.errors import ConfigError, DataError
from sageplan.tasks.catalogue import Task, get
from sageplan.tasks.episodes import Episodes
from sageplan.tasks.world import Float64Array
from sageplan.types import FloatArray

RENDER_MODES = ["rgb_array"]
# Steps per second of simulated time, by world or else by domain.
_STEPS_PER_SECOND = {"halfcheetah": 20, "hopper": 125, "walker2d": 125, "antmaze": 10, "maze2d": 100, "kitchen": 12}


class D4RLEnv(gymnasium.Env[Float64Array, FloatArray]):
    """D4RL's observations [S], actions [A] in [−1, 1], rewards and ends; truncated at the task's step limit.

    Episode k after `reset(seed=s)` is the same as episode k of any vectorised environment with seed s.
    """

    metadata: dict[str, Any] = {"render_modes": RENDER_MODES}  # noqa: RUF012 - as Gymnasium looks it up

    def __init__(
        self,
        task: str | Task,
        render_mode: str | None = None,
        *,
        legacy: bool = True,
        width: int = 480,
        height: int = 480,
    ) -> None:
        self.task = get(task) if isinstance(task, str) else task
        self.metadata = metadata(self.task)
        self.render_mode = checked_render_mode(render_mode)
        self.observation_space, self.action_space = spaces(self.task)
        self._size = width, height
        self._episodes = Episodes(self.task, 1, legacy=legacy)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float64Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self._episodes.begun:
            assert self.np_random_seed is not None  # the property draws one
            self._episodes.seed(0, self.np_random_seed)
        self._np_random = self._episodes.begin(0)
        return self._episodes.world.observe()[0], self._info()

    def step(self, action: npt.ArrayLike) -> tuple[Float64Array, float, bool, bool, dict[str, Any]]:
        episodes = self._episodes
        if not episodes.begun or episodes.terminated[0] or episodes.truncated[0]:
            raise gymnasium.error.ResetNeeded(f"{self.task.name}: there is no episode to step in; call reset() first")
        array = np.asarray(action)
        if array.shape != (self.task.action_dim,):
            expected = (self.task.action_dim,)
            raise DataError(f"{self.task.name}: the action has shape {array.shape}, expected {expected}")
        reward = episodes.step(episodes.check(array[None]))
        observation = episodes.world.observe()[0]
        return observation, float(reward[0]), bool(episodes.terminated[0]), bool(episodes.truncated[0]), self._info()

    def render(self) -> npt.NDArray[np.uint8]:
        """[height, width, 3]"""
        if self.render_mode is None:
            raise ConfigError(f"{self.task.name} was made without render_mode='rgb_array'")
        if not self._episodes.begun:
            raise gymnasium.error.ResetNeeded(f"{self.task.name}: there is nothing to render yet; call reset() first")
        return self._episodes.world.render(0, *self._size)

    def close(self) -> None:
        self._episodes.world.close()

    def _info(self) -> dict[str, Any]:
        metrics = {name: float(values[0]) for name, values in self._episodes.metrics().items()}
        return self._episodes.world.info(0) | metrics


def spaces(task: Task) -> tuple[gymnasium.Space[Float64Array], gymnasium.Space[FloatArray]]:
    """Of one observation and one action."""
    return (
        gymnasium.spaces.Box(-np.inf, np.inf, (task.state_dim,), np.float64),
        gymnasium.spaces.Box(-1.0, 1.0, (task.action_dim,), np.float32),
    )


def metadata(task: Task) -> dict[str, Any]:
    pace = _STEPS_PER_SECOND.get(task.world) or _STEPS_PER_SECOND[task.domain]
    return {"render_modes": RENDER_MODES, "render_fps": pace}


def checked_render_mode(mode: str | None) -> str | None:
    if mode is not None and mode not in RENDER_MODES:
        raise ConfigError(f"there is no render_mode '{mode}'; choose 'rgb_array', or None for no pictures")
    return mode
