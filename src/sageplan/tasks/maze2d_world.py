"""Maze2D as a task: D4RL's fixed goal, 1 for every step that ends within 0.5 of it, and no end but the time limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sageplan.tasks.drawing import BODY, Capsule, draw_maze
from sageplan.tasks.maze2d import BALL_RADIUS, CELL_START, GOAL_RADIUS, Maze, PointMaze
from sageplan.tasks.world import Float64Array, Outcome
from sageplan.types import BoolArray


class Maze2DWorld:
    """A batch of balls behind the interface that all tasks share."""

    def __init__(self, world: str, num_envs: int) -> None:
        self.maze, self.num_envs = Maze.named(world), num_envs
        self._balls = PointMaze(self.maze, num_envs)

    def reset(self, index: int, rng: np.random.Generator) -> None:
        states = self._balls.state
        states[index] = self.maze.random_state(rng)
        self._balls.set_state(states)

    def step(self, actions: Float64Array, live: BoolArray) -> Outcome:
        before = None if live.all() else self._balls.state
        after = self._balls.step(actions)
        if before is not None:
            after = np.where(live[:, None], after, before)
            self._balls.set_state(after)
        rewards = self.maze.reward(after[:, :2]).astype(np.float64)
        return Outcome(rewards * live, np.zeros(self.num_envs, np.bool_))

    def observe(self) -> Float64Array:
        return self._balls.state

    def info(self, index: int) -> dict[str, Any]:
        state = self._balls.state[index]
        return {"goal": self.maze.goal.astype(np.float64), "qpos": state[:2], "qvel": state[2:]}

    def render(self, index: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        ball = _on_map(self._balls.state[index, :2])
        shapes = [Capsule(ball, ball, BALL_RADIUS, BODY)]
        return draw_maze(self.maze.walls, _on_map(self.maze.goal), GOAL_RADIUS, shapes, width, height)

    def close(self) -> None:
        self._balls.close()


def _on_map(xy: npt.NDArray[Any]) -> Float64Array:
    """[2] cells across and down from the map's top left corner; x counts rows."""
    return np.asarray(xy[::-1] + CELL_START, np.float64)
