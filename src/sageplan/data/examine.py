"""What is in a data file: counts, returns, boundaries, differences to the official one, agreement with the physics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from sageplan.data.agreement import Replay, replay
from sageplan.data.fetch import sha256
from sageplan.data.official import FACTS, Facts
from sageplan.data.readers import check_layout, episode_ends, fresh_rows, load
from sageplan.errors import DataError, FormatError
from sageplan.tasks import catalogue
from sageplan.tasks.catalogue import TASKS, Task
from sageplan.types import BoolArray, offsets_from_ends

Array = npt.NDArray[Any]

_JUMP = 3.0  # times what only one step in a thousand exceeds
_LARGE = ("next_observations", "infos/qpos", "infos/qvel", "infos/goal")


@dataclass(frozen=True)
class Spread:
    mean: float
    std: float
    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Array) -> Spread | None:
        """None of no finite value."""
        values = np.asarray(values, np.float64)
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        return cls(*(float(f(values)) for f in (np.mean, np.std, np.min, np.median, np.max)))


@dataclass(frozen=True)
class Boundaries:
    """How the file says where an episode ends.

    terminals, timeouts  rows so flagged; None where the file has no such array
    both                 rows that are both
    terminals_inside     terminal rows after which the episode goes on
    last_row_flagged     whether the file ends with the end of an episode
    jumps_inside         steps within an episode on which a position jumps, as if an end were missing
    jumps_across         steps over a boundary on which one does, out of `across`
    stale_rows           Maze2D: first rows of an episode that repeat the observation before; None elsewhere
    """

    terminals: int | None
    timeouts: int | None
    both: int
    terminals_inside: int
    last_row_flagged: bool
    jumps_inside: int
    jumps_across: int
    across: int
    stale_rows: int | None


@dataclass(frozen=True)
class Report:
    """The findings of `check`; `to_json` is what `sageplan data check --json` prints.

    shapes       of every array of the file, by name
    returns      sums of recorded rewards per episode
    scores       D4RL's score of what an episode would have returned in the task; `notes` say where that is another sum
    nan          NaN or infinite values per array, where there are any
    constant     columns that never change, per array
    differences  to the official file; empty also where no task or nothing official is known
    notes        what a reader of the numbers should know
    """

    file: str
    task: str | None
    bytes: int | None
    sha256: str | None
    shapes: dict[str, list[int]]
    rows: int
    episodes: int
    lengths: Spread
    returns: Spread | None
    scores: Spread | None
    nan: dict[str, int]
    constant: dict[str, list[int]]
    boundaries: Boundaries
    replay: Replay | None
    differences: list[str]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return record


def check(path: str | Path, task: str | Task | None = None) -> Report:
    """Examine a D4RL HDF5 file, or anything that `sageplan.Trajectories.load` reads.

    task  whose file it is; default: as its name says, or the file itself, if they do
    """
    source = Path(path)
    hdf5 = source.is_file() and source.suffix.lower() in (".hdf5", ".h5")
    if isinstance(task, str):
        task = catalogue.get(task)
    elif task is None:
        task = catalogue.recognise(path) or (_own_task(source) if hdf5 else None)
    columns, ends, shapes = read_hdf5(source, task) if hdf5 else _read_other(path)
    if task is not None:
        _check_sizes(source.name, task, columns)
    offsets = offsets_from_ends(ends, len(ends))
    boundaries = _boundaries(task, columns, ends)
    replayed, notes = replay(task, columns, _last_rows(offsets)) if task is not None else (None, [])
    returns, scores, said = _returns(task, columns, offsets)
    lengths = Spread.of(np.diff(offsets))
    assert lengths is not None, "there is a row, so there is an episode"
    if hdf5 and (description := says_of_itself(source)):
        said.insert(0, f"the file says of itself: {description}")
    if task is None:
        said.append("no task of D4RL is known for this file, so nothing was compared or replayed (--task names one)")
    report = Report(
        file=source.name if hdf5 else str(path),
        task=None if task is None else task.name,
        bytes=source.stat().st_size if hdf5 else None,
        sha256=sha256(source) if hdf5 else None,
        shapes=shapes,
        rows=len(ends),
        episodes=len(offsets) - 1,
        lengths=lengths,
        returns=returns,
        scores=scores,
        nan={name: count for name, array in columns.items() if (count := _not_finite(array))},
        constant={name: found for name in ("observations", "actions") if (found := _constant(columns[name]))},
        boundaries=boundaries,
        replay=replayed,
        differences=[],
        notes=said + notes,
    )
    return report if task is None else _with_differences(report, task)


def _own_task(path: Path) -> Task | None:
    """What a file that was built here says of itself."""
    try:
        with h5py.File(path, "r") as file:
            return TASKS.get(str(file.attrs.get("task", "")))
    except OSError:
        return None  # read_hdf5 says what is wrong with it


def read_hdf5(path: Path, task: Task | None) -> tuple[dict[str, Array], BoolArray, dict[str, list[int]]]:
    """The arrays that matter, the ends of episodes and the shapes of all."""
    if path.stat().st_size == 0:
        raise FormatError(f"{path}: the file is empty (0 bytes)")
    try:
        with h5py.File(path, "r") as file:
            check_layout(file, path.name)
            name = path.name if task is None else task.name  # conventions differ by task, whatever the file is called
            ends = episode_ends(file, name)
            rows = len(ends)
            if rows == 0:
                raise DataError(f"{path.name}: no rows")
            if len(file["actions"]) != rows:
                raise DataError(f"{path.name}: actions has {len(file['actions'])} rows, observations {rows}")
            shapes: dict[str, list[int]] = {}
            file.visititems(lambda key, item: shapes.update({key: [*item.shape]}) if hasattr(item, "shape") else None)
            wanted = ["observations", "actions", "rewards", "terminals", "timeouts", *_LARGE]
            columns = {
                key: file[key][()]
                for key in wanted
                if key in shapes and shapes[key][:1] == [rows] and file[key].dtype.kind in "fiub"
            }
    except (OSError, KeyError, RuntimeError) as error:
        damage = "it is truncated or damaged" if h5py.is_hdf5(path) else "it is not a whole HDF5 file"
        raise FormatError(f"{path}: cannot be read, {damage} ({error})") from None
    return columns, ends, shapes


def says_of_itself(path: Path) -> str:
    """What made the file, if it was not D4RL: theirs have no attributes."""
    with h5py.File(path, "r") as file:
        text = str(file.attrs.get("description", ""))
        return text if len(text) <= 300 else text[:299].rstrip() + "…"


def origin(path: Path) -> str:
    """In a word or two: of D4RL's layout and not otherwise marked, regenerated, or of another kind of file."""
    if path.suffix.lower() not in (".hdf5", ".h5"):
        return "own"
    with h5py.File(path, "r") as file:
        if file.attrs.get("regenerated", False) or "description" in file.attrs:
            return f"regenerated, seed {file.attrs.get('seed', '?')}"
    return "official layout"


