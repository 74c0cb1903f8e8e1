"""(s − μ)/σ with statistics in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sageplan.types import FloatArray

CONSTANT = 1e-6  # below this a dimension is constant: dividing by its σ would turn rounding into ±1
_CHUNK_ROWS = 65_536


class Normaliser(nn.Module):
    """Standardises the last dimension. Constant dimensions are only centred.

    mean [S], std [S] (1 where constant)
    """

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    @classmethod
    def fit(cls, values: FloatArray) -> Normaliser:
        """values [N, S]. Two chunked passes: the naive E[x²] − E[x]² loses a small σ beside a large μ."""
        count, size = values.shape
        chunks = [slice(i, i + _CHUNK_ROWS) for i in range(0, count, _CHUNK_ROWS)]
        mean = np.sum([values[c].sum(0, dtype=np.float64) for c in chunks], axis=0) / count
        square = np.sum([np.square(values[c] - mean).sum(0) for c in chunks], axis=0)
        std = np.sqrt(square / count)
        std[std < CONSTANT * np.maximum(1.0, np.abs(mean))] = 1.0
        self = cls(size)
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy(std))
        return self

    def forward(self, values: Tensor) -> Tensor:
        """[..., S] raw units to [..., S] normalised."""
        return (values - self.mean) / self.std
