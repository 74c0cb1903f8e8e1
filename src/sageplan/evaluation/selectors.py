"""Arms of an evaluation: rules that pick one candidate, each by a name that says its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from sageplan.errors import ConfigError
from sageplan.gate.gate import KEEP, PENALTY, PREFIX
from sageplan.gate.select import PenaltyUnits, check_rule, select


class Pool(Protocol):
    """Candidates for B decisions. What costs is worked out when a rule first asks for it."""

    @property
    def values(self) -> Tensor:
        """[B, C] J"""

    def step_energy(self, prefix: int) -> Tensor:
        """[B, C, K] of the first K = `prefix` steps, or of all where a plan has fewer."""

    def random_index(self) -> Tensor:
        """[B] any candidate, all equally likely."""

    def realised_values(self) -> Tensor:
        """[B, C] J of what happens when each candidate's actions are executed in simulation."""


@dataclass(frozen=True, eq=False)
class GivenPool:
    """A pool of which everything is known: values [B, C], energies [B, C, T], and perhaps realised [B, C]."""

    values: Tensor
    energies: Tensor
    realised: Tensor | None = None
    generator: torch.Generator | None = None

    def step_energy(self, prefix: int) -> Tensor:
        return self.energies[..., :prefix]

    def random_index(self) -> Tensor:
        size = (len(self.values),)
        return torch.randint(self.values.shape[1], size, generator=self.generator, device=self.values.device)

    def realised_values(self) -> Tensor:
        if self.realised is None:
            raise ConfigError("this pool was not simulated, so the oracle cannot tell its candidates apart")
        return self.realised


class Decision(NamedTuple):
    """One per observation.

    winner      [B]      the candidate to execute
    by_filter   [B] bool dropping candidates changed the winner
    by_penalty  [B] bool the penalty changed it among the kept
    changed     [B] bool it is not the candidate of the highest value
    """

    winner: Tensor
    by_filter: Tensor
    by_penalty: Tensor
    changed: Tensor


class Selector(Protocol):
    """One arm."""

    @property
    def name(self) -> str:
        """Of the arm in records and tables."""

    @property
    def settings(self) -> dict[str, Any]: ...

    @property
    def needs(self) -> frozenset[str]:
        """What it cannot do without: "gate", "simulator"."""

    def pick(self, pool: Pool) -> Decision:
        """Called for several pools at a time, from threads."""


class _Rule:
    """Name and settings of a dataclass."""

    kind: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()

    @property
    def settings(self) -> dict[str, Any]:
        return {"selector": self.kind, **dataclasses.asdict(self)}  # type: ignore[call-overload]

    @property
    def name(self) -> str:
        """The kind, then every setting that is not the default: "sage", "sage:prefix=20:keep=0.5"."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        said = [(f.name, getattr(self, f.name)) for f in fields if getattr(self, f.name) != f.default]
        return ":".join([self.kind, *(f"{name}={value}" for name, value in said)])


@dataclass(frozen=True)
class Mcss(_Rule):
    """The highest value: Monte Carlo sampling with selection, the planner without a gate."""

    kind: ClassVar[str] = "mcss"

    def pick(self, pool: Pool) -> Decision:
        return _plain(_best(pool.values), pool)


@dataclass(frozen=True)
class Sage(_Rule):
    """The paper's rule: keep the lowest-energy share P, then argmax of J − λE, E over the first K steps."""

    kind: ClassVar[str] = "sage"
    needs: ClassVar[frozenset[str]] = frozenset({"gate"})
    prefix: int = PREFIX
    keep: float = KEEP
    penalty: float = PENALTY
    penalty_units: PenaltyUnits = "raw"

    def __post_init__(self) -> None:
        check_rule(self.keep, self.penalty, self.penalty_units)
        _check_prefix(self.prefix)

    def pick(self, pool: Pool) -> Decision:
        values = pool.values
        energy = _mean_energy(pool, self.prefix)
        keep = self.keep if self.prefix else 1.0  # without an energy there is nobody to drop
        index = select(values, energy, keep=keep, penalty=self.penalty, penalty_units=self.penalty_units).index
        filtered, best = select(values, energy, keep=keep, penalty=0.0).index, _best(values)
        return Decision(index, filtered != best, index != filtered, index != best)


