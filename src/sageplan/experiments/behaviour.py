"""What D4RL's data were collected with, acting in our tasks: stored policies and waypoint controllers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sageplan.data.maze2d import WaypointController, shortest_paths
from sageplan.errors import FormatError
from sageplan.tasks import make_vector
from sageplan.tasks.antmaze import CELL, cell_centre
from sageplan.tasks.catalogue import Task
from sageplan.tasks.maze2d import Maze
from sageplan.tasks.world import Float64Array

Act = Callable[[Float64Array], npt.NDArray[Any]]
_HIDDEN, _HEADS = ("fc0", "fc1"), ("last_fc", "last_fc_log_std")
_LOG_STD = (-20.0, 2.0)
_FAR = 10.0  # length that the ant's direction is given, whatever the distance


class StoredPolicy:
    """rlkit's tanh-Gaussian: two ReLU layers, then the mean and the logarithm of the standard deviation."""

    def __init__(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                self._layers = {name: (file[f"{name}/weight"].T, file[f"{name}/bias"]) for name in (*_HIDDEN, *_HEADS)}
        except (OSError, ValueError, KeyError) as error:
            raise FormatError(f"{path} is not a stored policy ({error})") from None

    def __call__(self, inputs: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Actions [B, A], drawn."""
        hidden = inputs.astype(np.float32)
        for name in _HIDDEN:
            hidden = np.maximum(self._affine(name, hidden), 0)
        mean, log_std = (self._affine(name, hidden) for name in _HEADS)
        noise = rng.standard_normal(mean.shape, np.float32)
        return np.asarray(np.tanh(mean + np.exp(np.clip(log_std, *_LOG_STD)) * noise))

    def _affine(self, name: str, inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        weight, bias = self._layers[name]
        return np.asarray(inputs @ weight + bias)


class RolledOut(NamedTuple):
    """[B] of one episode each."""

    returns: Float64Array
    lengths: Float64Array
    terminated: npt.NDArray[np.bool_]


def roll_out(task: Task, episodes: int, seed: int, begin: Callable[[Float64Array, dict[str, Any]], Act]) -> RolledOut:
    """Episode i is the first of seed + i. `begin` gets the first observations and infos of all and says how to act."""
    envs = make_vector(task, episodes, seeds=seed)
    observations, infos = envs.reset()
    act = begin(observations, infos)
    returns, lengths = np.zeros(episodes), np.zeros(episodes)
    terminated, done = np.zeros((2, episodes), np.bool_)
    while not done.all():
        lengths += ~done
        observations, rewards, terminated, truncated, _ = envs.step(act(observations))
        returns += rewards
        done = terminated | truncated
    envs.close()
    return RolledOut(returns, lengths, terminated)


def towards(maze: Maze, goals: Float64Array, policy: StoredPolicy, rng: np.random.Generator) -> Act:
    """D4RL's ants: the goal-reaching policy is sent to the next cell of a shortest path; in the last, to goals [B, 2].

    Without the noise that D4RL puts on waypoints and on actions.
    """
    paths = shortest_paths(maze)
    number = np.full(maze.walls.shape, -1)
    number[tuple(maze.free.T)] = np.arange(len(maze.free))
    home = number[tuple(maze.goal)]
    targets = goals.copy()

    def act(observations: Float64Array) -> npt.NDArray[Any]:
        xy = observations[:, :2]
        cells = np.clip(np.floor(xy[:, ::-1] / CELL + 1.5).astype(np.int64), 0, np.array(maze.walls.shape) - 1)
        here = number[tuple(cells.T)]
        known = here >= 0  # a body that leans over a wall goes on to where it was going
        following = cell_centre(maze.free[paths[here[known], home, 0]])
        targets[known] = np.where((here[known] == home)[:, None], goals[known], following)
        direction = targets - xy
        direction *= _FAR / np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
        return policy(np.concatenate([observations[:, 2:], direction], 1), rng)

    return act


def waypoint_returns(task: Task, episodes: int, seed: int) -> tuple[Float64Array, Float64Array]:
    """[B] returns of D4RL's Maze2D controller without noise: with a path of each episode's own, and of the one before.

    D4RL plans only when the goal changes, which it never does in evaluation; so from the second episode on its
    controller heads straight for the goal, whatever wall there is.
    """
    maze, rng = Maze.named(task.world), np.random.default_rng([seed, 1])
    controller = WaypointController(maze, episodes, rng)
    envs = make_vector(task, episodes, seeds=seed)
    returns = np.zeros((2, episodes))
    for number in range(2):
        observations, _ = envs.reset()
        if number == 0:
            controller.new_goals(np.arange(episodes), observations, maze.goal)
        for _ in range(task.step_limit):
            observations, rewards, *_ = envs.step(controller.act(observations)[0])
            returns[number] += rewards
    envs.close()
    return returns[0], returns[1]
