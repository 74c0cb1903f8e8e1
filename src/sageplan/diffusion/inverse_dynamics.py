"""p(a_t | s_t, s_{t+1}) as a conditional DDPM, for planners that propose states only."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Batch, Windows
from sageplan.diffusion.schedules import cosine
from sageplan.gate.config import InverseDynamics
from sageplan.parallel import spread
from sageplan.training.loop import Average, autocast
from sageplan.types import FloatArray

_TIME_FEATURES = 64
_CHUNK = 2_048  # pairs denoised together: the activations of one chunk stay in the cache


class ActionRange(nn.Module):
    """Affine map of raw actions to [−1, 1], where sampling clips. Data already inside stays as it is."""

    centre: Tensor
    spread: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))

    @classmethod
    def fit(cls, actions: FloatArray) -> ActionRange:
        """actions [N, A]"""
        self = cls(actions.shape[1])
        low, high = torch.from_numpy(actions.min(0)), torch.from_numpy(actions.max(0))
        if torch.maximum(high, -low).max() > 1:
            self.centre.copy_((low + high) / 2)
            self.spread.copy_(((high - low) / 2).clamp(min=1e-6))
        return self

    def squash(self, actions: Tensor) -> Tensor:
        return (actions - self.centre) / self.spread

    def expand(self, actions: Tensor) -> Tensor:
        return actions * self.spread + self.centre


class Mish(nn.Module):
    """x·tanh(softplus(x)) = x·(1 − s²)/(1 + s²) with s = sigmoid(−x), in float32.

    Without gradients, on a CPU, by the second formula: PyTorch's own kernel takes four times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or torch.is_grad_enabled():
            return F.mish(x)
        x = x.float()
        square = torch.sigmoid(-x).square_()
        return (1 - square).div_(square.add_(1)).mul_(x)


class ActionDenoiser(nn.Module):
    """ε̂(a_noisy, level, s, s′): a three-layer Mish MLP on [a_noisy, time embedding, s, s′].

    The first layer is kept in three parts, because only the part on a_noisy changes while sampling.
    """

    def __init__(self, state_dim: int, action_dim: int, config: InverseDynamics) -> None:
        super().__init__()
        hidden, self.precision = config.hidden, config.precision
        self.time = nn.Sequential(
            nn.Linear(_TIME_FEATURES, 2 * _TIME_FEATURES),
            nn.Mish(),
            nn.Linear(2 * _TIME_FEATURES, _TIME_FEATURES),
        )
        self.from_action = nn.Linear(action_dim, hidden)
        self.from_time = nn.Linear(_TIME_FEATURES, hidden, bias=False)
        self.from_states = nn.Linear(2 * state_dim, hidden, bias=False)
        self.layers = nn.Sequential(
            Mish(), nn.Linear(hidden, hidden), Mish(), nn.Linear(hidden, hidden), Mish(),
            nn.Linear(hidden, action_dim),
        )  # fmt: skip

    def levels(self, levels: Tensor) -> Tensor:
        """[n] noise levels to [n, hidden]: their share of the first layer."""
        half = _TIME_FEATURES // 2
        rate = torch.exp(-math.log(10_000.0) / half * torch.arange(half, device=levels.device))
        angle = levels.float()[:, None] * rate
        hidden: Tensor = self.from_time(self.time(torch.cat([angle.sin(), angle.cos()], dim=1)))
        return hidden

    def states(self, now: Tensor, following: Tensor) -> Tensor:
        """normalised states [n, S] and [n, S] to [n, hidden]: their share of the first layer."""
        hidden: Tensor = self.from_states(torch.cat([now, following], dim=1))
        return hidden

    def forward(self, noisy: Tensor, level: Tensor, pair: Tensor) -> Tensor:
        """noisy [n, A]; level [n or 1, hidden]; pair [n, hidden]"""
        hidden = self.from_action(noisy) + level + pair
        if self.precision == "fp32" or torch.is_grad_enabled():
            noise: Tensor = self.layers(hidden)
            return noise
        # Not the first layer: two neighbouring states may well be the same in bf16.
        with autocast(hidden.device, self.precision):
            noise = self.layers(hidden)
        return noise.float()