def _read_other(path: str | Path) -> tuple[dict[str, Array], BoolArray, dict[str, list[int]]]:
    data = load(path)
    ends = np.zeros(len(data), np.bool_)
    ends[data.offsets[1:] - 1] = True
    found = {"rewards": data.rewards, "terminals": data.terminals}
    columns: dict[str, Array] = {"observations": data.states, "actions": data.actions}
    columns |= {key: array for key, array in found.items() if array is not None}
    return columns, ends, {key: [*array.shape] for key, array in columns.items()}


def _check_sizes(name: str, task: Task, columns: Mapping[str, Array]) -> None:
    """Nothing else can be said about data of other sizes."""
    sizes = columns["observations"].shape[1], columns["actions"].shape[1]
    if sizes != (task.state_dim, task.action_dim):
        raise DataError(
            f"{name}: observations have {sizes[0]} and actions {sizes[1]} columns, those of {task.name} "
            f"{task.state_dim} and {task.action_dim}; name its task with --task"
        )


def _boundaries(task: Task | None, columns: Mapping[str, Array], ends: BoolArray) -> Boundaries:
    terminals, timeouts = (columns[key].astype(bool) if key in columns else None for key in ("terminals", "timeouts"))
    observations = columns["observations"]
    across = ends[:-1]
    jumps = _jumps(observations[:, : _positions(task)], across)
    stale = ~fresh_rows(observations, ends) if task is not None and task.domain == "maze2d" else None
    if stale is not None:
        jumps &= ~stale[:-1]  # they are a step or more behind, which shows when the next row has caught up
    flagged = np.zeros(len(ends), np.bool_) if terminals is None else terminals
    return Boundaries(
        terminals=None if terminals is None else int(terminals.sum()),
        timeouts=None if timeouts is None else int(timeouts.sum()),
        both=0 if timeouts is None else int((flagged & timeouts).sum()),
        terminals_inside=int((flagged & ~ends)[:-1].sum()),
        last_row_flagged=bool(ends[-1]),
        jumps_inside=int((jumps & ~across).sum()),
        jumps_across=int((jumps & across).sum()),
        across=int(across.sum()),
        stale_rows=None if stale is None else int(stale.sum()),
    )


