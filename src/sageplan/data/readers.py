"""Files in, Trajectories out: D4RL HDF5, `.npz` and Minari."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import numpy.typing as npt

from sageplan.errors import DataError, FormatError, MissingExtraError, SageplanError
from sageplan.types import BoolArray, FloatArray, Trajectories, offsets_from_ends

_MINARI = "minari:"
_CHUNK_ROWS = 65_536

KindT = TypeVar("KindT", bound=np.generic)


def load(path: str | Path) -> Trajectories:
    """D4RL HDF5 file, `.npz` archive, folder of a Minari data set, or `minari:ID`."""
    if str(path).startswith(_MINARI):
        return _read_minari(str(path).removeprefix(_MINARI))
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if path.is_dir():
        return _read_minari(path)
    if path.suffix.lower() not in _READERS:
        raise DataError(
            f"{path}: cannot tell the format from the name; known are {', '.join(_READERS)}, "
            f"the folder of a Minari data set, and {_MINARI}ID"
        )
    if path.stat().st_size == 0:
        raise FormatError(f"{path}: the file is empty (0 bytes)")
    return _READERS[path.suffix.lower()](path)


# ---- D4RL HDF5 -------------------------------------------------------------------------------------


def _read_hdf5(path: Path) -> Trajectories:
    try:
        with h5py.File(path, "r") as file:
            return _from_d4rl(file, path.name)
    except (OSError, KeyError, RuntimeError) as error:
        damage = "it is truncated or damaged" if h5py.is_hdf5(path) else "it is not an HDF5 file"
        raise FormatError(f"{path}: cannot be read, {damage} ({error})") from None


def _from_d4rl(file: Any, name: str) -> Trajectories:
    """The official layout: observations [N, S], actions [N, A], rewards, terminals, timeouts [N].

    `rewards` and `timeouts` may be absent; all other keys are left alone.
    """
    check_layout(file, name)
    kind = f"{name} {file.attrs.get('task', '')}"  # files made here say so, whatever they are called
    ends = episode_ends(file, kind)
    states, actions = _floats(file["observations"]), _floats(file["actions"])
    rewards = _floats(file["rewards"]) if "rewards" in file else None
    terminals = _flags(file["terminals"])
    if _is(kind, "maze2d") and not (keep := fresh_rows(states, ends)).all():
        states, actions = _compact(states, keep), _compact(actions, keep)
        terminals, ends = _compact(terminals, keep), _compact(ends, keep)
        rewards = None if rewards is None else _compact(rewards, keep)
    return Trajectories(states, actions, offsets_from_ends(ends, len(states)), rewards, terminals, name)


def check_layout(file: Any, name: str) -> None:
    """Before anything is read, because reading may take a minute."""
    missing = [key for key in ("observations", "actions", "terminals") if key not in file]
    if missing:
        raise DataError(f"{name}: no {_listed(missing)} in this file, only {_listed(sorted(file))}")
    for key in ("observations", "actions", "rewards", "terminals", "timeouts"):
        if key not in file:
            continue
        if not isinstance(file[key], h5py.Dataset):
            raise DataError(f"{name}: {key} is a group of {_listed(sorted(file[key]))}, expected an array")
        if file[key].dtype.kind not in "fiub":
            raise DataError(f"{name}: {key} has type {file[key].dtype}, expected numbers")
        shape, rows = file[key].shape or (), (file["observations"].shape or ())[:1]
        if key in ("observations", "actions"):
            if len(shape) != 2:
                raise DataError(f"{name}: {key} has shape {shape}, expected 2 dimensions [rows, size]")
        elif shape != rows:
            raise DataError(f"{name}: {key} has shape {shape}, expected {rows} like the observations")


def episode_ends(file: Any, name: str) -> BoolArray:
    """[N] last rows of episodes.

    AntMaze marks every row near the goal as terminal while the ant walks on: only timeouts end an episode
    there. (Its version 0 flags every 999 rows although resets come every 1001, so later episodes hold a
    jump; version 2 is right.) Official Maze2D files flag timeouts alone, but what D4RL's script writes has
    terminals alone; kitchen may have no timeouts.
    """
    if not _is(name, "antmaze"):
        terminals = _flags(file["terminals"])
        return terminals | _flags(file["timeouts"]) if "timeouts" in file else terminals
    if "timeouts" not in file:
        raise DataError(f"{name}: no timeouts, which alone say where an AntMaze episode ends")
    return _flags(file["timeouts"])


def _is(name: str, domain: str) -> bool:
    """Whether a file is of this domain; official names write `Ant_maze_…`, task ids `antmaze-…`."""
    return domain in name.lower().replace("_", "")


def fresh_rows(states: FloatArray, ends: BoolArray) -> BoolArray:
    """[N] rows of Maze2D other than first rows of an episode that repeat the last state of the one before.

    D4RL's collector steps the environment at a goal switch but keeps the old observation for one more
    row. That row pairs the state of one moment with an action taken at the next, and the state that
    follows it is two steps away: a transition that never happened. A switch to a goal already reached
    ends an episode on its stale row and makes the next row stale too; such an episode vanishes.
    """
    fresh = np.ones(len(states), np.bool_)
    first = np.flatnonzero(ends[:-1]) + 1
    fresh[first] = (states[first] != states[first - 1]).any(1)
    return fresh


def _compact(array: npt.NDArray[KindT], keep: BoolArray) -> npt.NDArray[KindT]:
    """The kept rows, moved to the front in place: an indexed copy would double the memory."""
    end = 0
    for start in range(0, len(array), _CHUNK_ROWS):
        rows = array[start : start + _CHUNK_ROWS][keep[start : start + _CHUNK_ROWS]]
        array[end : end + len(rows)] = rows
        end += len(rows)
    return array[:end]


def _floats(dataset: Any) -> FloatArray:
    """HDF5 itself converts to float32, piece by piece, so a float64 file costs no second copy."""
    array = np.empty(dataset.shape, np.float32)
    dataset.read_direct(array)
    return array


def _flags(dataset: Any) -> BoolArray:
    flags: BoolArray = dataset[()].astype(np.bool_, copy=False)
    return flags


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8]) or "nothing"
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


# ---- npz -------------------------------------------------------------------------------------------


def _read_npz(path: Path) -> Trajectories:
    """states (or observations) [N, S] and actions [N, A]; rewards, terminals, timeouts, ends [N] and
    offsets [E+1] where given. Episodes are cut by offsets, else ends, else terminals and timeouts."""
    if not zipfile.is_zipfile(path):
        raise FormatError(f"{path}: cannot be read, it is truncated or not an .npz archive")
    with np.load(path, allow_pickle=False) as archive:
        states = "states" if "states" in archive else "observations"
        missing = [key for key in (states, "actions") if key not in archive]
        if missing:
            raise DataError(f"{path.name}: no {_listed(missing)} in this file, only {_listed(list(archive))}")
        wanted = (states, "actions", "rewards", "terminals", "timeouts", "ends", "offsets")
        arrays = {key: _member(archive, key, path) for key in wanted if key in archive}
    offsets = arrays.pop("offsets", None)
    data = Trajectories.from_arrays(arrays.pop(states), **arrays, name=path.name)
    if offsets is None:
        return data
    if offsets.dtype.kind not in "iu":
        raise DataError(f"{path.name}: offsets are not integers")
    return replace(data, offsets=offsets.astype(np.int64))


def _member(archive: Any, key: str, path: Path) -> Any:
    """One array. float64 becomes float32 here, so that two of the large ones never exist together."""
    try:
        array = archive[key]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError(f"{path}: {key} cannot be read ({error})") from None
    return array.astype(np.float32) if array.dtype == np.float64 else array


def save_npz(data: Trajectories, path: str | Path) -> None:
    """Write what `load` reads back. The file appears whole or not at all."""
    path = Path(path)
    if path.suffix.lower() != ".npz":
        raise DataError(f"{path}: trajectories are saved as .npz")
    fields = ("states", "actions", "offsets", "rewards", "terminals")
    arrays: dict[str, Any] = {f: getattr(data, f) for f in fields if getattr(data, f) is not None}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


_READERS = {".hdf5": _read_hdf5, ".h5": _read_hdf5, ".npz": _read_npz}


# ---- Minari ----------------------------------------------------------------------------------------


def _read_minari(source: str | Path) -> Trajectories:
    """An id, or the folder of a data set."""
    try:
        import minari

        if isinstance(source, str):
            return _from_minari(minari.load_dataset(source))
        return _from_minari(minari.MinariDataset(source / "data" if (source / "data").is_dir() else source))
    except SageplanError:
        raise
    except ImportError as error:
        raise MissingExtraError(error.name or "minari", "minari", "reading a Minari data set") from None
    except FileNotFoundError:
        raise DataError(f"{source}: not on this machine; get it with: minari download {source}") from None
    except (ValueError, KeyError, AssertionError, OSError, RuntimeError) as error:
        raise FormatError(f"{source}: not a Minari data set that can be read ({error})") from None


def _from_minari(dataset: Any) -> Trajectories:
    """Episodes of T+1 observations and T actions, whose last row gets a zero action as in
    `Trajectories.from_episodes`; rewards and terminals belong to an action, so it has 0 and false."""
    name, episodes = str(dataset.spec.dataset_id), int(dataset.total_episodes)
    if not episodes:
        raise DataError(f"{name}: no episodes in this data set")
    rows = int(dataset.total_steps) + episodes
    first = dataset[0]
    parts = _state_parts(first.observations, name)
    states = np.zeros((rows, *_states(first.observations, parts).shape[1:]), np.float32)
    actions = np.zeros((rows, *np.shape(first.actions)[1:]), np.float32)
    rewards, terminals = np.zeros(rows, np.float32), np.zeros(rows, np.bool_)
    offsets = np.zeros(episodes + 1, np.int64)
    for number, episode in enumerate(dataset.iterate_episodes()):
        state, action = _states(episode.observations, parts), np.asarray(episode.actions)
        if state.ndim != 2 or action.ndim != 2 or len(state) != len(action) + 1:
            raise DataError(
                f"{name}: episode {number} has observations {state.shape} and actions {action.shape}; "
                "expected [T+1, S] and [T, A]"
            )
        start, end = offsets[number], offsets[number] + len(state)
        if end > rows:
            break
        offsets[number + 1] = end
        states[start:end], actions[start : end - 1] = state, action
        rewards[start : end - 1], terminals[start : end - 1] = episode.rewards, episode.terminations
    if offsets[-1] != rows:
        raise FormatError(f"{name}: the episodes do not add up to the {dataset.total_steps} steps announced")
    return Trajectories(states, actions, offsets, rewards, terminals, name)


def _state_parts(observations: Any, name: str) -> tuple[str, ...]:
    """Which entries of a dictionary observation make the state; none for a plain array.

    Goal environments give observation, achieved_goal and desired_goal. The goal wanted is no part of the
    state. The goal achieved is (AntMaze: the position, without which the maze cannot be seen), unless
    the observation holds it already (PointMaze). Kitchen's achieved_goal, itself a dictionary, is a
    reading of the observation.
    """
    if not isinstance(observations, dict):
        return ()
    if not isinstance(observations.get("observation"), np.ndarray):
        raise DataError(
            f"{name}: observations are a dictionary of {_listed(sorted(observations))}; "
            "expected an array, or a dictionary with an array 'observation'"
        )
    achieved = observations.get("achieved_goal")
    if not isinstance(achieved, np.ndarray):
        return ("observation",)
    columns = observations["observation"].T
    held = all(any(np.array_equal(goal, column) for column in columns) for goal in achieved.T)
    return ("observation",) if held else ("achieved_goal", "observation")


def _states(observations: Any, parts: tuple[str, ...]) -> Any:
    """[T+1, S]"""
    return np.concatenate([observations[part] for part in parts], 1) if parts else np.asarray(observations)
