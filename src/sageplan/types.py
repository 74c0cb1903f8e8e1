"""The values that everything else passes around: recorded trajectories, candidate plans and a decision."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from sageplan.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ArrayT = TypeVar("ArrayT", npt.NDArray[Any], torch.Tensor)

_CHECK_ROWS = 65_536  # rows looked at together, so that a check never needs a second copy of the data


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Recorded episodes, laid end to end. No row refers to a row of another episode.

    states     [N, S] float32   state before the action of the same row
    actions    [N, A] float32   the action of an episode's last row leads to a state that is not recorded
    offsets    [E+1]  int64     episode e is rows offsets[e]:offsets[e+1]
    rewards    [N]    float32   optional, as recorded
    terminals  [N]    bool      optional, as recorded
    name       what error messages and reports call this data
    """

    states: FloatArray
    actions: FloatArray
    offsets: IntArray
    rewards: FloatArray | None = None
    terminals: BoolArray | None = None
    name: str = "data"

    def __post_init__(self) -> None:
        _check_shapes(self)
        for field in ("states", "actions", "rewards"):
            _check_finite(field, getattr(self, field), self.name)

    def __len__(self) -> int:
        return len(self.states)

    @property
    def state_dim(self) -> int:
        return int(self.states.shape[1])

    @property
    def action_dim(self) -> int:
        return int(self.actions.shape[1])

    @property
    def lengths(self) -> IntArray:
        """[E] rows per episode."""
        return np.diff(self.offsets)

    @property
    def num_episodes(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def from_arrays(
        cls,
        states: npt.ArrayLike,
        actions: npt.ArrayLike,
        *,
        rewards: npt.ArrayLike | None = None,
        terminals: npt.ArrayLike | None = None,
        timeouts: npt.ArrayLike | None = None,
        ends: npt.ArrayLike | None = None,
        name: str = "data",
    ) -> Trajectories:
        """Flat arrays in, float32 views out where the input allows it.

        states [N, S], actions [N, A], the rest [N]. `ends` marks the last row of each episode;
        without it an episode ends where `terminals` or `timeouts` is true. The last row always ends one.
        """
        states = _float32("states", states, name)
        rows = len(states)
        flags = [_flags(n, f, rows, name) for n, f in
                 (("terminals", terminals), ("timeouts", timeouts), ("ends", ends)) if f is not None]  # fmt: skip
        boundary = flags[-1] if ends is not None else np.logical_or.reduce(flags) if flags else None
        return cls(
            states=states,
            actions=_float32("actions", actions, name),
            offsets=offsets_from_ends(boundary, rows),
            rewards=None if rewards is None else _float32("rewards", rewards, name),
            terminals=None if terminals is None else _flags("terminals", terminals, rows, name),
            name=name,
        )

    @classmethod
    def from_episodes(
        cls, episodes: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]], *, name: str = "data"
    ) -> Trajectories:
        """Pairs of states [T+1, S] (or [T, S]) and actions [T, A], one pair per episode.

        With T+1 states the final row gets a zero action, which no window ever uses.
        """
        states: list[FloatArray] = []
        actions: list[FloatArray] = []
        ends: list[int] = []
        for number, (s, a) in enumerate(episodes):
            s, a = _float32("states", s, name), _float32("actions", a, name)
            if s.ndim != 2 or a.ndim != 2 or not len(s) or len(s) - len(a) not in (0, 1):
                raise DataError(
                    f"{name}: episode {number} has states {s.shape} and actions {a.shape}; "
                    "expected [T+1, S] or [T, S] and [T, A]"
                )
            if states and (s.shape[1], a.shape[1]) != (states[0].shape[1], actions[0].shape[1]):
                raise DataError(
                    f"{name}: episode {number} has states {s.shape} and actions {a.shape}; "
                    f"episode 0 has S = {states[0].shape[1]} and A = {actions[0].shape[1]}"
                )
            states.append(s)
            actions.append(a if len(a) == len(s) else np.pad(a, ((0, 1), (0, 0))))
            ends.append(len(s))
        if not states:
            raise DataError(f"{name}: no episodes given")
        offsets = np.concatenate([[0], np.cumsum(ends)]).astype(np.int64)
        return cls(np.concatenate(states), np.concatenate(actions), offsets, name=name)

    @classmethod
    def load(cls, path: str | Path) -> Trajectories:
        """D4RL HDF5 file, `.npz` archive, Minari data set folder, or `minari:ID`."""
        from sageplan.data.readers import load

        return load(path)

    def episodes(self, numbers: Sequence[int] | IntArray) -> Trajectories:
        """A copy that holds only these episodes, in this order."""
        numbers = np.asarray(numbers, dtype=np.int64)
        return self.cut(np.stack([self.offsets[numbers], self.offsets[numbers + 1]], 1))

    def cut(self, spans: IntArray) -> Trajectories:
        """A copy whose episodes are the rows from spans[:, 0] up to spans[:, 1], spans [M, 2]."""
        lengths = spans[:, 1] - spans[:, 0]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows = np.repeat(spans[:, 0] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Trajectories(
            self.states[rows],
            self.actions[rows],
            offsets,
            None if self.rewards is None else self.rewards[rows],
            None if self.terminals is None else self.terminals[rows],
            self.name,
        )

    def split(self, held_out: float, seed: int) -> tuple[IntArray, IntArray]:
        """Episode numbers for training and for validation; a whole episode goes to one side.

        `held_out` is a share of the rows, met to within one episode; both sides are never empty.
        """
        if self.num_episodes < 2:
            raise DataError(
                f"{self.name}: one episode cannot be split into training and held-out episodes; "
                "mark episode ends (timeouts, terminals or ends)"
            )
        order = np.random.default_rng(seed).permutation(self.num_episodes)
        rows = np.cumsum(self.lengths[order])
        count = int(np.clip(np.searchsorted(rows, held_out * len(self)) + 1, 1, self.num_episodes - 1))
        return np.sort(order[count:]), np.sort(order[:count])

    def fingerprint(self) -> str:
        """SHA-256 of all that a fit depends on; equal data gives an equal fingerprint."""
        digest = hashlib.sha256()
        for array in (self.states, self.actions, self.offsets):
            digest.update(str((array.shape, array.dtype)).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Plans:
    """Candidate plans, in raw units.

    states   [B, C, H+1, S]  states[:, :, 0] is the observed state
    actions  [B, C, H, A]    None from planners that propose states only
    """

    states: torch.Tensor
    actions: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Choice(Generic[ArrayT]):
    """One decision per observation. Without the batch dimension B when the input had none.

    index    [B]           candidate to execute
    energy   [B, C]        mean energy of the scored prefix; inf where it could not be computed
    score    [B, C]        value − penalty·energy, −inf for candidates that were dropped
    kept     [B, C] bool   candidates that survived the energy filter
    actions  [B, C, K, A]  actions of the scored prefix (drawn by inverse dynamics, or as given); None from `select`
    """

    index: ArrayT
    energy: ArrayT
    score: ArrayT
    kept: ArrayT
    actions: ArrayT | None = None

    @property
    def action(self) -> ArrayT:
        """[B, A] first action of the chosen candidate: the one that was scored."""
        if self.actions is None:
            raise DataError("this choice was made from energies alone and holds no actions")
        winner: ArrayT
        if self.index.ndim == 0:
            winner = self.actions[self.index, 0]
            return winner
        batch = range(len(self.index))
        winner = self.actions[list(batch), self.index, 0]
        return winner


def offsets_from_ends(ends: BoolArray | None, rows: int) -> IntArray:
    """[E+1] episode offsets from flags [N] of last rows; the final row always ends an episode."""
    last = np.empty(0, np.int64) if ends is None else np.flatnonzero(ends) + 1
    if not len(last) or last[-1] != rows:
        last = np.append(last, rows)
    return np.concatenate([[0], last]).astype(np.int64)


def _float32(field: str, values: npt.ArrayLike, name: str) -> FloatArray:
    try:
        return np.ascontiguousarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: {field} cannot be read as an array of numbers ({error})") from None


def _flags(field: str, values: npt.ArrayLike, rows: int, name: str) -> BoolArray:
    flags = np.asarray(values)
    if flags.shape != (rows,):
        raise DataError(f"{name}: {field} has shape {flags.shape}, expected ({rows},) like the states")
    return flags.astype(np.bool_, copy=False)


def _check_shapes(data: Trajectories) -> None:
    states, actions = data.states, data.actions
    for field, array in (("states", states), ("actions", actions)):
        if array.ndim != 2 or array.shape[1] == 0:
            raise DataError(f"{data.name}: {field} has shape {array.shape}, expected 2 dimensions [rows, size]")
    if len(states) == 0:
        raise DataError(f"{data.name}: no rows")
    for field in ("actions", "rewards", "terminals"):
        array = getattr(data, field)
        if array is not None and len(array) != len(states):
            raise DataError(f"{data.name}: {field} has {len(array)} rows, expected {len(states)} like the states")
    for field in ("rewards", "terminals"):
        array = getattr(data, field)
        if array is not None and array.ndim != 1:
            raise DataError(f"{data.name}: {field} has shape {array.shape}, expected ({len(states)},)")
    offsets = data.offsets
    rising = offsets.ndim == 1 and len(offsets) > 1 and bool((np.diff(offsets) > 0).all())
    if not rising or offsets[0] != 0 or offsets[-1] != len(states):
        raise DataError(f"{data.name}: offsets must rise from 0 to {len(states)}, got {offsets}")


def _check_finite(field: str, array: FloatArray | None, name: str) -> None:
    """Chunked, because a mask over all of a large data set would be a quarter of a second copy."""
    if array is None:
        return
    bad, first = 0, None
    for start in range(0, len(array), _CHECK_ROWS):
        chunk = array[start : start + _CHECK_ROWS]
        with np.errstate(invalid="ignore"):  # ∞ − ∞: reported below
            total = chunk.sum(dtype=np.float64)
        if np.isfinite(total):
            continue
        wrong = np.argwhere(~np.isfinite(chunk))
        if len(wrong) and first is None:
            first = (start + int(wrong[0, 0]), *(int(i) for i in wrong[0, 1:]))
        bad += len(wrong)
    if bad:
        place = f"row {first[0]}" + (f", column {first[1]}" if len(first) > 1 else "") if first else ""
        raise DataError(f"{name}: {field} holds {bad} NaN or infinite values, the first at {place}")
