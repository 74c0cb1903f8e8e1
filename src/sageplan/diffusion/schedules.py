"""Variance-preserving noise schedules: x_t = α_t x_0 + σ_t ε with α² + σ² = 1, in continuous time and in levels."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Schedule = Literal["linear", "cosine"]

FIRST = 1e-3  # the cleanest time: at 0 there is no noise to predict
_COSINE_LAST = 0.9946  # α stays above zero
_COSINE_SHIFT = 0.008
_BETA_MIN, _BETA_MAX = 0.1, 20.0


def alpha_sigma(schedule: Schedule, time: Tensor) -> tuple[Tensor, Tensor]:
    """α and σ, float32, at times in [FIRST, 1] of any shape: from nearly clean to nearly noise."""
    time = time.double()
    if schedule == "linear":
        log_alpha = -0.25 * (_BETA_MAX - _BETA_MIN) * time.square() - 0.5 * _BETA_MIN * time
        return log_alpha.exp().float(), (-torch.expm1(2 * log_alpha)).sqrt().float()
    time, shift = time.clamp(max=_COSINE_LAST), _COSINE_SHIFT
    alpha = torch.cos(math.pi / 2 * (time + shift) / (1 + shift)) / math.cos(math.pi / 2 * shift / (1 + shift))
    return alpha.float(), (1 - alpha.square()).sqrt().float()


def times(steps: int) -> Tensor:
    """[steps + 1] equidistant times, float64, from the cleanest to pure noise: what a sampler walks down."""
    return torch.linspace(FIRST, 1.0, steps + 1, dtype=torch.float64)


def cosine(levels: int) -> tuple[Tensor, Tensor]:
    """α [levels], σ [levels] of the cosine schedule, for models that know a fixed number of levels."""
    return alpha_sigma("cosine", torch.linspace(FIRST, 1.0, levels, dtype=torch.float64))
