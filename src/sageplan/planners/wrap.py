"""A planner out of one function: how planners from elsewhere get a gate behind them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sageplan.errors import ConfigError, DataError
from sageplan.planners.protocol import Chance, check_request
from sageplan.types import Plans

PlanFunction = Callable[[Tensor, int, torch.Generator], Tensor | tuple[Tensor, Tensor]]
"""observation [S], number of candidates C, chance → states [C, H+1, S], alone or with actions [C, H, A]; raw units"""

_SAME = 1e-4


class Wrapped:
    """Calls the function for one observation after the other, and checks what it answers.

    stride     environment steps between two states of its plans
    state_dim  S
    """

    def __init__(self, function: PlanFunction, state_dim: int, *, stride: int = 1) -> None:
        if stride < 1:
            raise ConfigError(f"stride must be at least 1, got {stride}")
        self.function, self.state_dim, self.stride = function, state_dim, stride
        self.name = getattr(function, "__name__", type(function).__name__)

    def propose(self, observations: Tensor, candidates: int, generator: Chance) -> Plans:
        """Raw observations [B, S] to plans with C = candidates."""
        check_request(observations, self.state_dim, candidates, generator)
        chance = [generator] * len(observations) if isinstance(generator, torch.Generator) else generator
        answers = [self._one(row, candidates, own) for row, own in zip(observations, chance, strict=True)]
        if any(len(answer) != len(answers[0]) for answer in answers):
            raise DataError(f"{self.name} proposed actions for some observations only")
        states, *actions = (torch.stack(parts) for parts in zip(*answers, strict=True))
        return Plans(states, actions[0] if actions else None)

    def _one(self, observation: Tensor, candidates: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        answer = self.function(observation, candidates, generator)
        states, *actions = answer if isinstance(answer, tuple) else (answer,)
        shape = tuple(states.shape)
        if len(shape) != 3 or (shape[0], shape[2]) != (candidates, self.state_dim) or shape[1] < 2:
            raise DataError(
                f"{self.name} proposed states of shape {shape}, expected [{candidates}, H+1, {self.state_dim}]"
            )
        if actions and tuple(actions[0].shape[:2]) != (candidates, shape[1] - 1):
            raise DataError(
                f"{self.name} proposed actions of shape {tuple(actions[0].shape)}, "
                f"expected [{candidates}, {shape[1] - 1}, A]: the last state has no action"
            )
        apart = float((states[:, 0] - observation).abs().max())
        if not apart <= _SAME * (1 + float(observation.abs().max())):
            raise DataError(
                f"{self.name} proposed plans whose first state is {apart:.3g} away from the observation; "
                "the first state of a plan is the observed one, in raw units"
            )
        states = states.float().clone()
        states[:, 0] = observation
        return (states, *(part.float() for part in actions))
