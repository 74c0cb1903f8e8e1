"""The rules of episodes that single and vectorised environments share: seeds, time limits, ends, and returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from sageplan.errors import ConfigError, DataError
from sageplan.tasks.catalogue import Task
from sageplan.tasks.world import Float64Array, World


def create_world(task: Task, num_envs: int, *, legacy: bool = True) -> World:
    """The simulation behind a task. `legacy` undoes what has changed in MuJoCo since D4RL, where that matters."""
    if task.domain == "locomotion":
        from sageplan.tasks.locomotion import Locomotion

        return Locomotion(task.world, num_envs, legacy)
    if task.domain == "antmaze":
        from sageplan.tasks.antmaze import AntMaze

        return AntMaze(task.world, num_envs, legacy)
    if task.domain == "maze2d":
        from sageplan.tasks.maze2d_world import Maze2DWorld

        return Maze2DWorld(task.world, num_envs)
    from sageplan.tasks.kitchen import Kitchen

    return Kitchen(task.variant, num_envs, legacy=legacy)


def episode_generator(seed: int, number: int) -> np.random.Generator:
    """All the chance in episode `number`, from 0, of an environment with this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))


class Episodes:
    """B simulations of a task, each in an episode of its own.

    One that has ended stays as it is, with reward 0, until it begins anew.

    terminated  [B] bool  ended by what happened in it
    truncated   [B] bool  ended by the time limit; both can be at once
    """

    def __init__(self, task: Task, num_envs: int, *, legacy: bool = True) -> None:
        if num_envs < 1:
            raise ConfigError(f"{task.name}: {num_envs} environments were asked for, at least 1 is needed")
        self.task, self.num_envs = task, num_envs
        self.world = create_world(task, num_envs, legacy=legacy)
        self.terminated, self.truncated, self._touched = np.zeros((3, num_envs), np.bool_)
        self._length = np.zeros(num_envs, np.int64)
        self._occupancy, self._sticky = np.zeros((2, num_envs))
        self._seeds: list[int | None] = [None] * num_envs
        self._begun = [0] * num_envs

    @property
    def begun(self) -> bool:
        """Whether every simulation is or was in an episode."""
        return all(self._begun)

    def seed(self, index: int, seed: int) -> None:
        """Make the next episode of one simulation the first one of this seed."""
        if seed < 0:
            raise ConfigError(f"{self.task.name}: seed {seed} is negative")
        self._seeds[index], self._begun[index] = seed, 0

    def begin(self, index: int) -> np.random.Generator:
        """The next episode of one simulation; what is returned is the source of all its chance."""
        seed = self._seeds[index]
        if seed is None:
            raise ConfigError(f"{self.task.name}: environment {index} has no seed")
        rng = episode_generator(seed, self._begun[index])
        self._begun[index] += 1
        self.world.reset(index, rng)
        for array in (self.terminated, self.truncated, self._touched, self._length, self._occupancy, self._sticky):
            array[index] = 0
        return rng

    def step(self, actions: Float64Array) -> Float64Array:
        """Rewards [B] of actions [B, A]."""
        live = ~(self.terminated | self.truncated)
        rewards, terminated = self.world.step(actions, live)
        self._length += live
        self.terminated |= terminated
        self.truncated |= live & (self._length >= self.task.step_limit)
        if self.task.domain == "maze2d":
            self._occupancy += rewards
            self._touched |= rewards > 0
            self._sticky += self._touched & live
        return rewards

    def metrics(self) -> dict[str, Float64Array]:
        """[B] of the episodes so far. Only Maze2D has any, because two returns are in use there.

        occupancy      sum of rewards: D4RL's own return
        sticky_return  every step counts once the goal has been touched: what DV, SAGE and DQL report
        """
        if self.task.domain != "maze2d":
            return {}
        return {"occupancy": self._occupancy.copy(), "sticky_return": self._sticky.copy()}

    def check(self, actions: Any) -> Float64Array:
        """[B, A] of what is given as actions."""
        expected = (self.num_envs, self.task.action_dim)
        try:
            array = np.asarray(actions, np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.task.name}: actions cannot be read as an array of numbers ({error})") from None
        if array.shape != expected:
            raise DataError(f"{self.task.name}: actions have shape {array.shape}, expected {expected}")
        if not np.isfinite(array).all():
            index, entry = np.argwhere(~np.isfinite(array))[0]
            raise DataError(
                f"{self.task.name}: the action of environment {index} is {array[index, entry]} in entry {entry}"
            )
        return array
