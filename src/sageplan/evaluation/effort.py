"""What an evaluation cost, and how much of it the arms shared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Effort:
    """Counts since this evaluation was started or resumed.

    decisions  plans that arms asked for
    planned    plannings that this took; arms in the same state at the same step share one
    steps      environment steps, summed over environments
    seconds    by stage: environment, propose, value, actions, gate, simulate, select
    """

    decisions: int = 0
    planned: int = 0
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    _within: list[float] = field(default_factory=list, repr=False)

    @property
    def shared(self) -> float:
        """Share of the decisions that needed no planning of their own."""
        return 1 - self.planned / self.decisions if self.decisions else 0.0

    def add(self, parts: Sequence[Effort], wall: float) -> None:
        """Stages that were measured in threads side by side: they share the `wall` seconds that all together took."""
        busy: Counter[str] = Counter()
        for part in parts:
            busy.update(part.seconds)
        whole = sum(busy.values())
        for stage, spent in busy.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent * wall / whole

    @contextmanager
    def measure(self, stage: str, device: torch.device) -> Iterator[None]:
        """A stage within a stage counts for the inner one alone, so that all seconds add up."""
        self._within.append(0.0)
        began = time.perf_counter()
        try:
            yield
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        finally:
            spent, inner = time.perf_counter() - began, self._within.pop()
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent - inner
            if self._within:
                self._within[-1] += spent
