"""Does a task's simulator agree with recorded data? One step from every recorded state, against what followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sageplan.errors import MissingExtraError
from sageplan.tasks.catalogue import Task
from sageplan.types import BoolArray, IntArray

MOST_ROWS = 20_000
_CLIPPED = {"hopper": 10.0, "walker2d": 10.0}  # velocities are recorded within ± this

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Replay:
    """Errors of one simulated step: of a row's largest component, and of its reward.

    rows           that were replayed
    median, p95    over the rows
    reward_median  None where the data do not tell what was rewarded
    """

    rows: int
    median: float
    p95: float
    reward_median: float | None


class RowErrors(NamedTuple):
    """Errors of one simulated step from each of `rows` [n].

    states   [n] of the largest component; ∞ where the simulation broke down
    rewards  [n] None where the data do not tell what was rewarded
    """

    rows: IntArray
    states: Array
    rewards: Array | None


def replay(task: Task, columns: Mapping[str, Array], ends: BoolArray) -> tuple[Replay | None, list[str]]:
    """The errors, unless these data cannot be replayed, and what has to be said about them."""
    errors, notes = row_errors(task, columns, ends)
    if errors is None:
        return None, notes
    median, p95 = (float(np.quantile(errors.states, share, method="higher")) for share in (0.5, 0.95))  # ∞ has no mean
    rewards = None
    if errors.rewards is not None and np.isfinite(errors.rewards).any():
        rewards = float(np.nanmedian(errors.rewards))
    return Replay(len(errors.rows), median, p95, rewards), notes


def row_errors(
    task: Task, columns: Mapping[str, Array], ends: BoolArray, *, legacy: bool = True
) -> tuple[RowErrors | None, list[str]]:
    """The same row by row.

    columns  observations, actions and, where recorded, rewards, next_observations, infos/qpos and infos/qvel [N, ·]
    ends     [N] last rows of episodes; what followed them is not recorded
    legacy   undo what has changed in MuJoCo since D4RL
    """
    if task.domain == "kitchen":
        return None, ["no replay: kitchen observations are noisy and do not tell velocities"]
    try:
        from sageplan.tasks.replay import one_step
    except MissingExtraError as error:
        return None, [f"no replay: {error}"]
    qpos, qvel, notes = _states(task, columns)
    following = columns.get("next_observations")
    rows, left_out = _rows(task, columns, qpos, qvel, ends)
    notes += left_out
    if not len(rows):
        return None, [*notes, "no replay: no row has a whole state and a row that follows it"]
    target = following[rows] if following is not None else columns["observations"][rows + 1]
    try:
        simulated = one_step(task, qpos[rows], qvel[rows], columns["actions"][rows], legacy=legacy)
    except MissingExtraError as error:
        return None, [*notes, f"no replay: {error}"]
    errors = np.abs(simulated.observations - target).max(1)
    broken = ~np.isfinite(errors)
    if broken.any():
        notes.append(f"the simulation broke down in {broken.sum()} of {len(rows)} replayed rows, which count as ∞")
        errors[broken] = np.inf
    rewards, said = _reward_errors(task, columns, rows, simulated.rewards)
    return RowErrors(rows, errors, rewards), notes + said


def _states(task: Task, columns: Mapping[str, Array]) -> tuple[Array, Array, list[str]]:
    """qpos [N, nq] and qvel [N, nv] before each action."""
    observations = columns["observations"]
    if task.domain == "antmaze":  # infos hold the state after the step there; the observation is the whole state
        return observations[:, :15], observations[:, 15:], []
    missing = 0 if task.domain == "maze2d" else 1  # a runner's x, which changes nothing
    size = (task.state_dim + missing) // 2
    if all(key in columns and columns[key].shape[1:] == (size,) for key in ("infos/qpos", "infos/qvel")):
        return columns["infos/qpos"], columns["infos/qvel"], []
    still = np.zeros((len(observations), missing), observations.dtype)
    positions = np.concatenate([still, observations[:, : size - missing]], 1)
    return positions, observations[:, size - missing :], ["replayed from observations: no infos/qpos and infos/qvel"]


def _rows(
    task: Task, columns: Mapping[str, Array], qpos: Array, qvel: Array, ends: BoolArray
) -> tuple[IntArray, list[str]]:
    """At most MOST_ROWS rows, evenly spread, whose state is whole and whose successor is known."""
    limit = _CLIPPED.get(task.world)
    usable, notes = ~ends, []
    if limit is not None:
        clipped = (np.abs(qvel) >= limit * (1 - 1e-5)).any(1)
        if clipped.any():
            notes.append(f"{(clipped & usable).sum():,} rows with velocities clipped at {limit:g} are not replayed")
        usable &= ~clipped
    for array in (qpos, qvel, columns["actions"]):
        usable &= np.isfinite(array).all(1)
    if "next_observations" in columns:
        usable &= np.isfinite(columns["next_observations"]).all(1)
    else:
        usable[:-1] &= np.isfinite(columns["observations"][1:]).all(1)
        usable[-1] = False
    rows = np.flatnonzero(usable)
    if len(rows) > MOST_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS).astype(np.int64)]
    return rows.astype(np.int64), notes


def _reward_errors(
    task: Task, columns: Mapping[str, Array], rows: IntArray, simulated: Array
) -> tuple[Array | None, list[str]]:
    recorded = columns.get("rewards")
    if recorded is None:
        return None, []
    if not np.isfinite(simulated).any():
        return None, ["rewards are not replayed: the file does not tell the goal that was rewarded"]
    error, notes = np.abs(simulated - recorded[rows]), []
    if task.domain == "maze2d":
        from sageplan.tasks.maze2d import Maze

        # D4RL's files reward the state before the step, its environment the one after
        own = np.abs(Maze.named(task.world).reward(columns["observations"][rows, :2]) - recorded[rows])
        counts = {"before": int((own > 0).sum()), "after": int((error > 0).sum())}
        notes.append(
            f"rewards differ in {counts['before']:,} rows from those of the state before the step, in "
            f"{counts['after']:,} from those of the state after it"
        )
        error = own if counts["before"] <= counts["after"] else error
    return error, notes
