"""What adds up while an episode is under way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sageplan.evaluation.decide import Chosen
from sageplan.evaluation.pool import Float64Array
from sageplan.evaluation.records import Episode
from sageplan.evaluation.selectors import Selector
from sageplan.tasks.catalogue import Task


@dataclass
class Tally:
    """One episode of one arm: its plan under execution, and its sums so far."""

    arm: Selector
    seed: int
    length: int = 0
    episode_return: float = 0.0
    pending: list[Float64Array] = field(default_factory=list)
    """actions [A] of the chosen plan that are still to be executed"""
    plan: Float64Array | None = None
    """[H+1, S] the chosen plan's states"""
    decisions: int = 0
    _promised: Float64Array | None = None
    _filter: int = 0
    _penalty: int = 0
    _gate: int = 0
    _prefix: list[float] = field(default_factory=list)
    _executed: list[float] = field(default_factory=list)
    _gaps: list[float] = field(default_factory=list)

    def decide(self, chosen: Chosen) -> None:
        self.pending, self._promised = list(chosen.actions), chosen.states[0]
        self.plan = chosen.plan
        self.decisions += 1
        self._filter += chosen.by_filter
        self._penalty += chosen.by_penalty
        self._gate += chosen.changed
        if chosen.energies is not None:
            self._prefix.append(float(chosen.energies.mean()))
            self._executed.append(float(chosen.energies[: len(chosen.actions)].mean()))

    def advance(self, reward: float, reached: Float64Array, scale: Float64Array | None) -> None:
        """After a step into the state `reached` [S]; scale [S] is None where plans do not say what comes next."""
        self.length += 1
        self.episode_return += reward
        if self._promised is not None and scale is not None:
            self._gaps.append(float((np.abs(self._promised - reached) / scale).mean()))
        self._promised = None

    def finish(self, task: Task, terminated: bool, sticky_return: float | None, sampler_seed: int) -> Episode:
        maze = task.domain == "maze2d"
        return Episode(
            task=task.name,
            arm=self.arm.name,
            seed=self.seed,
            episode_return=self.episode_return,
            score=task.normalise(self.episode_return),
            length=self.length,
            terminated=terminated,
            success=_success(task, self.episode_return),
            occupancy=self.episode_return if maze else None,
            sticky_return=sticky_return,
            sticky_score=None if sticky_return is None else task.normalise(sticky_return),
            decisions=self.decisions,
            filter_changed=self._filter,
            penalty_changed=self._penalty,
            gate_changed=self._gate,
            prefix_energy=_mean(self._prefix),
            executed_energy=_mean(self._executed),
            gap=_mean(self._gaps),
            settings=self.arm.settings,
            sampler_seed=sampler_seed,
        )


def _success(task: Task, episode_return: float) -> bool | None:
    """Whether the goal was touched, or in kitchen all tasks completed; runners have no goal."""
    if task.domain == "locomotion":
        return None
    return episode_return >= (task.max_return if task.domain == "kitchen" else 1)


def _mean(values: list[float]) -> float | None:
    """None where there is nothing finite to say; JSON has no infinity."""
    mean = float(np.mean(values)) if values else np.nan
    return mean if np.isfinite(mean) else None
