"""Every setting of the Diffusion Veteran planner; what DV's code does that one would not expect is a named option."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from sageplan.diffusion.dit import Network, Precision
from sageplan.diffusion.samplers import Prediction, Sampling
from sageplan.diffusion.schedules import Schedule
from sageplan.errors import ConfigError
from sageplan.gate.config import refuse_unknown_choices
from sageplan.training.config import Optimiser

PathKind = Literal["episodes", "to reward", "to terminal"]


@dataclass(frozen=True)
class PartialCosine(Optimiser):
    """An optimiser whose training ends before its schedule does, as that of DV's critic."""

    schedule_steps: int | None = None
    """length of the schedule; None is that of the training"""

    def rate_at(self, step: int) -> float:
        whole = self.steps if self.schedule_steps is None else self.schedule_steps
        progress = (step - self.warmup) / max(1, whole - self.warmup)
        if step < self.warmup:
            return super().rate_at(step)
        return self.final_rate + 0.5 * (self.rate - self.final_rate) * (1 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True)
class Paths:
    """Which stretches of the recorded data plans are learnt from, and what they were worth."""

    kind: PathKind = "episodes"
    """`to reward`: from the first row without reward to the next with reward 1, across the ends of episodes where
    the motion goes on (DV on Maze2D). `to terminal`: episodes that reach a terminal row, cut there (AntMaze)"""
    padded: bool = False
    """the last state of a path repeats for ever: goals are absorbing, and every row begins a window"""
    max_length: int | None = None
    """rows that `to reward` keeps, from the end; also how far returns are summed in padded paths. None: the longest"""
    discount: float = 0.997
    reward_shift: float = 0.0
    """added to every reward"""
    fall_reward: float | None = None
    """what replaces the reward of a terminal row"""


@dataclass(frozen=True)
class HorizonCritic:
    """J of a whole plan: a Transformer that reads the return off its first token."""

    width: int = 256
    depth: int = 2
    heads: int = 4
    patch: int = 1
    """consecutive states per token, as in the denoiser"""
    optimiser: PartialCosine = field(
        default_factory=lambda: PartialCosine(
            steps=200_000, batch=128, rate=3e-4, final_rate=0.0, warmup=0, weight_decay=0.0, clip=None,
            schedule_steps=1_000_000,
        )
    )  # fmt: skip


@dataclass(frozen=True)
class StateValue:
    """V(s) by temporal differences, summed over the plan: what DV uses on locomotion."""

    width: int = 256
    discount: float = 0.997
    ema: float = 0.995
    """of the network that targets are made with"""
    optimiser: PartialCosine = field(
        default_factory=lambda: PartialCosine(
            steps=1_000_000, batch=256, rate=3e-4, final_rate=3e-4, warmup=0, weight_decay=0.0, clip=None
        )
    )


@dataclass(frozen=True)
class VeteranConfig:
    """The planner, and how its plans are valued. The defaults are the appendix of the paper."""

    horizon: int = 32
    """H: states of a plan, the observed one included"""
    stride: int = 1
    """environment steps between two states"""
    paths: Paths = field(default_factory=Paths)
    network: Network = field(default_factory=Network)
    schedule: Schedule = "linear"
    prediction: Prediction = "noise"
    """what the network learns. DV's noise needs very long training: near pure noise, an error in it is an error of 150
    times the size in the plan"""
    next_state_weight: float = 1.0
    """of the first planned state in the loss"""
    value_weight: float | None = None
    """k: windows weigh exp(k·(value − 1)) in the loss, as DV's do on locomotion with k = 2"""
    ema: float = 0.9999
    sampling: Sampling = field(default_factory=Sampling)
    precision: Precision = "fp32"
    """of the denoiser while sampling; what it works on stays in fp32"""
    warm_start: float | None = None
    """share of the noise levels that a plan begun from the previous one skips; None plans from noise alone"""
    critic: HorizonCritic | StateValue = field(default_factory=HorizonCritic)
    held_out: float = 0.1
    """share of the rows that no training step sees"""
    optimiser: PartialCosine = field(
        default_factory=lambda: PartialCosine(
            steps=1_000_000, batch=128, rate=2e-4, final_rate=0.0, warmup=0, weight_decay=1e-5, clip=None
        )
    )

    def __post_init__(self) -> None:
        for part in (self, self.paths, self.network, self.sampling, self.optimiser, self.critic.optimiser):
            refuse_unknown_choices(part)
        if self.horizon < 2:
            raise ConfigError(
                f"horizon counts states, the observed one included, and must be 2 or more: {self.horizon}"
            )
        for name, value in (
            ("stride", self.stride),
            ("sampling.steps", self.sampling.steps),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        for name, share in (("held_out", self.held_out), ("warm_start", self.warm_start)):
            if share is not None and not 0 < share < 1:
                raise ConfigError(f"{name} is a share in (0, 1), got {share}")
        patches = {"network.patch": self.network.patch}
        if isinstance(self.critic, HorizonCritic):
            patches["critic.patch"] = self.critic.patch
            if self.critic.width % self.critic.heads:
                raise ConfigError(
                    f"critic.width={self.critic.width} is not a multiple of critic.heads={self.critic.heads}"
                )
        for name, patch in patches.items():
            if patch < 1 or self.horizon % patch:
                raise ConfigError(f"horizon={self.horizon} states cannot be cut into patches of {name}={patch}")

    def to_json(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        record["critic"]["kind"] = type(self.critic).__name__
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> VeteranConfig:
        record = dict(record)
        critic = dict(record["critic"])
        kind = {kind.__name__: kind for kind in (HorizonCritic, StateValue)}[critic.pop("kind")]
        critic["optimiser"] = _optimiser(critic["optimiser"])
        return cls(
            **{
                **record,
                "critic": kind(**critic),
                "paths": Paths(**record["paths"]),
                "network": Network(**record["network"]),
                "sampling": Sampling(**record["sampling"]),
                "optimiser": _optimiser(record["optimiser"]),
            }
        )


def _optimiser(record: dict[str, Any]) -> PartialCosine:
    return PartialCosine(**{**record, "betas": tuple(record["betas"])})
