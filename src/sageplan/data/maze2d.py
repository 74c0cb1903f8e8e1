"""Maze2D data, made as D4RL made it: a waypoint controller walks from one random goal to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sageplan.errors import ConfigError
from sageplan.tasks.maze2d import Maze, PointMaze
from sageplan.tasks.world import Float64Array
from sageplan.types import BoolArray, IntArray, Trajectories, offsets_from_ends

_MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))  # in the order in which D4RL's argmax breaks ties
_GAIN, _DAMPING = 10.0, 1.0
_REACHED = 0.1  # distance at which a waypoint, or the goal, counts as reached
_WAYPOINT_JITTER = 0.2


def collect(
    size: str,
    steps: int,
    *,
    seed: int = 0,
    noise: float = 0.5,
    num_envs: int = 64,
    progress: Callable[[int], None] | None = None,
) -> Trajectories:
    """`steps` rows from maze `size`, as in D4RL's maze2d-{size}-v1; an episode ends where the goal changes.

    noise     standard deviation of the noise added to actions; 0.5 fits the ranges of D4RL's files
    num_envs  runs side by side, laid end to end; fewer when each would be shorter than the maze's step limit
    progress  told the number of rows recorded so far

    Three differences from D4RL: several runs in place of one; no stale observation after a change of goal;
    and a path starts at the cell that the ball is in, where D4RL's rounding can take a ball near a wall for
    one inside it. Within a run, a row's state and action lead exactly to the state of the next row.
    """
    recorded = record(size, steps, seed=seed, noise=noise, num_envs=num_envs, progress=progress)
    return Trajectories(
        recorded.observations,
        recorded.actions,
        offsets_from_ends(recorded.ends, steps),
        rewards=Maze.named(size).reward(recorded.observations[:, :2]),  # of the state before the action, as in D4RL
        terminals=np.zeros(steps, np.bool_),
        name=f"maze2d-{size}",
    )


class Recording(NamedTuple):
    """What a collector can write down.

    observations  [N, 4] float32  what the controller saw; another state than the true one in stale rows only
    states        [N, 4] float32  the true ones
    actions       [N, 2] float32
    goals         [N, 2] float32  the cell that the ball was on its way to
    ends          [N]    bool     rows after which the goal changed, or a run ended
    """

    observations: npt.NDArray[np.float32]
    states: npt.NDArray[np.float32]
    actions: npt.NDArray[np.float32]
    goals: npt.NDArray[np.float32]
    ends: BoolArray


def record(
    size: str,
    steps: int,
    *,
    seed: int = 0,
    noise: float = 0.5,
    num_envs: int = 64,
    stale_rows: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Recording:
    """As `collect`; with `stale_rows`, the controller does not look anew in the row after a change of goal.

    That is what D4RL's script does: the row repeats the observation of the row before, and its action answers that.
    """
    if steps < 1:
        raise ConfigError(f"cannot collect {steps} steps")
    maze = Maze.named(size)
    num_envs = max(1, min(num_envs, steps // maze.step_limit))
    lengths = np.full(num_envs, steps // num_envs)
    lengths[: steps % num_envs] += 1
    rows = np.cumsum(lengths) - lengths  # where each run will write next
    observations, states = np.empty((steps, 4), np.float32), np.empty((steps, 4), np.float32)
    actions, goals = np.empty((steps, 2), np.float32), np.empty((steps, 2), np.float32)
    ends = np.zeros(steps, np.bool_)
    ends[rows + lengths - 1] = True

    rng = np.random.default_rng(seed)
    env = PointMaze(maze, num_envs)
    controller = WaypointController(maze, num_envs, rng)
    state = env.reset(rng.integers(2**32, size=num_envs)).astype(np.float32)
    seen = state
    everyone = np.arange(num_envs)
    controller.new_goals(everyone, seen)
    age = np.zeros(num_envs, np.int64)  # rows since the last change of goal
    for step in range(lengths[0]):
        wanted, solved = controller.act(seen)
        action = np.clip(wanted + noise * rng.standard_normal(wanted.shape), -1, 1).astype(np.float32)
        over = solved | (age >= maze.step_limit)

        live = everyone[: num_envs if step < lengths[-1] else steps % num_envs]
        observations[rows[live]], states[rows[live]] = seen[live], state[live]
        actions[rows[live]] = action[live]
        goals[rows[live]] = controller.goals[live]
        ends[rows[live]] |= over[live]
        rows[live] += 1

        env.set_state(state)  # in the precision of the recording, so that rows are true transitions exactly
        state = env.step(action).astype(np.float32)
        seen = np.where(over[:, None], seen, state) if stale_rows else state
        age = np.where(over, 0, age + 1)
        if over.any():
            switching = np.flatnonzero(over)
            controller.new_goals(switching, seen[switching])
        if progress is not None:
            progress(min((step + 1) * num_envs, steps))
    return Recording(observations, states, actions, goals, ends)


class WaypointController:
    """PD control of B balls along shortest paths of slightly displaced cells, each to its own goal cell."""

    def __init__(self, maze: Maze, num_envs: int, rng: np.random.Generator) -> None:
        self._maze, self._rng = maze, rng
        self._paths = shortest_paths(maze)
        self._number = np.full(maze.walls.shape, -1)  # of each free cell
        self._number[tuple(maze.free.T)] = np.arange(len(maze.free))
        self._waypoints = np.zeros((num_envs, self._paths.shape[2], 2))
        self._next = np.zeros(num_envs, np.int64)
        self.goals = np.zeros((num_envs, 2))
        self._everyone = np.arange(num_envs)

    def new_goals(self, envs: IntArray, states: npt.NDArray[np.floating], goal: IntArray | None = None) -> None:
        """Send the balls `envs` [k], which are in states [k, 4], to cell `goal` [2], or to random ones.

        D4RL displaces goals by up to 0.1, but its controller rounds that away.
        """
        starts = self._number[tuple(self._maze.cells(states[:, :2]).T)]
        if goal is None:
            goals = self._rng.integers(len(self._maze.free), size=len(envs))
        else:
            goals = np.full(len(envs), self._number[tuple(goal)])
        path = self._paths[starts, goals]
        jitter = self._rng.uniform(0, _WAYPOINT_JITTER, (*path.shape, 2))
        jitter[path == goals[:, None]] = 0
        self._waypoints[envs] = self._maze.free[path] - jitter
        self._next[envs] = 0
        self.goals[envs] = self._maze.free[goals]

    def act(self, states: npt.NDArray[np.floating]) -> tuple[Float64Array, BoolArray]:
        """Actions [B, 2] for states [B, 4], and [B] whether the goal has been reached.

        D4RL also asks that the last step was shorter than 0.1, which the limited speed always grants.
        """
        xy, velocity = states[:, :2], states[:, 2:]
        waypoint = self._waypoints[self._everyone, self._next]
        solved = np.linalg.norm(xy - self.goals, axis=1) < _REACHED
        target = np.where(solved[:, None], self.goals, waypoint)
        self._next += ~solved & (np.linalg.norm(xy - target, axis=1) < _REACHED)
        return np.clip(_GAIN * (target - xy) - _DAMPING * velocity, -1, 1), solved


def shortest_paths(maze: Maze) -> IntArray:
    """[F, F, L] the free cells on the way from cell i (left out) to cell j, filled up with j.

    Cells are numbered as in `maze.free`.
    """
    count = len(maze.free)
    number = np.full(maze.walls.shape, count)  # a wall has the number one past the last free cell
    number[tuple(maze.free.T)] = np.arange(count)
    neighbours = np.stack([number[tuple((maze.free + move).T)] for move in _MOVES], axis=1)

    distance = np.full((count + 1, count), count)  # [cell, goal]; a wall's never falls
    np.fill_diagonal(distance, 0)
    for _ in range(count):
        distance[:-1] = np.minimum(distance[:-1], 1 + distance[neighbours].min(1))
    closer = neighbours[np.arange(count)[:, None], distance[neighbours].argmin(1)]  # [cell, goal]

    goals = np.arange(count)
    paths = np.empty((count, count, distance[:-1].max()), np.int64)
    cells = np.broadcast_to(goals[:, None], (count, count))
    for length in range(paths.shape[2]):
        cells = np.where(cells == goals, goals, closer[cells, goals])
        paths[:, :, length] = cells
    return paths
