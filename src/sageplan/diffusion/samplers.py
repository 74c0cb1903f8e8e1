"""DDPM, DDIM and DPM-Solver++ (2M): three tables of coefficients for one linear recursion.

A sampler walks down noise levels n = N … 0, given as α and σ. With x̂ the clean estimate at level n and x̂⁺ the one at
the level before it, each step is

    x_{n−1} = keep·x_n + clean·x̂ + before·x̂⁺ + noise·ε

so the solvers differ in four numbers per step, which are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sageplan.errors import ConfigError

Solver = Literal["ddpm", "ddim", "dpm++"]
Prediction = Literal["noise", "clean", "velocity"]
"""ε, x_0, or α ε − σ x_0, whose errors count little at either end of the levels"""

_FIRST_ORDER_END = 15  # DPM-Solver++ in fewer steps than this ends with one of first order, as its authors advise


@dataclass(frozen=True)
class Sampling:
    """How plans are drawn from a diffusion model. The defaults are DV's."""

    solver: Solver = "ddim"
    steps: int = 20
    temperature: float = 1.0
    """scales the initial noise, and that alone"""
    clip: float | None = None
    """largest absolute value of a clean estimate, in normalised units"""


@dataclass(frozen=True, eq=False)
class Coefficients:
    """What step i = 0 … N−1, from pure noise on, multiplies with; Python floats, so that tensors stay float32."""

    alpha: Sequence[float]
    sigma: Sequence[float]
    keep: Sequence[float]
    clean: Sequence[float]
    before: Sequence[float]
    noise: Sequence[float]

    def __len__(self) -> int:
        return len(self.keep)

    @property
    def stochastic(self) -> bool:
        """Whether steps add noise."""
        return any(self.noise)


def coefficients(solver: Solver, alpha: Tensor, sigma: Tensor) -> Coefficients:
    """alpha, sigma [N+1] of the levels, from the cleanest, which is returned, to the noisiest, which is begun at."""
    if len(alpha) < 2:
        raise ConfigError("a sampler needs at least one step")
    alpha, sigma = alpha.double().flip(0), sigma.double().flip(0)
    now_a, next_a, now_s, next_s = alpha[:-1], alpha[1:], sigma[:-1], sigma[1:]
    none = torch.zeros_like(now_a)
    if solver == "ddpm":
        ratio = now_a / next_a
        fresh = (now_s.square() - (ratio * next_s).square()).clamp(min=0)  # noise that this level has on the next
        keep = ratio * (next_s / now_s).square()
        added = next_s / now_s * fresh.sqrt()
        added[-1] = 0  # what is returned is the mean of the last step
        parts = (keep, next_a * fresh / now_s.square(), none, added)
    else:
        keep = next_s / now_s
        clean = next_a - keep * now_a
        before = none
        if solver == "dpm++":
            before = _second_order(alpha, sigma) * clean
        parts = (keep, clean - before, before, none)
    return Coefficients(*(part.tolist() for part in (now_a, now_s, *parts)))


def _second_order(alpha: Tensor, sigma: Tensor) -> Tensor:
    """[N] −1/2r of each step: the weight of the estimate before, taken off the newest one."""
    log_snr = (alpha / sigma).log()  # infinite at a level without noise
    width = log_snr.diff()
    weight = torch.zeros_like(width)
    weight[1:] = -width[1:] / (2 * width[:-1])
    if len(width) < _FIRST_ORDER_END or sigma[-1] == 0:
        weight[-1] = 0
    return weight


def sample(
    denoiser: Callable[[Tensor, int], Tensor],
    steps: Coefficients,
    noise: Sequence[Tensor],
    *,
    prediction: Prediction = "noise",
    temperature: float = 1.0,
    clip: float | None = None,
    fix: Callable[[Tensor], None] | None = None,
    begin: Tensor | None = None,
    first: int = 0,
) -> Tensor:
    """Walk down all levels. Equal noise gives equal samples.

    denoiser  (x, i) to what it predicts of x at step i
    noise     [0] is x at the first step, before the temperature; [1:] is what each step but the last adds, and is
              looked at by solvers that add some
    fix       writes what is known into x in place: before the first step, and after every one
    begin     x to begin with at step `first`, already as noisy as that level is, in the place of pure noise
    """
    x = noise[0] * temperature if begin is None else begin.clone()
    if fix is not None:
        fix(x)
    older: Tensor | None = None
    for i in range(first, len(steps)):
        clean = denoiser(x, i)
        if prediction == "noise":
            clean = (x - steps.sigma[i] * clean) / steps.alpha[i]
        elif prediction == "velocity":
            clean = steps.alpha[i] * x - steps.sigma[i] * clean
        if clip is not None:
            clean = clean.clamp(-clip, clip)
        before = steps.before[i] if older is not None else 0.0
        x = steps.keep[i] * x + (steps.clean[i] + steps.before[i] - before) * clean
        if older is not None and before:
            x += before * older
        if steps.noise[i]:
            x += steps.noise[i] * noise[i + 1 - first]
        if fix is not None:
            fix(x)
        older = clean
    return x
