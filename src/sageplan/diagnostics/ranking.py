"""Does the gate rank the true continuation above candidates with shuffled actions?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from sageplan.diagnostics.corruption import derangement
from sageplan.gate.score import longest_segments
from sageplan.types import Trajectories

if TYPE_CHECKING:
    from sageplan.gate.gate import Gate


class Ranking(NamedTuple):
    """first: share of pools in which the true continuation has the lowest energy of all (chance: 1/candidates).

    below: share of shuffled candidates that have a higher energy than the true one of their pool (chance: 1/2).
    """

    first: float
    below: float
    candidates: int
    prefix: int


def rank_true_continuation(
    gate: Gate, data: Trajectories, *, pools: int = 400, candidates: int = 50, prefix: int = 10, seed: int = 0
) -> Ranking:
    """Pools of one held-out continuation and `candidates` − 1 copies of it whose actions are permuted in time."""
    generator = torch.Generator().manual_seed(seed)
    stride = gate.config.stride
    states, actions = longest_segments(gate.held_out(data), prefix, stride).sample(pools, generator)
    count, length, size = actions.shape
    orders = torch.stack([derangement(length, generator) for _ in range(count * (candidates - 1))])
    orders = orders.view(count, candidates - 1, length, 1).expand(-1, -1, -1, size)
    shuffled = actions[:, None].expand(-1, candidates - 1, -1, -1).gather(2, orders)
    energy = gate.energy(
        states[:, None].expand(-1, candidates, -1, -1),
        torch.cat([actions[:, None], shuffled], dim=1),
        prefix=length,
        stride=stride,
    )
    higher = energy[:, 1:] > energy[:, :1]
    return Ranking(float(higher.all(1).float().mean()), float(higher.float().mean()), candidates, length)
