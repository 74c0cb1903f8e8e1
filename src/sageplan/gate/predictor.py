"""Stage II: the action-conditioned predictor f_η in the frozen, whitened latent space of Stage I."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Batch, Windows
from sageplan.diagnostics.auroc import auroc
from sageplan.diagnostics.corruption import derangement
from sageplan.gate.config import Stage2
from sageplan.gate.energy import distance
from sageplan.gate.transformer import Block, KeysValues

AUXILIARY_WARMUP = 100  # updates that always include every term; the hinge is active in about the first ten


class Whitening(nn.Module):
    """Latents [..., d] to (z − μ) M, with M diagonal, ZCA or the identity."""

    mean: Tensor
    scale: Tensor

    def __init__(self, latent: int, kind: str) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(latent))
        self.register_buffer("scale", torch.eye(latent) if kind == "zca" else torch.ones(latent))

    @classmethod
    def fit(cls, latents: Tensor, kind: str, floor: float) -> Whitening:
        """latents [n, d]"""
        self = cls(latents.shape[1], kind)
        latents = latents.double()
        if kind != "none":
            self.mean.copy_(latents.mean(0))
        if kind == "per_dim":
            self.scale.copy_(1 / (latents.std(0) + 1e-6))
        elif kind == "zca":
            values, vectors = torch.linalg.eigh(torch.cov(latents.T))
            values = values.clamp(min=floor * float(values[-1]))
            self.scale.copy_(vectors @ torch.diag(values.rsqrt()) @ vectors.T)
        return self

    def forward(self, latents: Tensor) -> Tensor:
        centred = latents - self.mean
        return centred @ self.scale if self.scale.ndim == 2 else centred * self.scale


class FrozenEncoder(nn.Module):
    """z = whiten(e_θ̄(normalise(s))): raw states [..., S] to latents [..., d_z]. Never trained further."""

    def __init__(self, normaliser: Normaliser, encoder: nn.Module, whitening: Whitening) -> None:
        super().__init__()
        self.normaliser, self.encoder, self.whitening = normaliser, encoder, whitening
        self.requires_grad_(False)

    def forward(self, states: Tensor) -> Tensor:
        # Never in bf16: its rounding of two latents that hardly differ is most of what the prediction would miss.
        with torch.autocast(states.device.type, enabled=False):
            latents: Tensor = self.whitening(self.encoder(self.normaliser(states)))
        return latents

    @torch.no_grad()
    def delta_std(self, pairs: Batch) -> Tensor:
        """[d_z] standard deviation of z_{t+1} − z_t over windows of two states."""
        now, following = self(pairs.states.to(self.whitening.mean.device)).unbind(1)
        std: Tensor = (following - now).std(0)
        return std


class LatentPredictor(nn.Module):
    """f_η: latents [B, T, d_z] and actions [B, T, A], T ≤ W, to predicted next latents [B, T, d_z].

    Step t sees steps 0..t, or itself alone with context="step". With separate tokens, a step's latent and action
    see each other and the latent's token is read out. The head gives Δz in units of `delta_scale` [d_z].
    """

    delta_scale: Tensor

    def __init__(self, latent: int, action_dim: int, config: Stage2) -> None:
        super().__init__()
        width = config.width
        self.causal, self.separate = config.context == "plan", config.tokens == "separate"
        self.latent_in, self.action_in = nn.Linear(latent, width), nn.Linear(action_dim, width)
        self.kind = nn.Parameter(0.02 * torch.randn(2, width))
        self.position = nn.Parameter(0.02 * torch.randn(config.window if self.causal else 1, width))
        self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.layers))
        self.register_buffer("delta_scale", torch.ones(latent))
        self.head = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, config.head_hidden),
            nn.GELU(),
            nn.Linear(config.head_hidden, latent),
        )

    def forward(self, latents: Tensor, actions: Tensor) -> Tensor:
        if not self.causal and latents.shape[1] > 1:
            single: Tensor = self(latents.flatten(0, 1).unsqueeze(1), actions.flatten(0, 1).unsqueeze(1))
            return single.view(latents.shape)
        length = latents.shape[1]
        x = self._tokens(latents, actions, self.position[:length])
        step = torch.arange(x.shape[1], device=x.device) * length // x.shape[1]
        mask = step[:, None] >= step
        for block in self.blocks:
            x = block(x, mask)
        return latents + self._delta(x)

    def rollout(self, latents: Tensor, actions: Tensor) -> Tensor:
        """Autoregressive: latents [B, d_z] and actions [B, T, A] to the latents [B, d_z] after T steps.

        Keys and values of earlier steps are kept, so that a step costs one token and not the sequence so far.
        """
        past: list[KeysValues | None] = [None] * len(self.blocks)
        z = latents.unsqueeze(1)
        if not self.causal:
            for t in range(actions.shape[1]):
                z = self(z, actions[:, t : t + 1])
            return z.squeeze(1)
        for t in range(actions.shape[1]):
            x = self._tokens(z, actions[:, t : t + 1], self.position[t])
            for number, block in enumerate(self.blocks):
                assert isinstance(block, Block)
                x, past[number] = block.extend(x, past[number])
            z = z + self._delta(x)
        return z.squeeze(1)

    def _tokens(self, latents: Tensor, actions: Tensor, position: Tensor) -> Tensor:
        """[B, T, width], or [B, 2T, width] with separate tokens."""
        z = self.latent_in(latents) + self.kind[0] + position
        a = self.action_in(actions) + self.kind[1]
        return torch.stack([z, a + position], dim=2).flatten(1, 2) if self.separate else z + a

    def _delta(self, tokens: Tensor) -> Tensor:
        delta: Tensor = self.head(tokens[:, ::2] if self.separate else tokens)
        return delta.float() * self.delta_scale


class ForwardModel(Protocol):
    """What Stage II trains: f_η, or a baseline in its place."""

    def __call__(self, latents: Tensor, actions: Tensor) -> Tensor: ...

    def rollout(self, latents: Tensor, actions: Tensor) -> Tensor: ...


class PredictorLearner(nn.Module):
    """Trains f_η. L1 errors are reduced over latent dimensions as the energy is, and averaged over steps."""

    name = "stage2"
    average = None

    def __init__(
        self,
        config: Stage2,
        encoder: FrozenEncoder,
        predictor: ForwardModel,
        reduction: str,
        train: Windows,
        held_out: Windows,
    ) -> None:
        super().__init__()
        self.config, self.encoder, self.predictor, self.reduction = config, encoder, predictor, reduction
        self._train, self._held_out = train, held_out

    def sample(self, batch: int, generator: torch.Generator) -> Batch:
        return self._train.sample(batch, generator)

    def error(self, predicted: Tensor, target: Tensor) -> Tensor:
        return distance(predicted, target, self.reduction)

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. lac."""
        config, actions = self.config, batch.actions
        with torch.no_grad():
            latents = self.encoder(batch.states)
        now, target = latents[:, :-1], latents[:, 1:]

        teacher_forced = self.error(self.predictor(now, actions), target).mean()
        if step >= AUXILIARY_WARMUP and step % config.auxiliary_every:
            return teacher_forced, {"teacher_forced": teacher_forced}

        total, terms = teacher_forced, {"teacher_forced": teacher_forced}
        if config.rollout_weight:
            rolled = self.predictor.rollout(now[:, 0], actions[:, : config.rollout])
            terms["rollout"] = self.error(rolled, latents[:, config.rollout]).mean()
            total = total + config.rollout_weight * terms["rollout"]
        if config.negative_weight:
            wrong = actions[derangement(len(actions), generator)]
            terms["hinge"], terms["hinge_active"] = self.hinge(now, wrong, target)
            total = total + config.negative_weight * terms["hinge"]
        return total, terms

    def hinge(self, now: Tensor, wrong_actions: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """[m − E_neg]₊, and the share of the batch where it is active."""
        margin = self.config.margin

        def error() -> Tensor:
            return self.error(self.predictor(now, wrong_actions), target).mean(1)

        with torch.no_grad():
            active = (error() < margin).float().mean()
        if not active:  # no gradient would flow: spare the graph
            return active.new_zeros(()), active
        return F.relu(margin - error()).mean(), active

    @torch.no_grad()
    def evaluate(self, generator: torch.Generator) -> dict[str, float]:
        """Held-out one-step error against predicting no change, and AUROC of real against shuffled actions."""
        batch = self._held_out.sample(2048, generator)
        wrong = derangement(len(batch.actions), generator)
        device = self.encoder.whitening.mean.device
        latents = self.encoder(batch.states.to(device))
        now, target = latents[:, :-1], latents[:, 1:]
        actions = batch.actions.to(device)
        real = self.error(self.predictor(now, actions), target)
        shuffled = self.error(self.predictor(now, actions[wrong.to(device)]), target)
        return {
            "held_out_error": float(real.mean()),
            "held_out_no_change": float(self.error(now, target).mean()),
            "held_out_auroc": auroc(shuffled.flatten().cpu().numpy(), real.flatten().cpu().numpy()),
        }

    def check(self, metrics: dict[str, float]) -> None:
        """Nothing that Stage II can show in training makes going on pointless."""
