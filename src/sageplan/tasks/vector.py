"""Many episodes of one task at a time, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from sageplan.errors import ConfigError, DataError
from sageplan.tasks.catalogue import Task, get
from sageplan.tasks.env import checked_render_mode, metadata, spaces
from sageplan.tasks.episodes import Episodes
from sageplan.tasks.world import Float64Array
from sageplan.types import BoolArray, FloatArray

Seeds = int | Sequence[int | None] | npt.NDArray[np.integer]
Step = tuple[Float64Array, Float64Array, BoolArray, BoolArray, dict[str, Any]]


def make_vector(
    task: str | Task,
    num_envs: int,
    seeds: Seeds | None = None,
    *,
    render_mode: str | None = None,
    legacy: bool = True,
    max_episode_steps: int | None = None,
) -> D4RLVectorEnv:
    """B environments of a task that are stepped together.

    Environment i has seeds[i], or seeds + i where one number is given, as in Gymnasium. Its episode k depends on its
    seed, k and the actions in it alone: neither on what else is in the batch nor on when it begins.
    """
    task = get(task) if isinstance(task, str) else task
    if max_episode_steps is not None:
        task = replace(task, step_limit=max_episode_steps)
    return D4RLVectorEnv(task, num_envs, seeds, render_mode=render_mode, legacy=legacy)


class D4RLVectorEnv(VectorEnv[Float64Array, FloatArray, npt.NDArray[Any]]):
    """Nothing resets by itself: what has ended stays as it is, done and with reward 0, until it is reset.

    `reset(options={"reset_mask": mask})` resets those in a mask [B] alone.
    """

    def __init__(
        self,
        task: Task,
        num_envs: int,
        seeds: Seeds | None = None,
        *,
        render_mode: str | None = None,
        legacy: bool = True,
        width: int = 480,
        height: int = 480,
    ) -> None:
        self.task, self.num_envs = task, num_envs
        self.metadata = metadata(task) | {"autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = checked_render_mode(render_mode)
        self.single_observation_space, self.single_action_space = spaces(task)
        self._size = width, height
        self._episodes = Episodes(task, num_envs, legacy=legacy)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seed(np.random.SeedSequence().generate_state(num_envs) if seeds is None else seeds, range(num_envs))

    def reset(
        self, *, seed: Seeds | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float64Array, dict[str, Any]]:
        """Observations [B, S]. What is reset begins its next episode, or the first one of a new seed."""
        chosen = self._chosen(options)
        if seed is not None:
            self._seed(seed, chosen)
        for index in chosen:
            self._episodes.begin(index)
        infos: dict[str, Any] = {}
        for index in chosen:
            infos = self._add_info(infos, self._episodes.world.info(index), index)
        return self._episodes.world.observe(), infos | self._metrics()

    def step(self, actions: npt.ArrayLike) -> Step:
        """Observations [B, S], rewards, terminated and truncated [B]; the info of what ends now is in the last."""
        episodes = self._episodes
        if not episodes.begun:
            raise gymnasium.error.ResetNeeded(f"{self.task.name}: there is no episode to step in; call reset() first")
        done = episodes.terminated | episodes.truncated
        rewards = episodes.step(episodes.check(actions))
        infos = self._metrics()
        ended = (episodes.terminated | episodes.truncated) & ~done
        if ended.any():
            for index in np.flatnonzero(ended):
                infos = self._add_info(infos, episodes.world.info(int(index)), int(index))
        return episodes.world.observe(), rewards, episodes.terminated.copy(), episodes.truncated.copy(), infos

    def info(self, index: int) -> dict[str, Any]:
        """Goal, position and velocity of one environment, which are not part of every step."""
        return self._episodes.world.info(index)

    def render(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """One picture [height, width, 3] per environment."""
        if self.render_mode is None:
            raise ConfigError(f"{self.task.name} was made without render_mode='rgb_array'")
        return tuple(self._episodes.world.render(index, *self._size) for index in range(self.num_envs))

    def close_extras(self, **_: Any) -> None:
        if hasattr(self, "_episodes"):  # some versions of Gymnasium also close what could not be made
            self._episodes.world.close()

    def _seed(self, seeds: Seeds, chosen: Sequence[int]) -> None:
        if isinstance(seeds, (int, np.integer)):
            seeds = range(int(seeds), int(seeds) + self.num_envs)
        if len(seeds) != self.num_envs:
            raise ConfigError(f"{self.task.name}: {len(seeds)} seeds were given for {self.num_envs} environments")
        for index in chosen:
            if (seed := seeds[index]) is not None:  # Gymnasium's way to say: go on with the one there is
                self._episodes.seed(index, int(seed))

    def _chosen(self, options: dict[str, Any] | None) -> Sequence[int]:
        if not options or "reset_mask" not in options:
            return range(self.num_envs)
        mask = np.asarray(options["reset_mask"])
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise DataError(
                f"{self.task.name}: reset_mask is an array {mask.shape} of {mask.dtype}, "
                f"expected ({self.num_envs},) of bool"
            )
        return [int(index) for index in np.flatnonzero(mask)]

    def _metrics(self) -> dict[str, Any]:
        everyone = np.ones(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for name, values in self._episodes.metrics().items():
            infos[name], infos[f"_{name}"] = values, everyone.copy()
        return infos
