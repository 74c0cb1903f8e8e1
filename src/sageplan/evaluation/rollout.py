"""Paired episodes: all arms meet the same worlds, starts and candidates, until one chooses differently."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sageplan.errors import EvaluationError
from sageplan.evaluation.config import (
    RolloutConfig,
    check_recorded,
    check_setup,
    episode_seeds,
    gap_scale,
    identity_of,
)
from sageplan.evaluation.decide import Ask, Chosen, Decider
from sageplan.evaluation.effort import Effort
from sageplan.evaluation.pool import Float64Array, Inverse, MazeSimulation, Tools
from sageplan.evaluation.records import Cell, Episode, Records
from sageplan.evaluation.selectors import Selector, arms
from sageplan.evaluation.tally import Tally
from sageplan.gate.gate import Gate
from sageplan.planners.protocol import Planner, Scorer
from sageplan.tasks import make_vector
from sageplan.tasks.catalogue import Task, get
from sageplan.training.progress import Bars

Groups = deque[list[tuple[Selector, int]]]
"""Episodes that begin together: those that are missing of one seed"""


@dataclass(frozen=True)
class Evaluation:
    """All episodes that were asked for, by seed and then by arm, and what those cost that had not been recorded."""

    episodes: tuple[Episode, ...]
    effort: Effort


def evaluate(
    planner: Planner,
    scorer: Scorer,
    gate: Gate | None,
    task: str | Task,
    selectors: Sequence[str | Selector],
    episodes: int | Sequence[int],
    config: RolloutConfig | None = None,
    *,
    inverse_dynamics: Inverse | None = None,
    records: str | Path | None = None,
    identity: dict[str, Any] | None = None,
    scale: npt.ArrayLike | None = None,
    effort: Effort | None = None,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> Evaluation:
    """Run every selector on episode seeds 0..n−1, or on those given.

    Episode seed i seeds environment i, and with the step all noise of that step, whatever else runs beside it.
    So what an arm does in an episode does not depend on the other arms, on the width, or on being interrupted.

    gate              energies for the arms that need them, and for the records of all others; None without
    inverse_dynamics  for plans without actions; default the gate's
    records           file of finished episodes; those in it are not run again
    identity          what else its numbers depend on, besides the gate and a Veteran planner, say the version of
                      another planner; a file made under another identity is refused
    scale             [S] units of the gap between planned and reached states; default the gate's statistics
    effort            counted into, so that it is known even when the evaluation does not come to its end
    device            where observations and generators are; default the gate's, else the CPU
    """
    task, config, chosen = get(task) if isinstance(task, str) else task, config or RolloutConfig(), arms(selectors)
    seeds = episode_seeds(episodes)
    check_setup(planner, gate, task, chosen, config)
    where = torch.device(device or (gate.device if gate else "cpu"))
    with ExitStack() as stack:
        file = None
        if records is not None:
            file = stack.enter_context(Records(records, identity_of(task, planner, gate, config) | (identity or {})))
        simulation = None
        if any("simulator" in arm.needs for arm in chosen):
            simulation = MazeSimulation(task, config.candidates)
            stack.callback(simulation.close)
        tools = Tools(
            scorer=scorer,
            gate=gate,
            inverse_dynamics=inverse_dynamics or (gate.inverse_dynamics if gate else None),
            simulation=simulation,
            stride=planner.stride,
            replan_every=config.replan_every,
            sampler_seed=config.sampler_seed,
            device=where,
            effort=effort or Effort(),
        )
        decider = Decider(
            planner,
            tools,
            candidates=config.candidates,
            block=config.block,
            prefix=config.prefix,
            action_dim=task.action_dim,
        )
        warm = getattr(planner, "warm_starts", False)
        run = _Run(task, decider, tools.effort, config, gap_scale(scale, gate, task, planner), file, warm)
        with Bars(progress) as bars:
            finished = run.complete(seeds, chosen, bars)
    return Evaluation(tuple(finished[Cell(task.name, arm.name, s)] for s in seeds for arm in chosen), tools.effort)


class _Run:
    """A fixed number of environments, which go from episode to episode."""

    def __init__(
        self,
        task: Task,
        decider: Decider,
        effort: Effort,
        config: RolloutConfig,
        scale: Float64Array | None,
        file: Records | None,
        warm: bool,
    ) -> None:
        self._warm = warm
        self._task, self._decider, self._effort, self._config = task, decider, effort, config
        self._scale, self._file = scale, file

    def complete(self, seeds: Sequence[int], chosen: Sequence[Selector], bars: Bars) -> dict[Cell, Episode]:
        """All cells: those recorded already, and the rest as they get done."""
        done = dict(self._file.episodes) if self._file else {}
        for arm in chosen:
            check_recorded(arm, [e for cell, e in done.items() if cell.arm == arm.name])
        # All arms of a seed start together: as long as they agree, they share their plans.
        missing = ([(arm, s) for arm in chosen if Cell(self._task.name, arm.name, s) not in done] for s in seeds)
        groups = deque(group for group in missing if group)
        if not groups:
            return done
        total, limit = len(seeds) * len(chosen), self._task.step_limit
        waiting = sum(map(len, groups))
        job = bars.job(f"evaluate {self._task.name}", total * limit, (total - waiting) * limit)
        width = _width(groups, self._config.width)
        self._slots: list[Tally | None] = [None] * width
        self._envs = make_vector(self._task, width, [0] * width)
        self._envs.reset()
        try:
            while groups or any(self._slots):
                self._fill(groups)
                self._decide()
                fresh = self._step()
                if fresh and self._file:
                    self._file.append(fresh)
                done |= {episode.cell: episode for episode in fresh}
                under_way = [slot for slot in self._slots if slot]
                left = sum(map(len, groups)) * limit + sum(limit - slot.length for slot in under_way)
                job.update(total * limit - left, _note(done.values(), chosen) if fresh else "")
        finally:
            self._envs.close()
        return done

    def _fill(self, groups: Groups) -> None:
        """Begin episodes where there is room for all arms of a seed."""
        free = [index for index, slot in enumerate(self._slots) if slot is None]
        begins = np.zeros(len(self._slots), np.bool_)
        seeds = [0] * len(self._slots)
        while groups and len(groups[0]) <= len(free):
            for arm, seed in groups.popleft():
                index = free.pop(0)
                self._slots[index], begins[index], seeds[index] = Tally(arm, seed), True, seed
        if begins.any():
            self._observations, _ = self._envs.reset(seed=seeds, options={"reset_mask": begins})
            self._refuse_nonsense(self._observations)

    def _decide(self) -> None:
        """For all episodes whose plan is used up."""
        due = [(i, slot) for i, slot in enumerate(self._slots) if slot and not slot.pending]
        asks = [Ask(s.arm, s.seed, s.length, self._observations[i].copy(), self._followed(s)) for i, s in due]
        if not asks:
            return
        for (_, slot), chosen in zip(due, self._decider.decide(asks), strict=True):
            _refuse_wild_actions(slot, chosen)
            slot.decide(chosen)

    def _followed(self, slot: Tally) -> Float64Array | None:
        """Where plans begin from noise alone, the one before is no part of the question, and arms share more."""
        return slot.plan if self._warm else None

    def _step(self) -> list[Episode]:
        """One step of all environments; the episodes that ended with it."""
        actions = np.zeros((len(self._slots), self._task.action_dim))
        for index, slot in enumerate(self._slots):
            if slot:
                actions[index] = slot.pending.pop(0)
        with self._effort.measure("environment", torch.device("cpu")):
            self._observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        self._refuse_nonsense(self._observations, rewards)
        finished = []
        for index, slot in enumerate(self._slots):
            if not slot:
                continue
            slot.advance(float(rewards[index]), self._observations[index], self._scale)
            self._effort.steps += 1
            if terminated[index] or truncated[index]:
                sticky = float(infos["sticky_return"][index]) if "sticky_return" in infos else None
                seed = self._config.sampler_seed
                finished.append(slot.finish(self._task, bool(terminated[index]), sticky, seed))
                self._slots[index] = None
        return finished

    def _refuse_nonsense(self, observations: Float64Array, rewards: Float64Array | None = None) -> None:
        for index, slot in enumerate(self._slots):
            if slot is None:
                continue
            if not np.isfinite(observations[index]).all() or not (rewards is None or np.isfinite(rewards[index])):
                raise EvaluationError(
                    f"{self._task.name}: the environment returned NaN or infinity {_where(slot)}; "
                    "all finished episodes are kept"
                )


def _refuse_wild_actions(slot: Tally, chosen: Chosen) -> None:
    if not np.isfinite(chosen.actions).all():
        raise EvaluationError(
            f"the planner left only plans whose actions are NaN or infinite, or its value preferred one, "
            f"{_where(slot)}; all finished episodes are kept"
        )


def _where(slot: Tally) -> str:
    return f"in step {slot.length} of episode {slot.seed} of {slot.arm.name}"


def _width(groups: Groups, widest: int) -> int:
    """As many environments as whole groups fill, or one group's where that is more."""
    width = 0
    for group in groups:
        if width and width + len(group) > widest:
            break
        width += len(group)
    return max(width, max(map(len, groups)))


def _note(done: Iterable[Episode], chosen: Sequence[Selector]) -> str:
    """Mean score of each arm so far."""
    done = list(done)
    scores = {arm.name: [e.score for e in done if e.arm == arm.name] for arm in chosen}
    return " · ".join(f"{name} {np.mean(values):.1f}" for name, values in scores.items() if values)
