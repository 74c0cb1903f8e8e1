"""Student's t distribution, exactly enough for any p that is worth printing, without SciPy."""

from __future__ import annotations

import math

_TINY = 1e-300


def upper_tail(t: float, dof: float) -> float:
    """P(T > t), with full relative precision however small it is."""
    if math.isnan(t) or math.isnan(dof):
        return math.nan
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    if math.isinf(dof):
        return 0.5 * math.erfc(t / math.sqrt(2))
    square = t * t
    tail = 0.5 * incomplete_beta(dof / 2, 0.5, dof / (dof + square), square / (dof + square))
    return tail if t >= 0 else 1 - tail


def critical(tail: float, dof: float) -> float:
    """The t with P(T > t) = tail, for a tail of at most one half."""
    low, high = 0.0, 1.0
    while upper_tail(high, dof) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if upper_tail(middle, dof) > tail:
            low = middle
        else:
            high = middle
    return high


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """I_x(a, b) with rest = 1 − x, which the caller knows better than a subtraction would."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(a * math.log(x) + b * math.log(rest) - _log_beta(a, b))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _log_beta(a: float, b: float) -> float:
    if a < 1e3:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    # Both log Γ(a) and log Γ(a + b) are huge; Stirling's series of their difference cancels by hand.
    ratio = (a - 0.5) * math.log1p(b / a) + b * math.log(a + b) - b + _stirling(a + b) - _stirling(a)
    return math.lgamma(b) - ratio


def _stirling(x: float) -> float:
    """log Γ(x) − (x − ½) log x + x − ½ log 2π, for large x."""
    return 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), by Lentz's method; converges fast for x below the mean."""
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > _TINY else _TINY)
            c = 1 + term / c
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
