"""Windows of consecutive rows that never cross an episode boundary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sageplan.errors import DataError
from sageplan.types import FloatArray, Trajectories


class Batch(NamedTuple):
    """states [B, n, S]   actions [B, n−1, A]   raw units"""

    states: Tensor
    actions: Tensor


def as_tensor(array: FloatArray) -> Tensor:
    """The same memory, or a copy of an array that is read-only (of which torch would warn) or not laid out by rows."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


class Windows:
    """Every window of `length` states, `stride` rows apart, inside one of the given episodes.

    Windows are numbered 0..len−1 episode by episode; gathering a batch is one indexed read of each array.
    Episodes shorter than the window hold none; they are dropped. With `padded` they are not: every row begins a
    window, and an episode's last state goes on for ever, under actions of zero.
    """

    def __init__(
        self,
        data: Trajectories,
        length: int,
        *,
        stride: int = 1,
        episodes: np.ndarray | None = None,
        padded: bool = False,
    ) -> None:
        span = (length - 1) * stride + 1
        starts, lengths = data.offsets[:-1], data.lengths
        if episodes is not None:
            starts, lengths = starts[episodes], lengths[episodes]
        counts = lengths if padded else np.maximum(lengths - span + 1, 0)
        usable = counts > 0
        if not usable.any():
            raise DataError(
                f"{data.name}: none of {len(lengths)} episodes is long enough: the longest has "
                f"{lengths.max(initial=0)} rows, a window needs {span} ({length} states, stride {stride})"
            )
        self.length, self.stride = length, stride
        self._states, self._actions = as_tensor(data.states), as_tensor(data.actions)
        self._ends = torch.from_numpy(np.cumsum(counts[usable]))  # windows up to and including each episode
        self._shift = torch.from_numpy(starts[usable]) - torch.cat([self._ends.new_zeros(1), self._ends[:-1]])
        self._steps = torch.arange(length) * stride
        self._last = torch.from_numpy((starts + lengths - 1)[usable]) if padded else None
        if not padded:
            self._state_windows = _overlapping(self._states, length, stride, span)
            self._action_windows = _overlapping(self._actions, length - 1, stride, span)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def rows(self, numbers: Tensor) -> Tensor:
        """[B] window numbers to [B, n] rows of the data."""
        episode = torch.searchsorted(self._ends, numbers, right=True)
        rows = (numbers + self._shift[episode])[:, None] + self._steps
        return rows if self._last is None else rows.minimum(self._last[episode, None])

    def gather(self, numbers: Tensor) -> Batch:
        """[B] window numbers to their states and actions."""
        if self._last is None:
            begin = numbers + self._shift[torch.searchsorted(self._ends, numbers, right=True)]
            return Batch(self._state_windows.index_select(0, begin), self._action_windows.index_select(0, begin))
        rows = self.rows(numbers)
        actions = self._actions[rows[:, :-1]]
        actions[rows[:, 1:] == rows[:, :-1]] = 0
        return Batch(self._states[rows], actions)

    def sample(self, batch: int, generator: torch.Generator) -> Batch:
        """Uniform over all windows, with replacement. The generator's state is all there is to resume."""
        return self.gather(torch.randint(len(self), (batch,), generator=generator))


def _overlapping(rows: Tensor, length: int, stride: int, span: int) -> Tensor:
    """[N, size] to a view [N − span + 1, length, size] of what begins in each row.

    Selecting from it copies whole windows at a time, ten times as fast as selecting their rows one by one.
    """
    size = rows.shape[1]
    return rows.as_strided((len(rows) - span + 1, length, size), (size, stride * size, 1))