@dataclass(frozen=True)
class LowestEnergy(_Rule):
    """The most plausible candidate, whatever its value."""

    kind: ClassVar[str] = "lowest-energy"
    needs: ClassVar[frozenset[str]] = frozenset({"gate"})
    prefix: int = PREFIX

    def __post_init__(self) -> None:
        if self.prefix < 1:
            raise ConfigError(f"lowest-energy compares at least one step, got prefix {self.prefix}")

    def pick(self, pool: Pool) -> Decision:
        energy = _mean_energy(pool, self.prefix)
        return _plain(torch.where(energy.isfinite(), energy, torch.inf).argmin(-1), pool)


@dataclass(frozen=True)
class Random(_Rule):
    """Any candidate: what the planner's proposals are worth without a choice."""

    kind: ClassVar[str] = "random"

    def pick(self, pool: Pool) -> Decision:
        return _plain(pool.random_index(), pool)


@dataclass(frozen=True)
class Oracle(_Rule):
    """The candidate whose actions, executed in simulation, lead to the trajectory of the highest value.

    No gate can know more than what will happen, so what it gains over the highest promised value bounds what
    knowing which plans are feasible can gain.
    """

    kind: ClassVar[str] = "oracle"
    needs: ClassVar[frozenset[str]] = frozenset({"simulator"})

    def pick(self, pool: Pool) -> Decision:
        return _plain(_best(pool.realised_values()), pool)


KINDS: dict[str, type[Any]] = {kind.kind: kind for kind in (Mcss, Sage, Random, LowestEnergy, Oracle)}


def parse(text: str) -> Selector:
    """Of "mcss", "sage", or "sage:prefix=20:keep=0.5": the arm of that name."""
    kind, *settings = text.strip().split(":")
    if kind not in KINDS:
        raise ConfigError(f"there is no selector '{kind}'; choose of {', '.join(KINDS)}")
    known = {field.name: field for field in dataclasses.fields(KINDS[kind])}
    given: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in known:
            choice = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"selector '{kind}' has no setting '{name}'; {choice}")
        try:
            kind_of: type[Any] = type(known[name].default)
            given[name] = kind_of(value)
        except ValueError:
            raise ConfigError(f"selector '{text}': {name} cannot be {value!r}") from None
    selector: Selector = KINDS[kind](**given)
    return selector


def arms(selectors: Sequence[str | Selector]) -> list[Selector]:
    """Selectors by name or as they are; two of one name would share their records."""
    chosen = [parse(one) if isinstance(one, str) else one for one in selectors]
    names = [one.name for one in chosen]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"give at least one selector, and none twice; got {', '.join(names) or 'none'}")
    return chosen


def _best(values: Tensor) -> Tensor:
    """[B] the first of the highest, NaN never winning."""
    return select(values, torch.zeros_like(values), keep=1.0, penalty=0.0).index


def _plain(index: Tensor, pool: Pool) -> Decision:
    """Of a rule that neither filters nor penalises."""
    nothing = torch.zeros_like(index, dtype=torch.bool)
    return Decision(index, nothing, nothing, index != _best(pool.values))


def _mean_energy(pool: Pool, prefix: int) -> Tensor:
    """[B, C]; no steps cost nothing."""
    return pool.step_energy(prefix).mean(-1) if prefix else torch.zeros_like(pool.values)


def _check_prefix(prefix: int) -> None:
    if prefix < 0:
        raise ConfigError(f"prefix counts steps and cannot be negative, got {prefix}")
