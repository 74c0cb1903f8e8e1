"""Stage I: a JEPA encoder of single states, trained to make masked context predict future latents."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Batch, Windows
from sageplan.errors import TrainingError
from sageplan.gate.config import Stage1
from sageplan.gate.transformer import Block
from sageplan.training.loop import Average

COLLAPSED_STD, COLLAPSED_RANK = 0.05, 1.5  # teacher latents below either carry next to nothing


class Encoder(nn.Sequential):
    """e_θ: normalised states [..., S] to latents [..., d_z], each state by itself.

    bias_spread  see Stage1; the last layer makes up for what it does to the first latents' mean and deviation
    """

    def __init__(self, state_dim: int, hidden: int, latent: int, bias_spread: float | None = None) -> None:
        first, second, last = nn.Linear(state_dim, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, latent)
        super().__init__(first, nn.LayerNorm(hidden), nn.GELU(), second, nn.LayerNorm(hidden), nn.GELU(), last)
        if bias_spread is None:
            return
        with torch.no_grad():
            for layer in (first, second):
                layer.bias.normal_(std=bias_spread)
            latents = self(torch.randn(1_000, state_dim)) - last.bias
            scale = latents.std(0).mean()
            last.weight.div_(scale)
            last.bias.copy_(-latents.mean(0) / scale)


class OffsetPredictor(nn.Module):
    """g_φ: context latents [B, W, d] and offsets [O] to predicted latents [B, O, d].

    One learnable token per offset stands at position W−1+k and attends to the context.
    """

    def __init__(self, config: Stage1) -> None:
        super().__init__()
        width = config.latent
        self.window = config.window
        self.position = nn.Parameter(0.02 * torch.randn(config.window + config.max_offset, width))
        self.token = nn.Parameter(0.02 * torch.randn(width))
        self.offset = nn.Embedding(config.max_offset, width)
        self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, context: Tensor, offsets: Tensor) -> Tensor:
        batch, count = len(context), len(offsets)
        queries = self.token + self.position[self.window - 1 + offsets]
        x = torch.cat([context + self.position[: self.window], queries.expand(batch, count, -1)], dim=1)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x[:, self.window :]) + self.offset(offsets - 1))
        return out


def mask_view(states: Tensor, feature: float, time: float, generator: torch.Generator) -> Tensor:
    """states [B, W, S] with random entries zeroed per step and random whole steps zeroed.

    Zero is the mean of a normalised state.
    """
    batch, window, _ = states.shape
    noise = torch.rand(states.shape, generator=generator, device=states.device)
    rows = torch.rand((batch, window, 1), generator=generator, device=states.device)
    return states * ((noise >= feature) & (rows >= time))


def vicreg(predicted: Tensor, target: float, epsilon: float) -> tuple[Tensor, Tensor]:
    """predicted [n, d] to the variance hinge and the covariance penalty (Eqs. vicreg_var, vicreg_cov)."""
    count, size = predicted.shape
    centred = predicted - predicted.mean(0)
    with torch.autocast(predicted.device.type, enabled=False):  # a covariance in bf16 has two digits
        covariance = centred.T @ centred / (count - 1)
    variance = covariance.diagonal()
    hinge = F.relu(target - (variance + epsilon).sqrt()).mean()
    return hinge, (covariance.square().sum() - variance.square().sum()) / size


def effective_rank(latents: Tensor) -> float:
    """exp of the entropy of the covariance spectrum of [n, d]: 1 when one direction holds all, d when all share."""
    spectrum = torch.linalg.eigvalsh(torch.cov(latents.double().T)).clamp(min=0)
    share = spectrum / spectrum.sum().clamp(min=1e-30)
    return float(torch.exp(-(share * share.clamp(min=1e-30).log()).sum()))


class EncoderLearner(nn.Module):
    """Trains e_θ and g_φ; the loop keeps the teacher e_θ̄ as the moving average of e_θ."""

    name = "stage1"

    def __init__(self, config: Stage1, normaliser: Normaliser, train: Windows, held_out: Windows) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(len(normaliser.mean), config.hidden, config.latent, config.bias_spread)
        self.predictor = OffsetPredictor(config)
        self.teacher = copy.deepcopy(self.encoder).requires_grad_(False)
        self.normaliser = normaliser
        self._train, self._held_out = train, held_out

    @staticmethod
    def window_length(config: Stage1) -> int:
        """States a training window needs: W of context and K_max after it."""
        return config.window + config.max_offset

    @property
    def average(self) -> Average:
        return Average(self.encoder, self.teacher, self.momentum)

    def momentum(self, progress: float) -> float:
        first, last = self.config.momentum
        return last - (last - first) * 0.5 * (1 + math.cos(math.pi * progress))

    def sample(self, batch: int, generator: torch.Generator) -> Batch:
        return self._train.sample(batch, generator)

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        states = self.normaliser(batch.states)
        offsets = torch.randperm(config.max_offset, generator=generator, device=states.device)
        offsets = offsets[: config.offsets] + 1
        context, futures = states[:, : config.window], states[:, config.window - 1 + offsets]
        views = [mask_view(context, config.feature_mask, config.time_mask, generator) for _ in range(2)]
        predicted = self.predictor(self.encoder(torch.cat(views)), offsets).float()  # [2B, O, d]
        with torch.no_grad():
            target = self.teacher(futures).float()  # [B, O, d]
        return self.objective(predicted, target)

    def objective(self, predicted: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """predicted [2B, O, d] of both views, target [B, O, d] (Eq. stage1_total_app)."""
        config = self.config
        error = (predicted.view(2, *target.shape) - target).square()  # [2, B, O, d]
        error = error.mean(-1) if config.similarity_reduction == "mean" else error.sum(-1)
        similarity = error.mean((1, 2)).sum()
        variance, covariance = vicreg(predicted.flatten(0, 1), config.variance_target, config.variance_epsilon)
        total = similarity + config.variance_weight * variance + config.covariance_weight * covariance
        return total, {"similarity": similarity, "variance": variance, "covariance": covariance}

    @torch.no_grad()
    def evaluate(self, generator: torch.Generator) -> dict[str, float]:
        """Spread of the teacher's latents on held-out states: the regulariser only touches predictions."""
        device = self.normaliser.mean.device
        states = self._held_out.sample(4096, generator).states[:, 0].to(device)
        latents = self.teacher(self.normaliser(states)).float()
        return {
            "teacher_std": float(latents.std(0).mean()),
            "teacher_rank": effective_rank(latents),
        }

    def check(self, metrics: dict[str, float]) -> None:
        """Collapse is an error, not a footnote in a log."""
        std, rank = metrics["teacher_std"], metrics["teacher_rank"]
        if std < COLLAPSED_STD or rank < COLLAPSED_RANK:
            raise TrainingError(
                f"Stage I collapsed: teacher latents have standard deviation {std:.3g} and effective rank {rank:.3g}. "
                "Raise stage1.variance_weight, lower stage1.optimiser.rate or lengthen its warmup; check that the "
                "states vary at all and that similarity_reduction is 'mean'"
            )
