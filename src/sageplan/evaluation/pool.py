"""The candidates of one decision, and what rules may ask about them. Nothing here depends on who else asks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sageplan.errors import ConfigError, DataError
from sageplan.evaluation.chance import Stream, stream
from sageplan.evaluation.effort import Effort
from sageplan.gate.gate import Gate
from sageplan.planners.protocol import Scorer
from sageplan.tasks.catalogue import Task
from sageplan.types import Plans

Float64Array = npt.NDArray[np.float64]


class Inverse(Protocol):
    """Draws the action between two states that are a plan's step apart."""

    def draw(self, states: Tensor, following: Tensor, generator: torch.Generator) -> Tensor:
        """Raw states [n, S] and the states after them [n, S] to actions [n, A]."""


class MazeSimulation:
    """What really happens to balls in one of the mazes."""

    def __init__(self, task: Task, candidates: int) -> None:
        from sageplan.tasks.maze2d import Maze, PointMaze

        self._balls = PointMaze(Maze.named(task.world), candidates)

    def __call__(self, state: Float64Array, actions: Float64Array) -> Float64Array:
        """One state [4] and actions [C, H, 2] to states [C, H+1, 4]; NaN where actions are not finite."""
        broken = np.logical_not(np.isfinite(actions).all((1, 2)))
        self._balls.set_state(np.repeat(state[None], len(actions), 0))
        steps = np.where(np.isfinite(actions), actions, 0.0).swapaxes(0, 1)
        states = np.stack([self._balls.state, *(self._balls.step(step) for step in steps)], 1)
        states[broken] = np.nan
        return states

    def close(self) -> None:
        self._balls.close()


@dataclass(frozen=True, eq=False)
class Tools:
    """What pools are worked on with, the same for all decisions of an evaluation."""

    scorer: Scorer
    gate: Gate | None
    inverse_dynamics: Inverse | None
    simulation: MazeSimulation | None
    stride: int
    replan_every: int
    sampler_seed: int
    device: torch.device
    effort: Effort

    @property
    def thread_safe(self) -> bool:
        """Whether pools may be worked on at the same time: nobody else's inverse dynamics, no simulator's balls."""
        own = self.gate.inverse_dynamics if self.gate else None
        return self.simulation is None and (self.inverse_dynamics is None or self.inverse_dynamics is own)


class LivePool:
    """A pool of one: plans with B = 1, proposed for the state that `episode` is in at `step`.

    Actions that planned states leave open are drawn once and are the same for every rule: those that may be
    executed from one stream, all others from a second one, so that a rule that needs no energies sees the same
    action as one that does.
    """

    def __init__(
        self, tools: Tools, plans: Plans, values: Tensor, state: Float64Array, episode: int, step: int
    ) -> None:
        self._tools, self._plans, self._state = tools, plans, state
        self._episode, self._step = episode, step
        self.values, self.effort = values, Effort()
        self._drawn: dict[tuple[int, int], Tensor] = {}
        self._energies: dict[int, Tensor] = {}
        self._realised: Tensor | None = None

    @property
    def length(self) -> int:
        """H"""
        return int(self._plans.states.shape[2]) - 1

    def step_energy(self, prefix: int) -> Tensor:
        """[1, C, K]"""
        gate, prefix = self._tools.gate, min(prefix, self.length)
        if gate is None:
            raise ConfigError("energies need a gate, and this evaluation has none")
        if prefix not in self._energies:
            actions = self.actions(prefix)
            with self._measure("gate"):
                states = self._plans.states[:, :, : prefix + 1]
                self._energies[prefix] = gate.step_energy(states, actions, stride=self._tools.stride).clone()
        return self._energies[prefix]

    def random_index(self) -> Tensor:
        source = self._stream(Stream.PICK)
        return torch.randint(self.values.shape[1], (1,), generator=source, device=self._tools.device)

    def realised_values(self) -> Tensor:
        """[1, C]"""
        if self._tools.simulation is None:
            raise ConfigError("the oracle needs a simulator, and this evaluation has none")
        if self._realised is None:
            actions = self.actions(self.length)
            with self._measure("simulate"):
                states = self._tools.simulation(self._state, actions[0].double().cpu().numpy())
                happened = torch.from_numpy(states).to(self._plans.states)[None]
                self._realised = self._tools.scorer(Plans(happened, actions))
        return self._realised

    def actions(self, steps: int) -> Tensor:
        """[1, C, `steps`, A] of the plans' first steps."""
        if self._plans.actions is not None:
            return self._plans.actions[:, :, :steps]
        soon = self._draw(0, min(self._tools.replan_every, self.length), Stream.EXECUTE)
        if steps <= soon.shape[2]:
            return soon[:, :, :steps]
        return torch.cat([soon, self._draw(soon.shape[2], steps, Stream.SCORE)], 2)

    def executed(self, index: int) -> tuple[Float64Array, Float64Array]:
        """Actions [n, A] to execute until the next decision, and the states [n, S] that they are to lead to."""
        actions = self.actions(self._tools.replan_every)[0, index]
        states = self._plans.states[0, index, 1 : 1 + len(actions)]
        return actions.double().cpu().numpy(), states.double().cpu().numpy()

    def plan(self, index: int) -> Float64Array:
        """[H+1, S] states of one candidate."""
        return self._plans.states[0, index].double().cpu().numpy()

    def _draw(self, first: int, last: int, purpose: Stream) -> Tensor:
        """[1, C, last − first, A]"""
        inverse = self._tools.inverse_dynamics
        if inverse is None:
            raise ConfigError(
                "the planner proposes states only, so actions need inverse dynamics; give a gate that was fitted "
                "with it, or inverse_dynamics"
            )
        if (first, last) not in self._drawn:
            states = self._plans.states[0, :, first : last + 1]
            with self._measure("actions"):
                now, following = states[:, :-1].flatten(0, 1), states[:, 1:].flatten(0, 1)
                drawn = inverse.draw(now, following, self._stream(purpose, last))
                self._drawn[first, last] = drawn.view(1, len(states), last - first, -1)
        return self._drawn[first, last]

    def _stream(self, purpose: Stream, *more: int) -> torch.Generator:
        tools = self._tools
        return stream(purpose, tools.sampler_seed, self._episode, self._step, tools.device, *more)

    def _measure(self, stage: str) -> AbstractContextManager[None]:
        return self.effort.measure(stage, self._tools.device)


def check_proposal(plans: Plans, values: Tensor, expected: tuple[int, int, int], action_dim: int) -> None:
    """Refuse what a planner or a scorer should not have answered; expected is (B, C, S)."""
    count, candidates, size = expected
    shape = tuple(plans.states.shape)
    if len(shape) != 4 or (shape[0], shape[1], shape[3]) != expected or shape[2] < 2:
        raise DataError(
            f"the planner proposed states of shape {shape}, expected ({count}, {candidates}, H+1, {size}) with H ≥ 1"
        )
    wanted = (count, candidates, shape[2] - 1, action_dim)
    if plans.actions is not None and tuple(plans.actions.shape) != wanted:
        raise DataError(f"the planner proposed actions of shape {tuple(plans.actions.shape)}, expected {wanted}")
    if tuple(values.shape) != (count, candidates):
        raise DataError(f"the scorer gave values of shape {tuple(values.shape)}, expected ({count}, {candidates})")
