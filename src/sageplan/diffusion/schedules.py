"""Variance-preserving noise schedules: x_t = α_t x_0 + σ_t ε with α² + σ² = 1."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosine(levels: int) -> tuple[Tensor, Tensor]:
    """α [levels], σ [levels] of the cosine schedule, from nearly clean to nearly noise."""
    shift = 0.008
    time = torch.linspace(1e-3, 1.0, levels, dtype=torch.float64).clamp(max=0.9946)  # α stays above zero
    alpha = torch.cos(math.pi / 2 * (time + shift) / (1 + shift)) / math.cos(math.pi / 2 * shift / (1 + shift))
    return alpha.float(), (1 - alpha.square()).sqrt().float()
