"""From records to samples: the same episode seeds, in the same order, of two arms."""

from __future__ import annotations

from collections.abc import Iterable

from sageplan.errors import DataError
from sageplan.evaluation.bootstrap import Pair
from sageplan.evaluation.records import Episode


def paired_samples(episodes: Iterable[Episode], treatment: str, control: str, metric: str = "score") -> dict[str, Pair]:
    """By task, the metric of the seeds that both arms have finished; tasks without any are left out."""
    cells: dict[str, dict[str, dict[int, float]]] = {}
    for episode in episodes:
        if episode.arm in (treatment, control):
            value = getattr(episode, metric)
            if value is None:
                raise DataError(f"{episode.task} has no {metric}")
            cells.setdefault(episode.task, {treatment: {}, control: {}})[episode.arm][episode.seed] = float(value)
    samples: dict[str, Pair] = {}
    for task, of in cells.items():
        both = sorted(of[treatment].keys() & of[control])
        if both:
            samples[task] = Pair([of[treatment][seed] for seed in both], [of[control][seed] for seed in both])
    return samples
