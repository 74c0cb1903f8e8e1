"""Several runs side by side: each by itself, then by domain and over all, and over training seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sageplan.errors import ConfigError
from sageplan.evaluation.bootstrap import Pair, bootstrap_domains, interquartile_mean
from sageplan.evaluation.pairs import paired_samples
from sageplan.evaluation.statistics import mean, paired, two_level, welch
from sageplan.runs.effort import EFFORT, total_effort
from sageplan.runs.folder import Run
from sageplan.runs.summary import CONTROL, metrics, plain, training_seconds


def compare(
    runs: Sequence[Run], arm: str = "sage", control: str = CONTROL, *, resamples: int = 10_000
) -> dict[str, Any]:
    """The paper's metric of each task; only episode seeds that both arms have finished count.

    A stratum of the bootstrap is one run, and every run weighs the same. Runs of the same task and preset but of other
    training seeds are not more episodes of one: `training_seeds` has the error between them.
    """
    _check(runs)
    rows, strata = [], {}
    for run in runs:
        metric = metrics(run.task)[0]
        pair = next(iter(paired_samples(run.episodes(), arm, control, metric).values()), None)
        if pair is None:
            raise ConfigError(f"{run.path} has no episode seed that both {arm} and {control} have finished")
        strata[run.name] = pair
        about = {"run": run.name, "command": run.command, "task": run.task.name, "preset": run.preset}
        made = {"seed": run.seed, "data": run.data, "rollout": dataclasses.asdict(run.config.rollout), "metric": metric}
        rows.append(about | made | _row(pair) | _made_with(run))
    domain_of = {run.name: run.task.domain for run in runs}
    found: dict[str, Any] = {"arm": arm, "control": control, "runs": rows}
    for kind in ("paired", "unpaired"):
        per_domain = bootstrap_domains(strata, domain_of, paired=kind == "paired", resamples=resamples)
        found[kind] = {name: plain(result) for name, result in per_domain.items()}
    found["interquartile_mean"] = {
        name: plain(interquartile_mean({n: pair[side] for n, pair in strata.items()}, resamples=resamples))
        for side, name in enumerate((arm, control))
    }
    found["training_seeds"] = _training_seeds(runs, strata)
    return found


def _row(pair: Pair) -> dict[str, Any]:
    treatment, control = mean(pair.treatment), mean(pair.control)
    enough = treatment.count > 1
    return {
        "episodes": treatment.count,
        "treatment": plain(treatment),
        "baseline": plain(control),
        "paired": plain(paired(*pair)) if enough else None,
        "welch": plain(welch(*pair)) if enough else None,
    }


def _made_with(run: Run) -> dict[str, Any]:
    """What it took, and in Maze2D how often each rule's winners enter walls."""
    training = training_seconds(run)
    stress = (run.diagnosis() or {}).get("stress")
    return {
        "training_seconds": training,
        "effort": total_effort(run.path / EFFORT),
        "stress": stress and {key: value for key, value in stress.items() if key != "example"},
    }


def _training_seeds(runs: Sequence[Run], strata: dict[str, Pair]) -> list[dict[str, Any]]:
    """Of every task and preset with several training seeds: scores and differences, and their two kinds of error."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.task.name, run.preset), []).append(run)
    return [
        {
            "task": task,
            "preset": preset,
            "treatment": plain(two_level([strata[run.name].treatment for run in group])),
            "baseline": plain(two_level([strata[run.name].control for run in group])),
        }
        for (task, preset), group in groups.items()
        if len(group) > 1
    ]


def _check(runs: Sequence[Run]) -> None:
    if not runs:
        raise ConfigError("no runs to compare")
    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"the same task, preset and seed is given twice: {', '.join(twice)}")
