"""Decisions for many episodes at a time: propose once per distinct state, then let every arm pick."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from sageplan.evaluation.chance import Stream, stream
from sageplan.evaluation.pool import Float64Array, LivePool, Tools, check_proposal
from sageplan.evaluation.selectors import Selector
from sageplan.parallel import spread
from sageplan.planners.protocol import Planner
from sageplan.types import Plans

_TOGETHER = 32  # questions to independent planners at a time, for the memory that their noise takes


class Ask(NamedTuple):
    """One arm's question in one episode: observation [S] at a step, and the plan [H+1, S] it followed until now."""

    arm: Selector
    seed: int
    step: int
    observation: Float64Array
    plan: Float64Array | None = None


class Chosen(NamedTuple):
    """The answer.

    actions  [n, A] to execute, one after the other; n is replan_every, or the plan's length where that is less
    states   [n, S] that they are to lead to
    plan     [H+1, S] of which they are the beginning
    energies [K]    of the plan's first steps; None without a gate
    """

    actions: Float64Array
    states: Float64Array
    plan: Float64Array
    energies: Float64Array | None
    by_filter: bool
    by_penalty: bool
    changed: bool


class Decider:
    """Plans in blocks of one fixed size, so that rounding does not depend on how many episodes are under way; the last
    one is not filled up where planner and scorer do not let it depend on that.

    prefix  steps whose energy is told, of whatever plan an arm picks
    """

    def __init__(
        self, planner: Planner, tools: Tools, *, candidates: int, block: int, prefix: int, action_dim: int
    ) -> None:
        self._planner, self._tools = planner, tools
        self._candidates, self._prefix, self._action_dim = candidates, prefix, action_dim
        self._fill_up = not all(getattr(part, "independent", False) for part in (planner, tools.scorer))
        self._block = block if self._fill_up else max(block, _TOGETHER)

    @torch.no_grad()
    def decide(self, asks: Sequence[Ask]) -> list[Chosen]:
        """One answer per question. Arms that are in the same state at the same step share a pool."""
        shared: dict[tuple[Any, ...], list[int]] = {}
        for number, ask in enumerate(asks):
            shared.setdefault(_key(ask), []).append(number)
        groups = list(shared.values())
        pools = self._pools([asks[numbers[0]] for numbers in groups])

        def pick(job: tuple[LivePool, list[int]]) -> list[Chosen]:
            pool, numbers = job
            with torch.no_grad():
                return [self._pick(asks[number].arm, pool) for number in numbers]

        began = time.perf_counter()
        jobs = list(zip(pools, groups, strict=True))
        answers = spread(pick, jobs, self._tools.device) if self._tools.thread_safe else [pick(job) for job in jobs]
        effort = self._tools.effort
        effort.add([pool.effort for pool in pools], time.perf_counter() - began)
        effort.decisions += len(asks)
        effort.planned += len(groups)
        chosen = {n: one for numbers, some in zip(groups, answers, strict=True)
                  for n, one in zip(numbers, some, strict=True)}  # fmt: skip
        return [chosen[number] for number in range(len(asks))]

    def _pools(self, asks: Sequence[Ask]) -> list[LivePool]:
        """A pool for each; blocks are filled up with repetitions of their last question."""
        pools = []
        for begin in range(0, len(asks), self._block):
            some = asks[begin : begin + self._block]
            missing = self._block - len(some) if self._fill_up else 0
            plans, values = self._propose([*some, *[some[-1]] * missing])
            for row, ask in enumerate(some):
                one = Plans(plans.states[row, None], None if plans.actions is None else plans.actions[row, None])
                pools.append(LivePool(self._tools, one, values[row, None], ask.observation, ask.seed, ask.step))
        return pools

    def _propose(self, asks: Sequence[Ask]) -> tuple[Plans, torch.Tensor]:
        tools = self._tools
        device, effort = tools.device, tools.effort
        observations = torch.from_numpy(np.stack([ask.observation for ask in asks])).to(device, torch.float32)
        sources = [stream(Stream.PROPOSE, tools.sampler_seed, ask.seed, ask.step, device) for ask in asks]
        with effort.measure("propose", device):
            plans = self._planner.propose(observations, self._candidates, sources, **self._begin(asks))
        with effort.measure("value", device):
            values = tools.scorer(plans)
        check_proposal(plans, values, (len(asks), self._candidates, observations.shape[1]), self._action_dim)
        return plans, values

    def _begin(self, asks: Sequence[Ask]) -> dict[str, Any]:
        """For planners that can begin from the plan before; NaN where there is none."""
        plans = [ask.plan for ask in asks if ask.plan is not None]
        if not plans or not getattr(self._planner, "warm_starts", False):
            return {}
        none = np.full_like(plans[0], np.nan)
        previous = np.stack([none if ask.plan is None else ask.plan for ask in asks])
        passed = self._tools.replan_every // self._planner.stride
        return {"previous": torch.from_numpy(previous).float(), "passed": passed}

    def _pick(self, arm: Selector, pool: LivePool) -> Chosen:
        energies = pool.step_energy(self._prefix) if self._tools.gate else None
        with pool.effort.measure("select", self._tools.device):
            decision = arm.pick(pool)
        index = int(decision.winner)
        actions, states = pool.executed(index)
        return Chosen(
            actions,
            states,
            pool.plan(index),
            None if energies is None else energies[0, index].double().cpu().numpy(),
            bool(decision.by_filter),
            bool(decision.by_penalty),
            bool(decision.changed),
        )


def _key(ask: Ask) -> tuple[int, int, bytes, bytes]:
    """All that a pool depends on."""
    return ask.seed, ask.step, ask.observation.tobytes(), b"" if ask.plan is None else ask.plan.tobytes()