def _positions(task: Task | None) -> int | None:
    """How many of the first observed numbers are positions, which cannot jump; None for all."""
    if task is None:
        return None
    return {"locomotion": (task.state_dim - 1) // 2, "antmaze": 15, "maze2d": 2, "kitchen": 30}[task.domain]


def _jumps(observations: Array, across: BoolArray) -> BoolArray:
    """[N-1] whether any column changes by much more than it does within episodes."""
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        change = np.abs(np.diff(observations, axis=0))
    change[~np.isfinite(change)] = 0
    inside = change[~across]
    inside = inside[:: max(1, len(inside) // 200_000)]
    if not len(inside):
        return np.zeros(len(change), np.bool_)
    usual = np.quantile(inside, 0.999, axis=0)
    return np.asarray((change > _JUMP * np.where(usual > 0, usual, np.inf)).any(1))


def _returns(
    task: Task | None, columns: Mapping[str, Array], offsets: npt.NDArray[np.int64]
) -> tuple[Spread | None, Spread | None, list[str]]:
    if "rewards" not in columns:
        return None, None, ["no rewards in this file"]
    rewards = np.nan_to_num(columns["rewards"].astype(np.float64), posinf=0, neginf=0)
    sums = np.add.reduceat(rewards, offsets[:-1])
    if task is None:
        return Spread.of(sums), None, []
    counted, notes = sums, []
    if task.domain == "antmaze":
        counted = (sums > 0).astype(np.float64)
        notes.append("scores count an episode once it was rewarded: the task ends there, the recording goes on")
    elif task.domain == "kitchen":
        counted = np.maximum.reduceat(rewards, offsets[:-1])
        notes.append("scores count the most elements that were done at once: rewards repeat them in every row")
    elif task.domain == "maze2d":
        notes.append(
            "scores are of recorded episodes, which end where the goal changes, and are no measure of a policy"
        )
    return Spread.of(sums), Spread.of(np.array([task.normalise(value) for value in counted])), notes


def _with_differences(report: Report, task: Task) -> Report:
    facts = FACTS.get(task.name, Facts())
    flags = report.boundaries
    flagged = None if flags.timeouts is None else (flags.terminals or 0) + flags.timeouts - flags.both
    found: list[str] = []
    for what, here, there in (
        ("bytes", report.bytes, task.bytes),
        ("rows", report.rows, facts.rows),
        ("flagged rows", flagged, facts.flagged),
    ):
        if here is not None and there is not None and here != there:
            found.append(f"{here:,} {what}, the official file has {there:,}")
    if facts.episodes is not None and abs(report.episodes - facts.episodes) > 1:
        found.append(f"{report.episodes:,} episodes, the official file has {facts.episodes:,}")
    if task.sha256 and report.sha256 not in (None, task.sha256):
        found.append(f"SHA-256 {report.sha256}, the official file has {task.sha256}")
    # D4RL records one row more than the limit in mazes: the row on which it gives up
    longest = task.step_limit + (task.domain in ("antmaze", "maze2d"))
    if task.domain != "kitchen" and report.lengths.max > longest:
        found.append(f"an episode has {report.lengths.max:,.0f} rows, the task's limit makes {longest:,}")
    if flags.jumps_inside:
        steps = "1 step" if flags.jumps_inside == 1 else f"{flags.jumps_inside:,} steps"
        found.append(f"positions jump on {steps} within episodes")
    return replace(report, differences=found)


def _last_rows(offsets: npt.NDArray[np.int64]) -> BoolArray:
    ends = np.zeros(offsets[-1], np.bool_)
    ends[offsets[1:] - 1] = True
    return ends


def _not_finite(array: Array) -> int:
    return 0 if array.dtype.kind != "f" else int(array.size - np.isfinite(array).sum())


def _constant(array: Array) -> list[int]:
    """Columns that hold one finite value throughout."""
    return [int(column) for column in np.flatnonzero((array == array[0]).all(0))]
