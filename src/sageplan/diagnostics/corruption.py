"""Ways to make recorded transitions impossible without making any single state or action unlikely."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Corruption = Literal["shuffle", "action-noise", "state-noise"]
CORRUPTIONS: tuple[Corruption, ...] = get_args(Corruption)


def derangement(count: int, generator: torch.Generator) -> Tensor:
    """[count] a random cyclic permutation: no element keeps its place (for count ≥ 2)."""
    order = torch.randperm(count, generator=generator, device=generator.device)
    permutation = torch.empty_like(order)
    permutation[order] = order.roll(1)
    return permutation


def inside(begin: Tensor, width: int, length: int) -> Tensor:
    """[N] first steps to [N, length] bool: the steps begin..begin+width."""
    step = torch.arange(length) - begin[:, None]
    return (step >= 0) & (step < width)


def corrupt(
    states: Tensor, actions: Tensor, begin: Tensor, width: int, kind: Corruption, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """states [N, T+1, S] and actions [N, T, A] with the steps begin[i]..begin[i]+width of segment i corrupted.

    shuffle       the segment's own actions, moved in time; every action keeps out of its place
    action-noise  one standard deviation of Gaussian noise on the actions
    state-noise   half a standard deviation on the states between the first and the last of those steps
    """
    count, length, _ = actions.shape
    if kind == "shuffle":
        source = torch.arange(length).repeat(count, 1)
        for row, first in enumerate(begin.tolist()):
            source[row, first : first + width] = first + derangement(width, generator)
        return states, actions.gather(1, source.unsqueeze(-1).expand_as(actions))
    if kind == "action-noise":
        noise = torch.randn(actions.shape, generator=generator) * actions.flatten(0, 1).std(0)
        return states, actions + noise * inside(begin, width, length).unsqueeze(-1)
    noise = torch.randn(states.shape, generator=generator) * (0.5 * states.flatten(0, 1).std(0))
    return states + noise * inside(begin + 1, width - 1, length + 1).unsqueeze(-1), actions
