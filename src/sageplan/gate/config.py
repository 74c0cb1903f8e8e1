"""Every setting of a gate, with the reason where the paper leaves it open; presets are named instances."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sageplan.errors import ConfigError
from sageplan.training.config import Optimiser


def refuse_unknown_choices(settings: Any) -> None:
    """Literal fields hold one of their words; a misspelt one would otherwise mean the last branch of some `if`."""
    for name, kind in get_type_hints(type(settings)).items():
        if get_origin(kind) is Literal and getattr(settings, name) not in get_args(kind):
            words = ", ".join(repr(word) for word in get_args(kind))
            raise ConfigError(f"{name} is one of {words}, not {getattr(settings, name)!r}")


@dataclass(frozen=True)
class Stage1:
    """The JEPA encoder (paper, Table impl_jepa_used)."""

    latent: int = 256
    """d_z"""
    hidden: int = 512
    """width of the encoder MLP"""
    # With PyTorch's small biases LayerNorm divides each state by its own size, so that one wild velocity moves every
    # latent; with biases that outweigh the state the encoder begins close to linear.
    bias_spread: float | None = None
    """standard deviation of the encoder's first biases: not in the paper; None is PyTorch's own, 2 a calmer start"""
    window: int = 16
    """W states of context"""
    max_offset: int = 5
    """K_max: furthest target, in steps after the window"""
    offsets: int = 3
    """|𝒦| offsets drawn per batch, shared by the batch"""
    layers: int = 2
    heads: int = 4
    feature_mask: float = 0.30
    """share of state entries zeroed, per time step"""
    time_mask: float = 0.10
    """share of time steps zeroed whole"""
    momentum: tuple[float, float] = (0.99, 0.9999)
    """teacher EMA, first and last value of a cosine schedule"""
    variance_weight: float = 1.0
    covariance_weight: float = 0.1
    variance_target: float = 1.0
    """γ of the hinge on each dimension's standard deviation"""
    variance_epsilon: float = 1e-4
    similarity_reduction: Literal["mean", "sum"] = "mean"
    """over latent dimensions: the paper's sum dwarfs the variance term (≤ 1) and invites collapse"""
    optimiser: Optimiser = field(default_factory=Optimiser)


@dataclass(frozen=True)
class Stage2:
    """The action-conditioned latent predictor (paper, Table impl_ac_used)."""

    window: int = 16
    """W steps of a training window; the paper gives it for Stage I only, and is read as meaning both"""
    context: Literal["plan", "step"] = "plan"
    """what a prediction sees: its plan so far, as in the paper, or its own step alone, enough for Markov states"""
    width: int = 256
    layers: int = 2
    heads: int = 4
    head_hidden: int = 512
    tokens: Literal["bundled", "separate"] = "bundled"
    """one token per step, or one for z and one for a: the paper can be read either way; one costs half"""
    whitening: Literal["per_dim", "zca", "none"] = "per_dim"
    """per dimension: full whitening of 256 latents of a 4-d state multiplies noise directions"""
    whitening_floor: float = 1e-3
    """zca only: eigenvalues below this share of the largest are not amplified further"""
    # One step moves slow dimensions far less than fast ones; with "data" the head need not learn that.
    delta_units: Literal["latent", "data"] = "latent"
    """units of the head's Δz: whitened latents, as in the paper, or each dimension's spread of Δz in the data"""
    rollout: int = 4
    """H_ro: autoregressive steps, the last of which is compared"""
    rollout_weight: float = 1.0
    negative_weight: float = 1.0
    # As a sum over dimensions and time the hinge could not be active even at initialisation, while the paper sees it
    # active for about ten updates.
    margin: float = 0.10
    """m of the hinge on the error with another window's actions, taken as a mean over dimensions and time"""
    # The energy is a one-step error, and both terms together cost more than twice what the one-step term does.
    auxiliary_every: int = 1
    """updates between those that include the rollout and the hinge, after the first 100"""
    optimiser: Optimiser = field(default_factory=lambda: Optimiser(batch=256))


@dataclass(frozen=True)
class InverseDynamics:
    """Diffusion inverse dynamics for planners that propose states only (paper, Table impl_invdyn_used)."""

    hidden: int = 256
    steps: int = 10
    """diffusion levels, in training and in sampling"""
    temperature: float = 0.5
    """scales the initial noise only, as DV does"""
    ema: float = 0.995
    precision: Literal["fp32", "bf16"] = "fp32"
    """of the hidden layers while actions are drawn"""
    relative: int = 0
    """leading entries of a state, a position say, of which only the change counts; DV has 2 (x, y) on mazes"""
    optimiser: Optimiser = field(
        default_factory=lambda: Optimiser(
            steps=200_000, batch=128, rate=3e-4, final_rate=0.0, warmup=0, weight_decay=0.01, clip=None
        )
    )


@dataclass(frozen=True)
class GateConfig:
    """All that a fit depends on besides the data."""

    stage1: Stage1 = field(default_factory=Stage1)
    stage2: Stage2 = field(default_factory=Stage2)
    inverse_dynamics: InverseDynamics | None = field(default_factory=InverseDynamics)
    """None for planners that bring their own actions"""
    stride: int = 1
    """environment steps between two rows of a plan; the gate refuses plans of another stride"""
    energy_reduction: Literal["mean", "sum"] = "mean"
    """over latent dimensions, in energies and losses: with the mean, λE is a modest correction; λ_sum = λ_mean / d_z"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """of the predictor while energies are worked out: twice as fast in bf16, and as good at telling shuffled actions"""
    held_out: float = 0.1
    """share of the rows, in whole episodes, that no training step sees"""

    def __post_init__(self) -> None:
        one, two = self.stage1, self.stage2
        for part in (self, one, two, one.optimiser, two.optimiser, self.inverse_dynamics):
            if part is not None:
                refuse_unknown_choices(part)
        if self.inverse_dynamics is not None and self.inverse_dynamics.relative < 0:
            raise ConfigError(
                f"inverse_dynamics.relative counts leading entries of a state: {self.inverse_dynamics.relative}"
            )
        for name, value in (
            ("stride", self.stride),
            ("stage1.window", one.window),
            ("stage2.window", two.window),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out is a share in (0, 1), got {self.held_out}")
        if not 1 <= one.offsets <= one.max_offset:
            raise ConfigError(f"stage1.offsets must be in 1..max_offset={one.max_offset}, got {one.offsets}")
        if not 1 <= two.rollout <= two.window:
            raise ConfigError(f"stage2.rollout must be in 1..window={two.window}, got {two.rollout}")
        for name, width, heads in (
            ("stage1.latent", one.latent, one.heads),
            ("stage2.width", two.width, two.heads),
        ):
            if width % heads:
                raise ConfigError(f"{name}={width} is not a multiple of its heads={heads}")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> GateConfig:
        def build(kind: type[Any], fields: dict[str, Any]) -> Any:
            fields = dict(fields)
            optimiser = fields["optimiser"]
            fields["optimiser"] = Optimiser(**{**optimiser, "betas": tuple(optimiser["betas"])})
            return kind(**fields)

        record = dict(record)
        record["stage1"] = build(Stage1, {**record["stage1"], "momentum": tuple(record["stage1"]["momentum"])})
        record["stage2"] = build(Stage2, record["stage2"])
        if record["inverse_dynamics"] is not None:
            record["inverse_dynamics"] = build(InverseDynamics, record["inverse_dynamics"])
        return cls(**record)
