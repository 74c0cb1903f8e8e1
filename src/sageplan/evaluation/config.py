"""How an evaluation is run, and checks that say at its start what would fail, or mean nothing, an hour later."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from sageplan.errors import ConfigError, DataError
from sageplan.evaluation.pool import Float64Array
from sageplan.evaluation.records import Episode
from sageplan.evaluation.selectors import Selector
from sageplan.gate.gate import PREFIX, Gate
from sageplan.planners.protocol import Planner
from sageplan.tasks.catalogue import Task, recognise


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are run. All but `width` is part of what the numbers mean."""

    candidates: int = 50
    """C"""
    replan_every: int = 1
    """environment steps per decision; in between, the chosen plan's own actions"""
    prefix: int = PREFIX
    """steps whose energy is recorded for every arm; a selector's own K may differ"""
    sampler_seed: int = 0
    """with the episode's seed and the step, what all noise of planner and selectors derives from"""
    block: int = 8
    """observations planned together, always as many: the last block is padded, so that not even rounding
    depends on how many episodes are under way. Planners that say they are independent are not padded for"""
    width: int = 64
    """environments stepped together"""

    def __post_init__(self) -> None:
        for name in ("candidates", "replan_every", "prefix", "block", "width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.sampler_seed < 0:
            raise ConfigError(f"sampler_seed is negative: {self.sampler_seed}")


def episode_seeds(episodes: int | Sequence[int]) -> list[int]:
    seeds = list(range(episodes)) if isinstance(episodes, int) else [int(seed) for seed in episodes]
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"episodes are a positive number, or different seeds that are not negative; got {episodes}")
    return seeds


def identity_of(task: Task, planner: Planner, gate: Gate | None, config: RolloutConfig) -> dict[str, Any]:
    """What all records of one file have in common."""
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name != "width"}
    return {
        "task": task.name,
        "step_limit": task.step_limit,
        "stride": planner.stride,
        "gate": weights_digest(gate.modules()) if gate else None,
        "planner": _planner_digest(planner),
        **settings,
    }


def _planner_digest(planner: Planner) -> str | None:
    """Of weights and settings, for planners that have both."""
    modules, config = getattr(planner, "modules", None), getattr(planner, "config", None)
    if modules is None or config is None:
        return None
    settings = hashlib.sha256(json.dumps(config.to_json(), sort_keys=True).encode()).hexdigest()[:8]
    return f"{weights_digest(modules())}-{settings}"


def weights_digest(modules: nn.Module) -> str:
    """Sixteen characters that stand for all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(modules.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return digest.hexdigest()[:16]


def gap_scale(scale: npt.ArrayLike | None, gate: Gate | None, task: Task, planner: Planner) -> Float64Array | None:
    """None also where a plan's next row is more than one environment step away."""
    if planner.stride != 1 or (scale is None and gate is None):
        return None
    units = np.asarray(gate.encoder.normaliser.std.cpu() if scale is None and gate else scale, np.float64)
    if units.shape != (task.state_dim,) or not (units > 0).all():
        raise DataError(f"scale is [{task.state_dim}] positive numbers, got shape {units.shape}")
    return units


def check_setup(planner: Planner, gate: Gate | None, task: Task, chosen: list[Selector], config: RolloutConfig) -> None:
    """Say now what would fail, or mean nothing, after an hour."""
    check_plan(planner.stride, task, chosen, config)
    for arm in chosen:
        if "gate" in arm.needs and gate is None:
            raise ConfigError(f"selector '{arm.name}' needs a gate, and none was given")
    if gate is not None:
        _check_gate(gate, task, planner)


def check_plan(stride: int, task: Task, chosen: list[Selector], config: RolloutConfig) -> None:
    """What can be said before there is a planner."""
    if stride > 1 and config.replan_every > 1:
        raise ConfigError(
            f"replan_every={config.replan_every} executes a plan step by step, but the planner's steps are "
            f"{stride} environment steps long; use replan_every=1"
        )
    for arm in chosen:
        if "simulator" in arm.needs and (task.domain != "maze2d" or stride > 1):
            raise ConfigError(
                f"selector '{arm.name}' simulates plans, which is possible in Maze2D at stride 1, "
                f"not in {task.name} at stride {stride}"
            )


def _check_gate(gate: Gate, task: Task, planner: Planner) -> None:
    if (gate.state_dim, gate.action_dim) != (task.state_dim, task.action_dim):
        raise ConfigError(
            f"the gate is for states of size {gate.state_dim} and actions of size {gate.action_dim}; "
            f"{task.name} has {task.state_dim} and {task.action_dim}"
        )
    if gate.config.stride != planner.stride:
        raise ConfigError(
            f"the gate was fitted at stride {gate.config.stride} and the planner plans at {planner.stride}; "
            "fit one with GateConfig(stride=…), or plan at the gate's stride"
        )
    name = gate.info["data"]["name"]
    other = recognise(name)
    if other and (other.domain, other.world) != (task.domain, task.world):
        raise ConfigError(f"the gate was fitted to {name}, whose physics are not those of {task.name}")


def check_recorded(arm: Selector, episodes: list[Episode]) -> None:
    for episode in episodes:
        if episode.settings != arm.settings:
            raise ConfigError(
                f"the records hold {arm.name} with settings {episode.settings}, now they are {arm.settings}; "
                "choose another file"
            )
