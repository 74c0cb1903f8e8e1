"""From recorded episodes to the stretches that DV learns plans from, and their returns."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sageplan.errors import DataError
from sageplan.planners.config import Paths
from sageplan.types import BoolArray, FloatArray, IntArray, Trajectories

Float64Array = npt.NDArray[np.float64]


class ValuedPaths(NamedTuple):
    """Paths as episodes of their own, and the value [N] in [−1, 1] of each row."""

    data: Trajectories
    values: FloatArray


def valued_paths(data: Trajectories, config: Paths) -> ValuedPaths:
    """Cut, and value: returns from every row on, scaled so that the data's worst is −1 and its best 1.

    DV fills up shorter paths that are not padded with returns of 0, which then count among the worst and best.
    """
    data = cut(data, config)
    values = returns(data, config)
    low, high = values.min(), values.max()
    if not config.padded and data.lengths.min() < (config.max_length or 0):
        low, high = min(low, 0.0), max(high, 0.0)
    if high > low:
        values = 2 * (values - low) / (high - low) - 1
    return ValuedPaths(data, values.astype(np.float32))


def cut(data: Trajectories, config: Paths) -> Trajectories:
    """The paths, as episodes."""
    if config.kind == "episodes":
        return data
    if config.kind == "to terminal":
        if data.terminals is None:
            raise DataError(f"{data.name} has no terminals, which say where paths end")
        spans = _to_terminal(data.offsets, data.terminals)
    else:
        if data.rewards is None:
            raise DataError(f"{data.name} has no rewards, which say where paths end")
        spans = _to_reward(stretches(data), data.rewards == 1, config.max_length)
    if not len(spans):
        raise DataError(f"{data.name}: no path of it leads {config.kind}, so there is nothing to learn to plan from")
    return data.cut(spans)


def stretches(data: Trajectories) -> IntArray:
    """[M+1] offsets of the episodes, with those joined of which one goes on where the other ended.

    Maze2D's episodes end where the goal changes, while the ball rolls on. They are told from a new start by the step
    between them, which is then no larger than steps within episodes are.
    """
    states, inner = data.states, data.offsets[1:-1]
    step = np.zeros(data.state_dim, np.float32)
    for start, end in itertools.pairwise(data.offsets):
        if end - start > 1:
            np.maximum(step, np.abs(np.diff(states[start:end], axis=0)).max(0), out=step)
    joined = (np.abs(states[inner] - states[inner - 1]) <= step).all(1)
    return np.concatenate([data.offsets[:1], inner[~joined], data.offsets[-1:]])


def returns(data: Trajectories, config: Paths) -> Float64Array:
    """[N] discounted sum of rewards from each row to the end of its path.

    Padded paths go on with their last reward, until `max_length` rows are full; others end, with nothing after.
    """
    if data.rewards is None:
        raise DataError(f"{data.name} has no rewards, which a planner needs to tell good plans from bad ones")
    rewards = data.rewards.astype(np.float64) + config.reward_shift
    if config.fall_reward is not None and data.terminals is not None:
        rewards[data.terminals] = config.fall_reward
    last = data.offsets[1:] - 1
    total = np.zeros(len(last))
    if config.padded:
        missing = np.maximum((config.max_length or int(data.lengths.max())) - data.lengths, 0)
        gamma = config.discount
        total = rewards[last] * (missing if gamma == 1 else gamma * (1 - gamma**missing) / (1 - gamma))
    values = np.empty(len(rewards))
    # all paths at once, backwards from their ends, longest first so that those still running are a prefix
    order = np.argsort(-data.lengths, kind="stable")
    row, running, lengths = last[order], total[order], data.lengths[order]
    for back in range(int(lengths[0])):
        live = int(np.searchsorted(-lengths, -back, side="left"))
        running = rewards[row[:live] - back] + (config.discount if back or not config.padded else 1.0) * running[:live]
        values[row[:live] - back] = running
    return values


def _to_terminal(offsets: IntArray, terminals: BoolArray) -> IntArray:
    spans = []
    for start, end in itertools.pairwise(offsets):
        hits = np.flatnonzero(terminals[start:end])
        if len(hits):
            spans.append((start, start + hits[0] + 1))
    return np.array(spans, np.int64).reshape(-1, 2)


def _to_reward(offsets: IntArray, rewarded: BoolArray, max_length: int | None) -> IntArray:
    spans = []
    for start, end in itertools.pairwise(offsets):
        inside = rewarded[start:end].astype(np.int8)
        ends = start + np.flatnonzero(np.diff(inside) == 1) + 1  # rewarded rows after one that is not
        leave = start + np.flatnonzero(np.diff(inside) == -1) + 1
        begins = np.concatenate([[start], leave]) if not inside[0] else leave
        for begin, reach in zip(begins, ends, strict=False):  # the last beginning may reach no reward
            spans.append((begin if max_length is None else max(begin, reach - max_length + 1), reach + 1))
    return np.array(spans, np.int64).reshape(-1, 2)
