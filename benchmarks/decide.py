"""One decision, stage by stage: propose, value, inverse dynamics, energies, select, environment; mean and p95.

    python benchmarks/decide.py [--warm-up 100] [--measured 500] [--many 10]

MCSS and SAGE with `paper` and `cpu` settings, for 1 and for 50 environments of hopper, replanning every step. The
reference is the planner as one would write it down (see propose.py): float32, all plans in one batch, the noise level
turned into modulations for each plan, with the same sampler. MCSS and SAGE have the planner in bf16; SAGE's gate and
inverse dynamics are as the preset has them, and in one more arm in bf16 too. Untrained networks of the real sizes: time
does not depend on weights. `--many` is how many steps of 50 environments are measured; a tenth as many warm up. MCSS
draws the actions of all candidates here, as an evaluation does, so that both arms execute the same ones.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from common import record
from energy import untrained as untrained_gate
from propose import plain
from propose import untrained as untrained_planner
from sageplan.diffusion.inverse_dynamics import ActionRange, InverseDynamicsModel
from sageplan.evaluation.decide import Ask, Decider
from sageplan.evaluation.effort import Effort
from sageplan.evaluation.pool import Tools
from sageplan.evaluation.selectors import parse
from sageplan.runs.config import preset
from sageplan.tasks import get, make_vector
from sageplan.types import Plans

TASK, C = "hopper-medium-v2", 50
ARMS = ("MCSS", "SAGE", "SAGE, all in bf16")


class Plain:
    """The reference planner, behind the same protocol."""

    stride = 1

    def __init__(self, planner: Any) -> None:
        self._planner = planner

    def propose(self, observations: torch.Tensor, candidates: int, generator: Any) -> Plans:
        chance = generator if isinstance(generator, torch.Generator) else generator[0]
        return Plans(plain(self._planner, observations, candidates, chance))


def deciders(name: str) -> dict[str, tuple[Decider, Effort, str]]:
    """Each arm with tools of its own: MCSS asks for no energies, as it would without a gate."""
    task, config = get(TASK), preset(name, get(TASK))
    exact = untrained_planner(replace(config.planner, precision="fp32"), task.state_dim)
    fast = exact.using(precision="bf16")
    found = {}
    for arm, planner, precision in (("plain", Plain(exact), None), ("MCSS", fast, None), ("SAGE", fast, None),
                                    ("SAGE, all in bf16", fast, "bf16")):  # fmt: skip
        gate = untrained_gate(name, task.state_dim, task.action_dim)
        drawn = config.gate.inverse_dynamics
        if precision:
            gate.config, drawn = replace(gate.config, precision=precision), replace(drawn, precision=precision)
        torch.manual_seed(0)
        gate.inverse_dynamics = InverseDynamicsModel(drawn, gate.encoder.normaliser, ActionRange(task.action_dim))
        gate.inverse_dynamics.requires_grad_(False).eval()
        effort = Effort()
        selector = "sage" if arm.startswith("SAGE") else "mcss"
        tools = Tools(
            scorer=fast.critic, gate=gate if selector == "sage" else None, inverse_dynamics=gate.inverse_dynamics,
            simulation=None, stride=1, replan_every=1, sampler_seed=0, device=torch.device("cpu"), effort=effort,
        )  # fmt: skip
        decider = Decider(planner, tools, candidates=C, block=1, prefix=10, action_dim=task.action_dim)
        found[arm] = decider, effort, selector
    return found


def measure(name: str, count: int, warm_up: int, measured: int, arms: tuple[str, ...]) -> dict[str, Any]:
    """All arms in turns, in every step, each in environments of its own."""
    chosen = {arm: found for arm, found in deciders(name).items() if arm in arms}
    envs = {arm: make_vector(TASK, count, seeds=0) for arm in chosen}
    observations = {arm: env.reset()[0] for arm, env in envs.items()}
    times: dict[str, list[dict[str, float]]] = {arm: [] for arm in chosen}
    for step in range(warm_up + measured):
        for arm, (decider, effort, selector) in chosen.items():
            effort.seconds.clear()
            began = time.perf_counter()
            asks = [Ask(parse(selector), row, step, observations[arm][row]) for row in range(count)]
            actions = np.stack([answer.actions[0] for answer in decider.decide(asks)])
            with effort.measure("environment", torch.device("cpu")):
                observations[arm], _, terminated, truncated, _ = envs[arm].step(actions)
                if (ended := terminated | truncated).any():
                    observations[arm], _ = envs[arm].reset(options={"reset_mask": ended})
            whole = time.perf_counter() - began
            stages = dict(effort.seconds)
            stages["other"] = whole - sum(stages.values())
            if step >= warm_up:
                times[arm].append(stages | {"all": whole})
    found: dict[str, Any] = {
        "environments": count, "warm-up": warm_up, "measured": measured,
        **{arm: _milliseconds(steps) for arm, steps in times.items()},
    }  # fmt: skip
    without = found["MCSS"]["all"]["mean"]
    found["overhead of the gate"] = {
        arm: round(found[arm]["all"]["mean"] / without - 1, 4) for arm in chosen if arm.startswith("SAGE")
    }
    if "plain" in found:
        found["times faster than plain, MCSS"] = round(found["plain"]["all"]["mean"] / without, 2)
    return found


def _milliseconds(steps: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Of one vectorised step."""
    stages = {stage: 1000 * np.array([step.get(stage, 0.0) for step in steps]) for stage in steps[0]}
    return {
        stage: {"mean": round(float(ms.mean()), 3), "p95": round(float(np.quantile(ms, 0.95)), 3)}
        for stage, ms in stages.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--measured", type=int, default=500)
    parser.add_argument("--many", type=int, default=10)
    given = parser.parse_args()
    result: dict[str, Any] = {"task": TASK, "candidates": C, "prefix": 10, "milliseconds": "of one vectorised step"}
    for name in ("cpu", "paper"):
        one = measure(name, 1, given.warm_up, given.measured, ("plain", *ARMS))
        many = measure(name, 50, max(1, given.many // 10), given.many, ARMS)
        result[name] = {"1 environment": one, "50 environments": many}
    record("decide", result)


if __name__ == "__main__":
    main()
