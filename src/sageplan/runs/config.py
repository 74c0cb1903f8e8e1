"""All settings of a run, and the presets: `paper`, the appendix; `veteran`, DV's released ones; `cpu`, two cores."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from sageplan.errors import ConfigError
from sageplan.evaluation.config import RolloutConfig
from sageplan.gate.config import GateConfig, InverseDynamics
from sageplan.gate.presets import PRESETS
from sageplan.planners import presets as planner_presets
from sageplan.planners.config import VeteranConfig
from sageplan.tasks.catalogue import Domain, Task
from sageplan.training.config import Optimiser

_REPLAN: dict[Domain, int] = {"maze2d": 10, "antmaze": 5, "kitchen": 4, "locomotion": 5}  # of the cpu preset


@dataclass(frozen=True)
class RunConfig:
    """What is trained, and how its episodes are run."""

    gate: GateConfig
    planner: VeteranConfig
    rollout: RolloutConfig

    def __post_init__(self) -> None:
        if self.gate.stride != self.planner.stride:
            raise ConfigError(
                f"gate.stride={self.gate.stride} and planner.stride={self.planner.stride} differ; "
                "a gate judges plans of its own stride alone"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "gate": self.gate.to_json(),
            "planner": self.planner.to_json(),
            "rollout": dataclasses.asdict(self.rollout),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> RunConfig:
        return cls(
            GateConfig.from_json(record["gate"]),
            VeteranConfig.from_json(record["planner"]),
            RolloutConfig(**record["rollout"]),
        )


def preset(name: str, task: Task) -> RunConfig:
    """The settings of this name for a task."""
    planner = planner_presets.preset(name, task)
    if name == "cpu":
        gate = PRESETS["cpu"]
        if task.domain != "maze2d":
            gate = replace(gate, inverse_dynamics=_for_bodies(relative=2 if task.domain == "antmaze" else 0))
        # On a CPU the planner works at one observation after the other, so larger blocks would only be filled up.
        return RunConfig(gate, planner, RolloutConfig(replan_every=_REPLAN[task.domain], block=1))
    if name == "paper":
        return RunConfig(PRESETS["paper"], planner, RolloutConfig())
    # DV's inverse dynamics: the whole training's length, and positions relative to where the body is on mazes
    inverse = InverseDynamics(relative=2 if task.domain in ("maze2d", "antmaze") else 0)
    inverse = replace(inverse, optimiser=replace(inverse.optimiser, steps=1_000_000))
    gate = replace(PRESETS["paper"], stride=planner.stride, inverse_dynamics=inverse)
    return RunConfig(gate, planner, RolloutConfig(candidates=150 if task.domain == "kitchen" else 50))


def _for_bodies(relative: int) -> InverseDynamics:
    """With legs or arms, where actions that are a little off soon mean another motion; the `cpu` gate's own are for
    what is simpler to steer."""
    training = Optimiser(steps=8_000, batch=512, rate=3e-3, final_rate=0.0, warmup=100, weight_decay=0.01, clip=None)
    return InverseDynamics(steps=5, precision="bf16", relative=relative, optimiser=training)
