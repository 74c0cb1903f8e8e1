"""J, the value of a plan: DV's horizon critic, and the sum of state values that it uses on locomotion.

Both stay in float32: on long tasks one step more or less moves J by about 1/400, less than bf16 can tell near 1.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Windows, as_tensor
from sageplan.diffusion.dit import sinusoids
from sageplan.errors import DataError
from sageplan.gate.transformer import attend
from sageplan.parallel import spread
from sageplan.planners.config import HorizonCritic, StateValue
from sageplan.training.loop import Average
from sageplan.types import FloatArray, IntArray, Plans, Trajectories

_CHUNK_TOKENS = 2_048
_EPSILON = 1e-6


class CriticBlock(nn.Module):
    """DV's "pre" block: attention is added to the normalised tokens, not to the tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, tokens: int) -> Tensor:
        """x [B, T, width] to the first `tokens` of its outputs: no other one is worked out."""
        batch, length, width = x.shape
        x = _norm(x)
        first = x[:, :tokens]
        query = self.query(first).view(batch, tokens, self.heads, -1).transpose(1, 2)
        key, value = self.key_value(x).view(batch, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = attend(query, key, value, None).transpose(1, 2).reshape(batch, tokens, width)
        x = first + self.out(attended)
        out: Tensor = x + self.down(F.gelu(self.up(_norm(x)), approximate="tanh"))
        return out


class HorizonValue(nn.Module):
    """The value of a plan, read off its first token."""

    position: Tensor

    def __init__(self, config: HorizonCritic, horizon: int, normaliser: Normaliser) -> None:
        super().__init__()
        self.normaliser = copy.deepcopy(normaliser)
        self.horizon, token = horizon, config.patch * len(normaliser.mean)
        self.embed, self.head = nn.Linear(token, config.width), nn.Linear(config.width, 1)
        self.register_buffer("position", sinusoids(horizon // config.patch, config.width), persistent=False)
        self.blocks = nn.ModuleList(CriticBlock(config.width, config.heads) for _ in range(config.depth))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, states: Tensor) -> Tensor:
        """raw states [N, H, S] to values [N]"""
        x = self.embed(self.normaliser(states).view(len(states), len(self.position), -1)) + self.position
        for number, block in enumerate(self.blocks, 1):
            x = block(x, 1 if number == len(self.blocks) else x.shape[1])
        value: Tensor = self.head(x[:, 0])[:, 0]
        return value


class SummedStateValue(nn.Module):
    """Σ V(s) over the planned states, the observed one left out; on the scale of returns, not in [−1, 1]."""

    def __init__(self, config: StateValue, normaliser: Normaliser) -> None:
        super().__init__()
        width = config.width
        self.normaliser = copy.deepcopy(normaliser)
        self.layers = nn.Sequential(
            nn.Linear(len(normaliser.mean), width), nn.LayerNorm(width), nn.Mish(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.Mish(), nn.Linear(width, 1),
        )  # fmt: skip

    def each(self, states: Tensor) -> Tensor:
        """raw states [..., S] to V [...]"""
        value: Tensor = self.layers(self.normaliser(states))[..., 0]
        return value

    def forward(self, states: Tensor) -> Tensor:
        """raw states [N, H, S] to values [N]"""
        return self.each(states[:, 1:]).sum(1)


PlanValue = HorizonValue | SummedStateValue


class Critic:
    """Scores plans in float32, whatever autocast says."""

    def __init__(self, network: PlanValue) -> None:
        self.network = network.requires_grad_(False).eval()

    @property
    def independent(self) -> bool:
        """Whether a plan's value is the same to the last bit, whatever else is valued."""
        return self.network.normaliser.mean.device.type == "cpu"

    def __call__(self, plans: Plans) -> Tensor:
        """[B, C], higher is better"""
        batch, candidates, horizon, size = plans.states.shape
        known = self.network.normaliser.mean
        if size != len(known):
            raise DataError(f"plans have states of size {size}; this critic was trained on {len(known)}")
        if isinstance(self.network, HorizonValue) and horizon != self.network.horizon:
            raise DataError(f"plans have {horizon} states; this critic was trained on {self.network.horizon}")
        tokens = len(self.network.position) if isinstance(self.network, HorizonValue) else horizon
        states = plans.states.to(known.device, torch.float32)
        # On a CPU never plans of two observations: what one is worth then depends on no other, to the last bit.
        rows = 1 if self.independent else batch
        columns = max(1, _CHUNK_TOKENS // tokens) if self.independent else candidates
        pieces = [part for row in torch.split(states, rows) for part in torch.split(row, columns, 1)]
        values = torch.cat([part.flatten() for part in spread(self._value, pieces, known.device)])
        return values.view(batch, candidates)

    @torch.no_grad()
    def _value(self, states: Tensor) -> Tensor:
        """[b, c, H, S] to [b, c]"""
        with torch.autocast(states.device.type, enabled=False):
            value: Tensor = self.network(states.flatten(0, 1)).view(states.shape[:2])
        return value


class ValuedWindows(NamedTuple):
    """states [B, H, S] and the value [B] of the path from their first one on"""

    states: Tensor
    values: Tensor


def sample_valued(windows: Windows, values: Tensor, batch: int, generator: torch.Generator) -> ValuedWindows:
    """Uniform over windows; values [N] of the data's rows."""
    numbers = torch.randint(len(windows), (batch,), generator=generator)
    rows = windows.rows(numbers)
    return ValuedWindows(windows.gather(numbers).states, values[rows[:, 0]])


class HorizonLearner(nn.Module):
    """Regression of the recorded value of clean windows."""

    name = "critic"
    average = None

    def __init__(self, model: HorizonValue, train: Windows, held_out: Windows, values: FloatArray) -> None:
        super().__init__()
        self.model = model
        self._train, self._held_out, self._values = train, held_out, as_tensor(values)

    def sample(self, batch: int, generator: torch.Generator) -> ValuedWindows:
        return sample_valued(self._train, self._values, batch, generator)

    def loss(self, batch: ValuedWindows, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        return F.mse_loss(self.model(batch.states).float(), batch.values), {}

    @torch.no_grad()
    def evaluate(self, generator: torch.Generator) -> dict[str, float]:
        """Error on held-out windows, as a share of what answering the mean value leaves."""
        states, values = sample_valued(self._held_out, self._values, 2_048, generator)
        device = self.model.position.device
        guess = torch.cat([self.model(part.to(device)).cpu() for part in torch.split(states, 128)])
        spread = float((values - values.mean()).square().mean())
        return {"held_out_unexplained": float(F.mse_loss(guess, values)) / max(spread, 1e-12)}

    def check(self, metrics: dict[str, float]) -> None:
        """A poor critic shows in the returns, not here."""


class Steps(NamedTuple):
    """states [B, S], the states after them [B, S], rewards [B], and whether [B] the episode went on"""

    states: Tensor
    following: Tensor
    rewards: Tensor
    alive: Tensor


class StateValueLearner(nn.Module):
    """TD(0) evaluation of the policy in the data. As in D4RL's Q-learning sets, rewards are as recorded, a terminal
    step has nothing after it, and the last step before a time limit is left out."""

    name = "critic"

    def __init__(
        self, config: StateValue, model: SummedStateValue, data: Trajectories, train: IntArray, held_out: IntArray
    ) -> None:
        super().__init__()
        if data.rewards is None:
            raise DataError(f"{data.name} has no rewards, which values are learnt from")
        self.config, self.model = config, model
        self.target = copy.deepcopy(model).requires_grad_(False)
        last = np.zeros(len(data), np.bool_)
        last[data.offsets[1:] - 1] = True
        terminal = np.zeros(len(data), np.bool_) if data.terminals is None else data.terminals
        self._states, self._rewards = as_tensor(data.states), as_tensor(data.rewards)
        self._alive = torch.from_numpy(~terminal)
        self._next = torch.from_numpy(np.arange(len(data)) + ~last)
        usable = terminal | ~last
        episode = np.repeat(np.arange(data.num_episodes), data.lengths)
        self._train = torch.from_numpy(np.flatnonzero(usable & np.isin(episode, train)))
        self._held_out = torch.from_numpy(np.flatnonzero(usable & np.isin(episode, held_out)))

    @property
    def average(self) -> Average:
        return Average(self.model, self.target, lambda _: self.config.ema)

    def sample(self, batch: int, generator: torch.Generator) -> Steps:
        return self._draw(self._train, batch, generator)

    def _draw(self, rows: Tensor, batch: int, generator: torch.Generator) -> Steps:
        at = rows[torch.randint(len(rows), (batch,), generator=generator)]
        return Steps(self._states[at], self._states[self._next[at]], self._rewards[at], self._alive[at])

    def loss(self, batch: Steps, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            after = self.target.each(batch.following).float()
            target = batch.rewards + self.config.discount * after * batch.alive
        value = self.model.each(batch.states).float()
        return F.mse_loss(value, target), {"value": value.mean()}

    @torch.no_grad()
    def evaluate(self, generator: torch.Generator) -> dict[str, float]:
        """Held-out TD error."""
        device = self.model.normaliser.mean.device
        batch = Steps(*(part.to(device) for part in self._draw(self._held_out, 4_096, generator)))
        return {"held_out_td_error": float(self.loss(batch, 0, generator)[0])}

    def check(self, metrics: dict[str, float]) -> None:
        """A poor critic shows in the returns, not here."""


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), eps=_EPSILON)