class InverseDynamicsModel(nn.Module):
    """Draws actions between pairs of raw states."""

    def __init__(self, config: InverseDynamics, normaliser: Normaliser, actions: ActionRange) -> None:
        super().__init__()
        self.normaliser = copy.deepcopy(normaliser)  # its own: saved weights may not share memory
        self.actions, self.temperature, self.relative = actions, config.temperature, config.relative
        self.denoiser = ActionDenoiser(len(normaliser.mean), len(actions.centre), config)
        alpha, sigma = cosine(config.steps)
        self.register_buffer("alpha", alpha, persistent=False)
        self.register_buffer("sigma", sigma, persistent=False)

    alpha: Tensor
    sigma: Tensor

    def pair(self, states: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        """Raw states [n, S] and [n, S] to what the denoiser sees of them: normalised, positions made relative."""
        now, then, leading = self.normaliser(states), self.normaliser(following), self.relative
        if leading:
            then[:, :leading] -= now[:, :leading]
            now[:, :leading] = 0
        return now, then

    @torch.no_grad()
    def draw(self, states: Tensor, following: Tensor, generator: torch.Generator) -> Tensor:
        """states [n, S] and the states after them [n, S], raw, to one drawn action each [n, A], raw."""
        size = (len(states), len(self.actions.centre))
        levels = self.denoiser.levels(torch.arange(len(self.alpha), device=states.device))
        noise = [torch.randn(size, generator=generator, device=states.device) for _ in range(len(self.alpha))]

        def denoise(begin: int) -> Tensor:
            rows = slice(begin, begin + _CHUNK)
            with torch.no_grad():
                pair = self.denoiser.states(*self.pair(states[rows], following[rows]))
                return self._denoise([n[rows] for n in noise], levels, pair)

        drawn = spread(denoise, range(0, len(states), _CHUNK), states.device)
        return self.actions.expand(torch.cat(drawn) if drawn else states.new_zeros(size))

    def _denoise(self, noise: list[Tensor], levels: Tensor, pair: Tensor) -> Tensor:
        """DDPM ancestral sampling, clean estimate clipped; the temperature scales the initial noise only."""
        alpha, sigma = self.alpha, self.sigma
        x = self.temperature * noise[-1]
        clean: Tensor
        for level in range(len(alpha) - 1, -1, -1):
            clean = (x - sigma[level] * self.denoiser(x, levels[level], pair)) / alpha[level]
            clean = clean.clamp(-1, 1)
            if level == 0:
                break
            ratio = alpha[level] / alpha[level - 1]
            variance = (sigma[level - 1] / sigma[level]).square() * (1 - ratio.square())
            from_noisy = ratio * (sigma[level - 1] / sigma[level]).square()
            from_clean = alpha[level - 1] * (1 - ratio.square()) / sigma[level].square()
            x = from_clean * clean + from_noisy * x + variance.sqrt() * noise[level - 1]
        return clean


class InverseDynamicsLearner(nn.Module):
    """Trains the denoiser on transitions; the loop keeps `model` as its moving average."""

    name = "inverse_dynamics"

    def __init__(
        self,
        config: InverseDynamics,
        normaliser: Normaliser,
        actions: ActionRange,
        train: Windows,
        held_out: Windows,
    ) -> None:
        super().__init__()
        self.config = config
        self.model = InverseDynamicsModel(config, normaliser, actions).requires_grad_(False)
        self.online = copy.deepcopy(self.model.denoiser).requires_grad_(True)
        self._train, self._held_out = train, held_out

    @property
    def average(self) -> Average:
        return Average(self.online, self.model.denoiser, lambda _: self.config.ema)

    def sample(self, batch: int, generator: torch.Generator) -> Batch:
        """Windows of two states."""
        return self._train.sample(batch, generator)

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean squared error of the predicted noise, at a random level per transition."""
        model, device = self.model, batch.states.device
        clean = model.actions.squash(batch.actions[:, 0])
        level = torch.randint(len(model.alpha), (len(clean),), generator=generator, device=device)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        noisy = model.alpha[level, None] * clean + model.sigma[level, None] * noise
        table = self.online.levels(torch.arange(len(model.alpha), device=device))
        pair = self.online.states(*model.pair(batch.states[:, 0], batch.states[:, 1]))
        predicted = self.online(noisy, table[level], pair)
        return F.mse_loss(predicted.float(), noise), {}

    @torch.no_grad()
    def evaluate(self, generator: torch.Generator) -> dict[str, float]:
        """Error of drawn actions on held-out transitions, beside that of always answering the mean action."""
        batch = self._held_out.sample(2048, generator)
        device = self.model.alpha.device
        real = batch.actions[:, 0].to(device)
        noise = torch.Generator(device).manual_seed(0)
        drawn = self.model.draw(batch.states[:, 0].to(device), batch.states[:, 1].to(device), noise)
        return {
            "held_out_error": float((drawn - real).abs().mean()),
            "held_out_mean_action": float((real.mean(0) - real).abs().mean()),
        }

    def check(self, metrics: dict[str, float]) -> None:
        """A poor inverse model shows in the energies of its actions, not here."""
