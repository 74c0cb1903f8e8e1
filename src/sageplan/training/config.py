"""How a learner is optimised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Optimiser:
    """AdamW with linear warm-up and cosine decay. The defaults are the paper's for Stage I."""

    steps: int = 200_000
    batch: int = 512
    rate: float = 1e-4
    final_rate: float = 1e-6
    warmup: int = 5_000
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    """not in the paper; AdamW's defaults"""
    clip: float | None = 1.0
    """largest gradient norm"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 autocasts the forward pass; losses and weights stay in fp32"""
    compile: bool = False
    """torch.compile of each network; no gain on a CPU (measured), meant for CUDA"""

    def rate_at(self, step: int) -> float:
        """Learning rate of update number `step`, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.final_rate + 0.5 * (self.rate - self.final_rate) * (1 + math.cos(math.pi * min(1.0, progress)))
