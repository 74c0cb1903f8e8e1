"""One step of a task's physics from recorded states: does a simulator agree with a data set?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sageplan.errors import ConfigError, DataError
from sageplan.tasks import antmaze, locomotion, maze2d
from sageplan.tasks.bodies import Simulator, cores
from sageplan.tasks.catalogue import Task
from sageplan.tasks.world import Float64Array
from sageplan.types import BoolArray


class Replayed(NamedTuple):
    """observations [N, S] and rewards [N] of one step.

    Rewards are NaN where the goal is not known, observations where the simulation broke down.
    """

    observations: Float64Array
    rewards: Float64Array


def one_step(
    task: Task,
    qpos: npt.NDArray[Any],
    qvel: npt.NDArray[Any],
    actions: npt.NDArray[Any],
    *,
    legacy: bool = True,
    goals: npt.NDArray[Any] | None = None,
) -> Replayed:
    """What follows upon qpos [N, nq], qvel [N, nv] and actions [N, A], on all cores.

    `legacy` undoes what has changed in MuJoCo since D4RL; Maze2D is the same with and without. AntMaze draws its
    goal anew in every episode, so its rewards are only known with goals [N, 2] or [2].
    """
    nq, nv = _sizes(task)
    rows = len(qpos)
    for name, array, size in (("qpos", qpos, nq), ("qvel", qvel, nv), ("actions", actions, task.action_dim)):
        if array.shape != (rows, size):
            raise DataError(f"{task.name}: {name} has shape {array.shape}, expected ({rows}, {size})")
    qpos, qvel, actions = (np.asarray(array, np.float64) for array in (qpos, qvel, actions))
    actions = np.clip(actions, -1, 1)
    if task.domain == "maze2d":
        maze = maze2d.Maze.named(task.world)
        after = maze2d.one_step(maze, np.concatenate([qpos, qvel], 1), actions, nthread=cores())
        return Replayed(after, maze.reward(after[:, :2]).astype(np.float64))
    if task.domain == "antmaze":
        model = antmaze.load_model(maze2d.Maze.named(task.world), legacy=legacy)
        after, _ = _advance(model, antmaze.FRAME_SKIP, qpos, qvel, antmaze.TORQUE * actions)
        if goals is None:
            return Replayed(after, np.full(rows, np.nan))
        return Replayed(after, antmaze.reward(after[:, :2], np.broadcast_to(goals, (rows, 2))))
    kind = locomotion.KINDS[task.world]
    after, seconds = _advance(locomotion.load_model(task.world, legacy=legacy), kind.frame_skip, qpos, qvel, actions)
    rewards = locomotion.reward(kind, (after[:, 0] - qpos[:, 0]) / seconds, actions)
    return Replayed(locomotion.observation(kind, after[:, :nq], after[:, nq:]), rewards)


def simulated_states(task: Task, states: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """qpos [N, nq] and qvel [N, nv] behind observations [N, S].

    A runner's x is in none of them and does not matter; it is set to 0. Velocities that were clipped stay so.
    """
    nq, nv = _sizes(task)
    if states.ndim != 2 or states.shape[1] != task.state_dim:
        raise DataError(f"{task.name}: states have shape {states.shape}, expected [N, {task.state_dim}]")
    if task.domain == "locomotion":
        states = np.concatenate([np.zeros((len(states), 1), states.dtype), states], 1)
    return states[:, :nq], states[:, nq : nq + nv]


def clipped(task: Task, states: npt.NDArray[Any]) -> BoolArray:
    """[N] observations [N, S] in which a velocity reached the limit that hides what lies beyond."""
    if task.domain != "locomotion":
        return np.zeros(len(states), np.bool_)
    speeds = states[:, _sizes(task)[0] - 1 :]
    return np.asarray((np.abs(speeds) >= locomotion.KINDS[task.world].speed_limit).any(1))


def _sizes(task: Task) -> tuple[int, int]:
    """Lengths of qpos and qvel."""
    if task.domain == "locomotion":
        return (task.state_dim + 1) // 2, (task.state_dim + 1) // 2
    if task.domain == "antmaze":
        return 15, 14
    if task.domain == "maze2d":
        return 2, 2
    raise ConfigError(f"{task.name}: its observations do not tell the whole state, so it cannot be replayed")


def _advance(
    model: Any, frame_skip: int, qpos: Float64Array, qvel: Float64Array, controls: Float64Array
) -> tuple[Float64Array, float]:
    """States [N, nq + nv] one environment step later, and how long that step takes."""
    simulator = Simulator(model, frame_skip, nthread=cores())
    after = simulator.advance(np.concatenate([qpos, qvel], 1), controls)
    simulator.close()
    return after, simulator.step_time
