"""Diffusion Veteran: plans of states, drawn from a diffusion Transformer that knows the first one."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Windows, as_tensor
from sageplan.diffusion.dit import DiT, Prepared
from sageplan.diffusion.samplers import Coefficients, coefficients, sample
from sageplan.diffusion.schedules import FIRST, alpha_sigma, times
from sageplan.errors import ConfigError, DataError
from sageplan.parallel import spread
from sageplan.planners import store
from sageplan.planners.config import VeteranConfig
from sageplan.planners.critic import Critic, PlanValue, ValuedWindows, sample_valued
from sageplan.planners.protocol import Chance, check_request, noise
from sageplan.training.checkpoint import load_weights
from sageplan.training.loop import Average
from sageplan.types import FloatArray, Plans, Trajectories

_FREE = {"sampling", "precision", "warm_start"}  # settings that training does not depend on
_CHUNK_TOKENS = 512  # denoised together on a CPU: their activations stay in the cache


class Veteran:
    """The trained planner. Make one with `Veteran.fit` or `Veteran.load`.

    stride  environment steps between two states of its plans
    critic  J of its plans
    """

    def __init__(
        self, config: VeteranConfig, normaliser: Normaliser, denoiser: DiT, value: PlanValue, info: dict[str, Any]
    ) -> None:
        self.config, self.info, self.stride = config, info, config.stride
        self.normaliser, self.denoiser = normaliser, denoiser.requires_grad_(False).eval()
        self.critic = Critic(value)
        self._walk: tuple[Coefficients, Prepared] | None = None

    def __repr__(self) -> str:
        return f"Veteran(state {self.state_dim}, {self.config.horizon} states at stride {self.stride}, {self.device})"

    @classmethod
    def fit(cls, data: Trajectories, config: VeteranConfig, **options: Any) -> Veteran:
        """Train one: see `sageplan.planners.fit.fit`."""
        from sageplan.planners.fit import fit

        return fit(data, config, **options)

    @property
    def state_dim(self) -> int:
        return len(self.normaliser.mean)

    @property
    def independent(self) -> bool:
        """Whether what is planned for an observation is the same to the last bit, whatever else is planned for."""
        return self.device.type == "cpu"

    @property
    def warm_starts(self) -> bool:
        """Whether plans begin from `previous` where it is given."""
        return self.config.warm_start is not None

    @property
    def device(self) -> torch.device:
        return self.normaliser.mean.device

    def to(self, device: str | torch.device) -> Veteran:
        """Move the planner, in place."""
        self.modules().to(device)
        self._walk = None
        return self

    def using(self, **changes: Any) -> Veteran:
        """The same networks with another sampling, precision or warm_start."""
        foreign = sorted(changes.keys() - _FREE)
        if foreign:
            raise ConfigError(f"{', '.join(foreign)} cannot change after training; {', '.join(sorted(_FREE))} can")
        config = replace(self.config, **changes)
        return Veteran(config, self.normaliser, self.denoiser, self.critic.network, self.info)

    def modules(self) -> nn.ModuleDict:
        """The networks by the names under which they are saved."""
        return nn.ModuleDict({"normaliser": self.normaliser, "denoiser": self.denoiser, "critic": self.critic.network})

    def save(self, folder: str | Path) -> None:
        """Write a folder of JSON and safetensors; replacing an older planner in it is atomic."""
        store.save(
            Path(folder), self.modules().state_dict(), state_dim=self.state_dim, config=self.config, info=self.info
        )

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu") -> Veteran:
        """Read what `save` wrote. Corrupt, foreign and newer planners are refused; nothing is ever unpickled."""
        parts, tensors = store.load(Path(folder))
        planner = cls(*parts)
        load_weights(planner.modules(), tensors, Path(folder))
        return planner.to(device)

    def propose(
        self,
        observations: Tensor,
        candidates: int,
        generator: Chance,
        *,
        previous: Tensor | None = None,
        passed: int = 1,
    ) -> Plans:
        """Raw observations [B, S] to plans of states [B, C, H, S], on the planner's device.

        With one generator per observation, each one's plans are the same to the last bit whatever others are asked
        for with it. With settings that have a `warm_start`, plans begin from `previous` [B, H, S], raw: the plans
        that were followed, `passed` planned steps ago. A row of NaN there stands for no plan to begin
        from; with one generator for all, it makes all begin from noise.
        """
        observations = self._check(observations, candidates, generator)
        if previous is None or self.config.warm_start is None:
            return self._plan(observations, candidates, generator, None)
        wanted = (len(observations), self.config.horizon, self.state_dim)
        if previous.shape != wanted or passed < 0:
            raise DataError(f"previous plans have shape {tuple(previous.shape)}, {passed} steps old; expected {wanted}")
        previous = previous.to(self.device, torch.float32)
        known = previous.isfinite().all(-1).all(-1)
        shifted = self._shift(previous, passed)
        if known.all() or isinstance(generator, torch.Generator):
            # one generator for all cannot serve a part of the batch without moving the noise of the rest
            return self._plan(observations, candidates, generator, shifted if known.all() else None)
        states = observations.new_empty(len(known), candidates, *wanted[1:])
        for rows, begin in ((known.nonzero()[:, 0], shifted), ((~known).nonzero()[:, 0], None)):
            if len(rows):
                chance = [generator[int(row)] for row in rows]
                part = None if begin is None else begin[rows]
                states[rows] = self._plan(observations[rows], candidates, chance, part).states
        return Plans(states)

    # ---- inside -----------------------------------------------------------------------------------

    def _check(self, observations: Tensor, candidates: int, generator: Chance) -> Tensor:
        check_request(observations, self.state_dim, candidates, generator)
        return observations.detach().to(self.device, torch.float32)

    def _shift(self, previous: Tensor, passed: int) -> Tensor:
        """What is left of plans [B, H, S], their last state repeated."""
        rows = torch.arange(self.config.horizon, device=previous.device) + passed
        return previous[:, rows.clamp(max=self.config.horizon - 1)]

    def _plan(self, observations: Tensor, candidates: int, generator: Chance, begin: Tensor | None) -> Plans:
        """begin [B, H, S] raw plans to start from, or None to start from noise"""
        steps, denoiser = self._prepared()
        horizon, state_dim = self.config.horizon, self.state_dim
        first = 0 if begin is None else int(len(steps) * (self.config.warm_start or 0))
        shape = (len(observations), candidates, horizon, state_dim)
        count = len(steps) - first if steps.stochastic else 1
        chance = [noise(shape, generator, self.device) for _ in range(count)]
        states = torch.empty(shape, device=self.device)
        with torch.inference_mode():
            start = self.normaliser(observations)
            begin = None if begin is None else self.normaliser(begin)

        def fill(piece: tuple[slice, slice]) -> None:
            rows, columns = piece
            part = [n[rows, columns].reshape(-1, horizon, state_dim) for n in chance]
            here = start[rows].repeat_interleave(len(part[0]) // len(start[rows]), 0)

            def fix(x: Tensor) -> None:
                x[:, 0] = here

            noisy = None
            if begin is not None:
                noisy = begin[rows].repeat_interleave(len(part[0]) // len(begin[rows]), 0)
                noisy = steps.alpha[first] * noisy + steps.sigma[first] * part[0]
            with torch.inference_mode():
                drawn = sample(
                    denoiser, steps, part,
                    prediction=self.config.prediction, temperature=self.config.sampling.temperature,
                    clip=self.config.sampling.clip, fix=fix, begin=noisy, first=first,
                )  # fmt: skip
                drawn = torch.addcmul(self.normaliser.mean, drawn, self.normaliser.std)
                states[rows, columns] = drawn.view(states[rows, columns].shape)

        spread(fill, _pieces(shape, self.config.network.patch, self.device), self.device)
        states[:, :, 0] = observations[:, None]
        return Plans(states)

    def _prepared(self) -> tuple[Coefficients, Prepared]:
        """Worked out once, for these weights on this device."""
        if self._walk is None:
            config, walk = self.config, times(self.config.sampling.steps)
            steps = coefficients(config.sampling.solver, *alpha_sigma(config.schedule, walk))
            self._walk = steps, self.denoiser.prepare(walk.flip(0)[:-1].to(self.device), config.precision)
        return self._walk


def _pieces(shape: tuple[int, int, int, int], patch: int, device: torch.device) -> list[tuple[slice, slice]]:
    """Rows and candidates of [B, C, H, S] to be denoised together.

    On a CPU never those of two observations: the shape of what is multiplied, and with it the last bit of a plan,
    then depends on nobody else.
    """
    batch, candidates, horizon, _ = shape
    if device.type != "cpu":
        return [(slice(None), slice(None))]
    size = max(1, _CHUNK_TOKENS * patch // horizon)
    return [
        (slice(row, row + 1), slice(column, column + size))
        for row in range(batch)
        for column in range(0, candidates, size)
    ]


class VeteranLearner(nn.Module):
    """Trains the denoiser on windows of recorded paths; the loop keeps `model` as its moving average."""

    name = "planner"

    def __init__(
        self,
        config: VeteranConfig,
        normaliser: Normaliser,
        train: Windows,
        held_out: Windows,
        values: FloatArray,
    ) -> None:
        super().__init__()
        self.config, self.normaliser = config, copy.deepcopy(normaliser)
        self.online = DiT(config.horizon, len(normaliser.mean), config.network)
        self.model = copy.deepcopy(self.online).requires_grad_(False)
        self._train, self._held_out, self._values = train, held_out, as_tensor(values)

    @property
    def average(self) -> Average:
        return Average(self.online, self.model, lambda _: self.config.ema)

    def sample(self, batch: int, generator: torch.Generator) -> ValuedWindows:
        return sample_valued(self._train, self._values, batch, generator)

    def loss(self, batch: ValuedWindows, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean squared error of the prediction, at a random time per window; the first state is given, not learnt."""
        return self._error(self.online, batch, generator), {}

    def _error(self, network: DiT, batch: ValuedWindows, generator: torch.Generator) -> Tensor:
        config, clean = self.config, self.normaliser(batch.states)
        time = FIRST + (1 - FIRST) * torch.rand(len(clean), generator=generator, device=clean.device)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device)
        alpha, sigma = (part[:, None, None] for part in alpha_sigma(config.schedule, time))
        noisy = alpha * clean + sigma * noise
        noisy[:, 0] = clean[:, 0]
        target = {"noise": noise, "clean": clean, "velocity": alpha * noise - sigma * clean}[config.prediction]
        error = (network(noisy, time).float() - target).square()
        weight = torch.ones(config.horizon, device=clean.device)
        weight[0], weight[1] = 0, config.next_state_weight
        error = error * weight[:, None]
        if config.value_weight is not None:
            error = error * torch.exp(config.value_weight * (batch.values - 1))[:, None, None]
        mean: Tensor = error.mean()
        return mean

    @torch.no_grad()
    def evaluate(self, generator: torch.Generator) -> dict[str, float]:
        """The loss of the moving average on held-out windows, always with the same noise."""
        device = self.normaliser.mean.device
        batch = sample_valued(self._held_out, self._values, 512, generator)
        chance = torch.Generator(device).manual_seed(0)
        parts = [
            self._error(self.model, ValuedWindows(states.to(device), values.to(device)), chance)
            for states, values in zip(torch.split(batch.states, 64), torch.split(batch.values, 64), strict=True)
        ]
        return {"held_out_loss": float(torch.stack(parts).mean())}

    def check(self, metrics: dict[str, float]) -> None:
        """A poor planner shows in its plans, not here."""
