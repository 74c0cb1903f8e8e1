"""What a planner and a scorer are. Neither knows that a gate exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from sageplan.errors import ConfigError, DataError
from sageplan.types import Plans

Chance = torch.Generator | Sequence[torch.Generator]
"""Where randomness comes from: one generator for the whole batch, or one per observation, so that what is proposed
for an observation does not depend on which others it is asked for with."""


class Planner(Protocol):
    """Proposes candidates; one step of a plan lasts `stride` environment steps.

    One whose plans for an observation do not depend, to the last bit, on which others it is asked for with says so by
    `independent = True`, and is asked for all at once; others, and scorers alike, for blocks of one size.
    One that can begin from the plan before says so by `warm_starts = True`; evaluations then also give it `previous`
    and `passed`, as `Veteran.propose` explains them.
    """

    stride: int

    def propose(self, observations: Tensor, candidates: int, generator: Chance) -> Plans:
        """Raw observations [B, S] to plans with C = candidates, whose states[:, :, 0] are the observations."""


class Scorer(Protocol):
    """Values plans: J."""

    def __call__(self, plans: Plans) -> Tensor:
        """[B, C], higher is better."""


def noise(shape: Sequence[int], generator: Chance, device: torch.device) -> Tensor:
    """Standard normal numbers [B, ...]; with a generator per row, row b comes from generator[b] alone."""
    if isinstance(generator, torch.Generator):
        return torch.randn(tuple(shape), generator=generator, device=device)
    return torch.stack([torch.randn(tuple(shape[1:]), generator=row, device=device) for row in generator])


def check_request(observations: Tensor, state_dim: int, candidates: int, generator: Chance) -> None:
    """Refuse what no planner can answer."""
    if observations.ndim != 2 or observations.shape[1] != state_dim or not len(observations):
        raise DataError(f"observations have shape {tuple(observations.shape)}, expected [B, {state_dim}]")
    if not observations.isfinite().all():
        raise DataError("observations hold NaN or infinite values; nothing can be planned from them")
    if candidates < 1:
        raise ConfigError(f"a planner proposes at least 1 candidate, not {candidates}")
    if not isinstance(generator, torch.Generator) and len(generator) != len(observations):
        raise ConfigError(f"{len(generator)} generators for {len(observations)} observations; give one, or one each")
