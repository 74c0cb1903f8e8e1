"""Stratified bootstrap: every task is resampled by itself, so that no draw can trade one task for another."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sageplan.errors import DataError
from sageplan.evaluation.statistics import Float64Array, Interval, Sample, as_sample, check_confidence, gaps

RESAMPLES = 10_000
_DRAWS = 1_000_000  # indices held at a time


class Pair(NamedTuple):
    """Episodes of one task under both arms: [n] and [m]; n = m and in the same order where they are paired."""

    treatment: Sample
    control: Sample


@dataclass(frozen=True)
class Bootstrap:
    """Δ = mean over tasks of mean differences, with a percentile interval.

    p_greater counts resamples in which the treatment is no better, p twice the rarer sign; neither can be
    smaller than 1/(resamples + 1), which is all that so many resamples can tell.
    """

    tasks: int
    delta: float
    low: float
    high: float
    p_greater: float
    p: float
    resamples: int
    confidence: float


def bootstrap(
    tasks: Mapping[str, Pair],
    *,
    paired: bool,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = 0.95,
) -> Bootstrap:
    """Of all tasks together. A task's draws depend on the seed and its name alone."""
    _check(tasks, resamples)
    draws = [_deltas(name, pair, paired, resamples, seed) for name, pair in tasks.items()]
    return _summarise(draws, [_observed(pair, paired) for pair in tasks.values()], resamples, confidence)


def bootstrap_domains(
    tasks: Mapping[str, Pair],
    domain_of: Mapping[str, str],
    *,
    paired: bool,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, Bootstrap]:
    """Per domain, in the order in which they first appear, and "all" of the tasks, each weighing the same."""
    _check(tasks, resamples)
    draws = {name: _deltas(name, pair, paired, resamples, seed) for name, pair in tasks.items()}
    observed = {name: _observed(pair, paired) for name, pair in tasks.items()}

    def of(names: Iterable[str]) -> Bootstrap:
        names = list(names)
        return _summarise([draws[n] for n in names], [observed[n] for n in names], resamples, confidence)

    domains = dict.fromkeys(domain_of[name] for name in tasks)
    return {d: of(n for n in tasks if domain_of[n] == d) for d in domains} | {"all": of(tasks)}


def interquartile_mean(
    tasks: Sequence[Sample] | Mapping[str, Sample],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval:
    """Mean of the middle half of all scores of all tasks; the interval resamples within each task."""
    named = dict(tasks) if isinstance(tasks, Mapping) else {str(i): sample for i, sample in enumerate(tasks)}
    _check(named, resamples)
    samples = {name: as_sample(name, sample) for name, sample in named.items()}
    sources = {name: _source(seed, name) for name in samples}
    together = sum(len(x) for x in samples.values())
    drawn = [
        _middle(np.concatenate([x[sources[n].integers(len(x), size=(rows, len(x)))] for n, x in samples.items()], 1))
        for rows in _portions(resamples, together)
    ]
    low, high = _percentiles(np.concatenate(drawn), confidence)
    return Interval(float(_middle(np.concatenate(list(samples.values()))[None])[0]), low, high, confidence)


def _middle(scores: Float64Array) -> Float64Array:
    """[R, n] to [R]: what is left when a quarter, rounded down, is cut off at both ends."""
    count = scores.shape[1]
    cut = count // 4
    middle: Float64Array = np.partition(scores, (cut, count - cut - 1), axis=1)[:, cut : count - cut].mean(1)
    return middle


def _observed(pair: Pair, paired: bool) -> float:
    """The very numbers and operations that the resamples use: without variance all are equal to the last bit."""
    if paired:
        return float(gaps(*pair).mean())
    return float(as_sample("treatment", pair.treatment).mean() - as_sample("control", pair.control).mean())


def _deltas(name: str, pair: Pair, paired: bool, resamples: int, seed: int) -> Float64Array:
    """[R] mean differences of one task."""
    source = _source(seed, name)
    if paired:
        return _means(gaps(*pair), resamples, source)
    treatment, control = as_sample("treatment", pair.treatment), as_sample("control", pair.control)
    return _means(treatment, resamples, source) - _means(control, resamples, source)


def _means(values: Float64Array, resamples: int, source: np.random.Generator) -> Float64Array:
    count = len(values)
    return np.concatenate(
        [values[source.integers(count, size=(rows, count))].mean(1) for rows in _portions(resamples, count)]
    )


def _portions(resamples: int, width: int) -> list[int]:
    """Row counts that add up to `resamples`, none holding too many indices."""
    rows = max(1, _DRAWS // width)
    return [min(rows, resamples - begin) for begin in range(0, resamples, rows)]


def _source(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _summarise(draws: list[Float64Array], observed: list[float], resamples: int, confidence: float) -> Bootstrap:
    deltas = np.mean(draws, axis=0)
    no_better, no_worse = ((1 + int(count)) / (1 + resamples) for count in ((deltas <= 0).sum(), (deltas >= 0).sum()))
    low, high = _percentiles(deltas, confidence)
    p = min(1.0, 2 * min(no_better, no_worse))
    return Bootstrap(len(draws), float(np.mean(observed)), low, high, no_better, p, resamples, confidence)


def _percentiles(values: Float64Array, confidence: float) -> tuple[float, float]:
    tail = (1 - check_confidence(confidence)) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _check(tasks: Mapping[str, object], resamples: int) -> None:
    if not tasks:
        raise DataError("no tasks to resample")
    if resamples < 1:
        raise DataError(f"resamples must be at least 1, got {resamples}")
