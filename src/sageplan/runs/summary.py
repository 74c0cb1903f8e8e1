"""What a run's records say: its arms, their paired and unpaired differences, and what the gate did."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sageplan.evaluation.pairs import paired_samples
from sageplan.evaluation.records import Episode
from sageplan.evaluation.statistics import mean, paired, welch, wilson
from sageplan.runs.effort import EFFORT, total_effort
from sageplan.runs.folder import Run
from sageplan.tasks.catalogue import Task

CONTROL = "mcss"
_CHANGES = ("filter_changed", "penalty_changed", "gate_changed")
_MEANS = ("prefix_energy", "executed_energy", "gap", "length", "episode_return")


def metrics(task: Task) -> tuple[str, ...]:
    """Scores that are reported, the paper's first: on Maze2D the sticky one, then D4RL's own."""
    return ("sticky_score", "score") if task.domain == "maze2d" else ("score",)


def summarise(run: Run) -> dict[str, Any]:
    """The record behind all tables and reports."""
    episodes = run.episodes()
    arms = list(dict.fromkeys(episode.arm for episode in episodes))
    return {
        "task": run.task.name,
        "preset": run.preset,
        "seed": run.seed,
        "command": run.command,
        "data": run.data,
        "rollout": dataclasses.asdict(run.config.rollout),
        "metrics": list(metrics(run.task)),
        "arms": {arm: _arm(run.task, [e for e in episodes if e.arm == arm]) for arm in arms},
        "differences": {
            arm: {metric: _difference(episodes, arm, metric) for metric in metrics(run.task)}
            for arm in arms
            if arm != CONTROL and CONTROL in arms
        },
        "training_seconds": training_seconds(run),
        "effort": total_effort(run.path / EFFORT),
    }


def _arm(task: Task, episodes: Sequence[Episode]) -> dict[str, Any]:
    decisions = sum(episode.decisions for episode in episodes)
    successes = [episode.success for episode in episodes if episode.success is not None]
    return {
        "episodes": len(episodes),
        **{metric: plain(mean([getattr(e, metric) for e in episodes])) for metric in metrics(task)},
        "success": plain(wilson(sum(successes), len(successes))) if successes else None,
        **{name: _mean_of_known(episodes, name) for name in _MEANS},
        **{name: sum(getattr(e, name) for e in episodes) / decisions for name in _CHANGES},
        "decisions": decisions,
        "settings": episodes[0].settings,
    }


def _mean_of_known(episodes: Sequence[Episode], name: str) -> float | None:
    known = [value for episode in episodes if (value := getattr(episode, name)) is not None]
    return float(np.mean(known)) if known else None


def _difference(episodes: Sequence[Episode], arm: str, metric: str) -> dict[str, Any] | None:
    """Against the planner without a gate; None before two episode seeds have been finished by both."""
    pair = next(iter(paired_samples(episodes, arm, CONTROL, metric).values()), None)
    if pair is None or np.size(pair.treatment) < 2:
        return None
    return {
        "episodes": np.size(pair.treatment),
        "treatment": plain(mean(pair.treatment)),
        "control": plain(mean(pair.control)),
        "paired": plain(paired(*pair)),
        "welch": plain(welch(*pair)),
    }


def plain(result: Any) -> dict[str, Any]:
    """A result's fields for JSON, which has no infinity and no NaN: None in their place."""
    fields = dataclasses.asdict(result)
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}


def training_seconds(run: Run) -> dict[str, float]:
    """Of each learner, over all sessions; what a kill took away does not count."""
    trained = run.gate().info["training"] | run.planner().info["training"]
    return {name: summary["seconds"] for name, summary in trained.items()}
