"""The paper's stress test on Maze2D: of large pools, how often does each rule pick a plan that crosses a wall?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sageplan.evaluation.statistics import wilson
from sageplan.gate.gate import KEEP, PENALTY, PREFIX, Gate
from sageplan.gate.select import select
from sageplan.parallel import spread
from sageplan.planners.protocol import Planner, Scorer
from sageplan.tasks.maze2d import Maze

_TOGETHER = 4  # starts, between two signs of progress
_SHOWN = 100  # plans of the example that are drawn, as in the paper's figure


@dataclass(frozen=True)
class Rule:
    """One way to choose: K steps are judged, the share `keep` of lowest energy stays, `penalty` is λ.

    prefix  None judges the whole plan
    """

    name: str
    keep: float
    penalty: float
    prefix: int | None = PREFIX


RULES = (
    Rule("MCSS", 1.0, 0.0),
    Rule(f"SAGE (K {PREFIX}, keep {KEEP:g}, λ {PENALTY:g})", KEEP, PENALTY),
    Rule(f"SAGE, keep 0.5 (K {PREFIX})", 0.5, PENALTY),
    Rule("SAGE, keep 0.2, whole plan", 0.2, PENALTY, None),
    Rule("lowest energy, whole plan", 1e-9, 0.0, None),
)


def stress(
    planner: Planner,
    scorer: Scorer,
    gate: Gate,
    maze: Maze,
    observations: Tensor,
    *,
    candidates: int = 500,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """From each of the observations [B, 4]: shares of plans, and of each rule's winners, that enter a wall.

    `prefix` counts the first K steps, `whole` the plan. `example` is one decision to be drawn, with as many plans as
    the paper draws: the one in which the gate saves most energy in the prefix.
    """

    def pool(row: int) -> tuple[npt.NDArray[np.float64], Tensor, Tensor]:
        """One at a time: 500 plans are work enough."""
        chance = torch.Generator(gate.device).manual_seed(seed * 1_000_003 + row)
        with torch.no_grad():
            plans = planner.propose(observations[row, None], candidates, chance)
            energy = gate.step_energy(plans.states, plans.actions, stride=planner.stride, generator=chance)
            return plans.states[0, ..., :2].double().cpu().numpy(), energy[0], scorer(plans)[0]

    alone = all(getattr(part, "independent", False) for part in (planner, scorer))
    pools = []
    for first in range(0, len(observations), _TOGETHER):
        rows = range(first, min(first + _TOGETHER, len(observations)))
        pools += spread(pool, rows, gate.device) if alone else [pool(row) for row in rows]
        progress(len(pools))
    paths, energies, values = zip(*pools, strict=True)
    inside: npt.NDArray[np.bool_] = np.stack([maze.inside_wall(xy) for xy in paths])
    energy, value = torch.stack(energies), torch.stack(values)
    enters = {"prefix": np.asarray(inside[:, :, : PREFIX + 1].any(-1)), "whole": np.asarray(inside.any(-1))}
    winners = {rule.name: _pick(rule, value, energy) for rule in RULES}
    every = np.arange(len(inside))
    return {
        "maze": maze.name,
        "starts": len(observations),
        "candidates": candidates,
        "prefix": PREFIX,
        "steps": int(energy.shape[-1]),
        "seed": seed,
        "plans": {part: float(crossing.mean()) for part, crossing in enters.items()},
        "winners": {
            name: {part: _share(crossing[every, index]) for part, crossing in enters.items()}
            for name, index in winners.items()
        },
        "example": _example(paths, energy, value, winners),
    }


def _pick(rule: Rule, value: Tensor, energy: Tensor) -> npt.NDArray[np.int64]:
    mean = energy[..., : rule.prefix].mean(-1)
    index: npt.NDArray[np.int64] = select(value, mean, keep=rule.keep, penalty=rule.penalty).index.cpu().numpy()
    return index


def _share(crossing: npt.NDArray[np.bool_]) -> dict[str, float]:
    return dataclasses.asdict(wilson(int(crossing.sum()), len(crossing)))


def _example(
    paths: Sequence[npt.NDArray[np.float64]],
    energy: Tensor,
    value: Tensor,
    winners: dict[str, npt.NDArray[np.int64]],
) -> dict[str, Any]:
    """The winners come first, then other candidates in their own order."""
    rows, prefix = np.arange(len(paths)), energy[..., :PREFIX].mean(-1).cpu().numpy()
    without, with_gate = (prefix[rows, winners[rule.name]] for rule in RULES[:2])
    row = int((without - with_gate).argmax())
    chosen = [int(index[row]) for index in winners.values()]
    shown = list(dict.fromkeys([*chosen, *range(len(paths[row]))]))[:_SHOWN]
    return {
        "paths": paths[row][shown].round(3).tolist(),
        "energies": energy[row, shown].cpu().numpy().astype(np.float64).round(5).tolist(),
        "values": value[row, shown].cpu().numpy().astype(np.float64).round(5).tolist(),
        "winners": {name: shown.index(index) for name, index in zip(winners, chosen, strict=True)},
    }
