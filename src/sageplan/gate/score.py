"""The energy of every transition of a data set, in windows laid over its episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sageplan.data.windows import Windows, as_tensor
from sageplan.errors import DataError
from sageplan.types import FloatArray, IntArray, Trajectories

_WINDOWS = 512  # scored together


def score_transitions(
    energy: Callable[[Tensor, Tensor], Tensor], data: Trajectories, window: int, stride: int
) -> FloatArray:
    """[N] energies; NaN in rows without a row `stride` further on in their episode.

    energy maps states [n, W+1, S] and actions [n, W, A] to step energies [n, W]. Windows overlap by half, as
    they do for long plans, and each transition is scored once, by the window in which it is new.
    """
    first, begin, last = _lay_windows(data, window, stride)
    states, actions = as_tensor(data.states), as_tensor(data.actions)
    steps = np.arange(window + 1)
    out = np.full(len(data), np.nan, np.float32)
    for batch in range(0, len(first), _WINDOWS):
        some = slice(batch, batch + _WINDOWS)
        rows = first[some, None] + stride * steps
        real = rows[:, 1:] <= last[some, None]
        fresh = real & (steps[:-1] >= begin[some, None])
        rows = np.minimum(rows, last[some, None])  # beyond the end: any row, f is causal
        energies = energy(states[torch.from_numpy(rows)], actions[torch.from_numpy(rows[:, :-1])]).numpy()
        out[rows[:, :-1][fresh]] = energies[fresh]
    return out


def _lay_windows(data: Trajectories, window: int, stride: int) -> tuple[IntArray, IntArray, IntArray]:
    """[M] each: a window's first row, its first new step, and the last row of its sequence.

    A stride of m cuts an episode into m interleaved sequences.
    """
    phase = np.arange(stride)
    first = (data.offsets[:-1, None] + phase).ravel()
    room = (data.lengths[:, None] - 1 - phase).ravel() // stride  # transitions in each sequence
    first, room = first[room > 0], room[room > 0]
    if not len(first):
        raise DataError(
            f"{data.name}: no transition to score: the longest of {data.num_episodes} episodes has "
            f"{data.lengths.max()} rows, stride {stride} needs {stride + 1}"
        )
    hop = max(1, window // 2)
    count = 1 + -(-np.maximum(room - window, 0) // hop)  # windows per sequence
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    begin = np.where(number == 0, 0, window - hop)
    return (
        np.repeat(first, count) + stride * hop * number,
        begin,
        np.repeat(first + stride * room, count),
    )


def longest_segments(data: Trajectories, steps: int, stride: int) -> Windows:
    """Windows of `steps` steps, or of as many as the longest episode has."""
    room = (int(data.lengths.max()) - 1) // stride
    if room < 1:
        raise DataError(f"{data.name}: no episode has two rows {stride} apart")
    return Windows(data, min(steps, room) + 1, stride=stride)


class Stretch(NamedTuple):
    """Consecutive transitions of one episode: steps first..last, counted from its start, and their mean energy."""

    episode: int
    first: int
    last: int
    energy: float


def worst_stretches(energy: FloatArray, data: Trajectories, width: int, count: int) -> list[Stretch]:
    """The `count` stretches of `width` transitions with the highest mean energy, none overlapping another.

    energy [N] as `score_transitions` gives it. Episodes with fewer transitions count as one stretch.
    """
    finite = np.isfinite(energy)
    total = np.concatenate([[0.0], np.cumsum(np.where(finite, energy, 0.0), dtype=np.float64)])
    scored = np.concatenate([[0], np.cumsum(finite)])
    stop = np.minimum(np.arange(len(energy)) + width, np.repeat(data.offsets[1:], data.lengths))
    begin = np.arange(len(energy))
    room = scored[stop] - scored[begin]
    whole = np.minimum(width, np.repeat(scored[data.offsets[1:]] - scored[data.offsets[:-1]], data.lengths))
    mean = np.where((room > 0) & (room == whole), (total[stop] - total[begin]) / np.maximum(room, 1), -np.inf)

    found: list[Stretch] = []
    while len(found) < count and np.isfinite(best := mean.max()):
        row = int(mean.argmax())
        episode = int(np.searchsorted(data.offsets, row, "right")) - 1
        start = int(data.offsets[episode])
        found.append(Stretch(episode, row - start, row - start + int(room[row]) - 1, float(best)))
        mean[max(start, row - width + 1) : stop[row]] = -np.inf
    return found
