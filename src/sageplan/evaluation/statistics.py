"""Means with errors, differences with intervals, and p values that claim no more than the sample can carry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from sageplan.errors import DataError
from sageplan.evaluation.student import critical, upper_tail

Sample = npt.ArrayLike
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error s/√n, which is NaN for a single number."""

    count: int
    mean: float
    se: float


@dataclass(frozen=True)
class TwoLevel:
    """Training seeds and, within each, episodes: two sources of chance that must not be pooled.

    mean        over training seeds of the mean over episodes
    se          between training seeds: how far another training run may lie off; NaN for one seed
    se_within   of the same mean, from episodes alone: what more episodes would shrink
    """

    training_seeds: int
    episodes: int
    mean: float
    se: float
    se_within: float


@dataclass(frozen=True)
class Difference:
    """Treatment minus control. p_greater is against "no better", p against "no different"."""

    delta: float
    low: float
    high: float
    t: float
    dof: float
    p_greater: float
    p: float
    confidence: float


@dataclass(frozen=True)
class Interval:
    """An estimate between the ends of its confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float


def mean(values: Sample) -> Mean:
    """values [n]"""
    x = as_sample("values", values)
    return Mean(len(x), float(x.mean()), float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan)


def two_level(episodes_of: Sequence[Sample] | Mapping[int, Sample]) -> TwoLevel:
    """One sample of episodes per training seed."""
    samples = list(episodes_of.values()) if isinstance(episodes_of, Mapping) else list(episodes_of)
    if not samples:
        raise DataError("no training seeds to average over")
    each = [mean(sample) for sample in samples]
    between = mean([one.mean for one in each])
    within = math.sqrt(sum(one.se**2 for one in each)) / len(each)
    return TwoLevel(len(each), sum(one.count for one in each), between.mean, between.se, within)


def welch(treatment: Sample, control: Sample, confidence: float = 0.95) -> Difference:
    """Of two independent samples of unequal variance, with Welch–Satterthwaite degrees of freedom."""
    a, b = as_sample("treatment", treatment, 2), as_sample("control", control, 2)
    one, two = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    total = one + two
    # shares of the whole: their squares cannot underflow
    dof = len(a) + len(b) - 2.0
    if total > 0:
        dof = 1 / ((one / total) ** 2 / (len(a) - 1) + (two / total) ** 2 / (len(b) - 1))
    return _difference(float(a.mean() - b.mean()), math.sqrt(total), float(dof), confidence)


def paired(treatment: Sample, control: Sample, confidence: float = 0.95) -> Difference:
    """Of two samples [n] whose entries belong together."""
    gap = gaps(treatment, control)
    if len(gap) < 2:
        raise DataError(f"a paired difference needs at least 2 pairs, got {len(gap)}")
    return _difference(float(gap.mean()), float(gap.std(ddof=1) / math.sqrt(len(gap))), float(len(gap) - 1), confidence)


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a success rate."""
    if not 0 <= successes <= trials or trials < 1:
        raise DataError(f"{successes} successes in {trials} trials make no rate")
    z = NormalDist().inv_cdf(0.5 + check_confidence(confidence) / 2)
    rate, weight = successes / trials, z * z / trials
    centre = (rate + weight / 2) / (1 + weight)
    half = z * math.sqrt(rate * (1 - rate) / trials + weight / (4 * trials)) / (1 + weight)
    low = 0.0 if successes == 0 else max(0.0, centre - half)  # exactly, where rounding would leave 1e-18
    return Interval(rate, low, 1.0 if successes == trials else min(1.0, centre + half), confidence)


def _difference(delta: float, se: float, dof: float, confidence: float) -> Difference:
    tail = (1 - check_confidence(confidence)) / 2
    t = delta / se if se > 0 else math.copysign(math.inf, delta) if delta else 0.0
    half = critical(tail, dof) * se if se > 0 else 0.0
    return Difference(
        delta, delta - half, delta + half, t, dof, upper_tail(t, dof), min(1.0, 2 * upper_tail(abs(t), dof)), confidence
    )


def gaps(treatment: Sample, control: Sample) -> Float64Array:
    a, b = as_sample("treatment", treatment), as_sample("control", control)
    if len(a) != len(b):
        raise DataError(f"{len(a)} and {len(b)} numbers make no pairs; give the same episode seeds to both")
    return a - b


def as_sample(name: str, values: Sample, least: int = 1) -> Float64Array:
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or len(x) < least:
        raise DataError(f"{name} has shape {x.shape}, expected [n] with n ≥ {least}")
    if not np.isfinite(x).all():
        raise DataError(f"{name} holds {int((~np.isfinite(x)).sum())} NaN or infinite numbers")
    return x


def check_confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise DataError(f"confidence is in (0, 1), got {confidence}")
    return confidence
