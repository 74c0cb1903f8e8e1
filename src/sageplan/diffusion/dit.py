"""DV's diffusion Transformer over the H states of a plan.

The noise level acts on it through shifts, scales and gates alone (adaLN-Zero). A sampler visits few levels, each for
all samples, so `DiT.prepare` works out these once, folds them into the weights, and returns the fast form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sageplan.errors import ConfigError
from sageplan.gate.transformer import attend

Residual = Literal["modulated", "standard"]
Gelu = Literal["tanh", "none"]
Precision = Literal["fp32", "bf16"]

_EPSILON = 1e-6
_FREQUENCIES, _FREQUENCY_SCALE = 16, 16.0


@dataclass(frozen=True)
class Network:
    """Sizes of the denoiser."""

    width: int = 256
    embedding: int = 128
    """of the noise level"""
    depth: int = 2
    heads: int = 4
    residual: Residual = "modulated"
    """what attention is added to: in DV's code the normalised, modulated tokens, in a DiT the tokens themselves"""
    gelu: Gelu = "tanh"
    """PyTorch's name of the formula: DV's approximation by tanh, or none, which costs a CPU a sixth of the time"""
    patch: int = 1
    """consecutive states per token; DV has 1, and n make a planner nearly n times as fast"""

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width % 2:
            raise ConfigError(f"width={self.width} must be even and a multiple of heads={self.heads}")


class Block(nn.Module):
    """Attention and a tanh-GELU MLP of four times the width, each behind a LayerNorm that the noise level sets."""

    def __init__(self, config: Network) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """x [B, T, width]; level [B, width], already through SiLU"""
        batch, length, width = x.shape
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(level)[:, None].chunk(6, dim=2)
        seen = torch.addcmul(shift1, _norm(x), 1 + scale1)
        query, key, value = self.qkv(seen).view(batch, length, 3, self.config.heads, -1).permute(2, 0, 3, 1, 4)
        attended = attend(query, key, value, None).transpose(1, 2).reshape(batch, length, width)
        x = (seen if self.config.residual == "modulated" else x) + gate1 * self.out(attended)
        hidden = F.gelu(self.up(torch.addcmul(shift2, _norm(x), 1 + scale2)), approximate=self.config.gelu)
        out: Tensor = x + gate2 * self.down(hidden)
        return out


class DiT(nn.Module):
    """Predicts noise, or the clean plan, from a noisy plan of normalised states and its noise level."""

    position: Tensor
    frequencies: Tensor

    def __init__(self, horizon: int, state_dim: int, config: Network) -> None:
        super().__init__()
        width, embedding, token = config.width, config.embedding, config.patch * state_dim
        self.config = config
        self.embed = nn.Linear(token, width)
        self.register_buffer("position", sinusoids(horizon // config.patch, width), persistent=False)
        self.register_buffer("frequencies", _FREQUENCY_SCALE * torch.randn(_FREQUENCIES))
        self.time = nn.Sequential(
            nn.Linear(2 * _FREQUENCIES, embedding), nn.Mish(), nn.Linear(embedding, embedding),
            nn.Linear(embedding, width), nn.Mish(), nn.Linear(width, width), nn.Mish(),
        )  # fmt: skip
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.modulation = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, token)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for layer in self.time:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.endswith("modulation.weight") or name == "head.weight":
                nn.init.zeros_(weight)

    def level(self, time: Tensor) -> Tensor:
        """times [n] in [0, 1] to [n, width], through SiLU: all that blocks need to know of them"""
        angle = 2 * math.pi * time.float()[:, None] * self.frequencies
        return F.silu(self.time(torch.cat([angle.cos(), angle.sin()], dim=1)))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x [B, H, S] and the time [B] of each."""
        level = self.level(time)
        h = self.embed(x.reshape(len(x), len(self.position), -1)) + self.position
        for block in self.blocks:
            h = block(h, level)
        shift, scale = self.modulation(level)[:, None].chunk(2, dim=2)
        out: Tensor = self.head(torch.addcmul(shift, _norm(h), 1 + scale))
        return out.view(x.shape)

    @torch.no_grad()
    def prepare(self, time: Tensor, precision: Precision = "fp32") -> Prepared:
        """The same function at the times [N] alone, with all that depends on them and the weights worked out."""
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        level = self.level(time.to(self.position.device))
        shift, scale = self.modulation(level).chunk(2, dim=1)
        return Prepared(
            self.config,
            self.embed.weight.detach().clone(),
            (self.position + self.embed.bias).detach(),
            [_prepare(block, level, dtype) for block in self.blocks],
            (1 + scale).unbind(0),
            shift.unbind(0),
            self.head.weight.detach().clone(),
            self.head.bias.detach().clone(),
            dtype,
        )


@dataclass(frozen=True, eq=False)
class PreparedBlock:
    """One block. What depends on the noise level is a list over levels: LayerNorm's own scale and shift are the
    modulation, and the gates are in the weights behind them, so that neither costs a pass over the tokens."""

    scale1: list[Tensor]
    shift1: list[Tensor]
    qkv: Tensor
    qkv_bias: Tensor
    out: list[Tensor]
    out_bias: list[Tensor]
    scale2: list[Tensor]
    shift2: list[Tensor]
    up: Tensor
    up_bias: Tensor
    down: list[Tensor]
    down_bias: list[Tensor]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A DiT at N known noise levels. Tokens enter and leave in fp32, and are in `dtype` between."""

    config: Network
    embed: Tensor
    position: Tensor
    blocks: list[PreparedBlock]
    scale: tuple[Tensor, ...]
    shift: tuple[Tensor, ...]
    head: Tensor
    head_bias: Tensor
    dtype: torch.dtype

    def __call__(self, x: Tensor, step: int) -> Tensor:
        """x [B, H, S] at the level number `step`."""
        size = (self.config.width,)
        # the two formulas differ by at most 5e-4, a quarter of what bf16 rounds away at 1
        gelu = self.config.gelu if self.dtype == torch.float32 else "none"
        h = F.linear(x.reshape(len(x), len(self.position), -1), self.embed).add_(self.position).to(self.dtype)
        for block in self.blocks:
            seen = F.layer_norm(h, size, block.scale1[step], block.shift1[step], _EPSILON)
            attended = self._attend(F.linear(seen, block.qkv, block.qkv_bias))
            attended = F.linear(attended, block.out[step], block.out_bias[step])
            h = attended.add_(seen if self.config.residual == "modulated" else h)
            seen = F.layer_norm(h, size, block.scale2[step], block.shift2[step], _EPSILON)
            hidden = F.gelu(F.linear(seen, block.up, block.up_bias), approximate=gelu)
            h = F.linear(hidden, block.down[step], block.down_bias[step]).add_(h)
        h = F.layer_norm(h.float(), size, self.scale[step], self.shift[step], _EPSILON)
        return F.linear(h, self.head, self.head_bias).view(x.shape)

    def _attend(self, qkv: Tensor) -> Tensor:
        batch, length, _ = qkv.shape
        query, key, value = qkv.view(batch, length, 3, self.config.heads, -1).permute(2, 0, 3, 1, 4)
        if qkv.device.type == "cpu":
            heads = torch.softmax(query @ key.transpose(-1, -2), -1) @ value
        else:
            heads = F.scaled_dot_product_attention(query, key, value, scale=1.0)
        merged: Tensor = heads.transpose(1, 2).reshape(batch, length, -1)
        return merged


def _prepare(block: nn.Module, level: Tensor, dtype: torch.dtype) -> PreparedBlock:
    assert isinstance(block, Block)
    shift1, scale1, gate1, shift2, scale2, gate2 = block.modulation(level).chunk(6, dim=1)
    width = level.shape[1]
    qkv, qkv_bias = block.qkv.weight.clone(), block.qkv.bias.clone()
    for part in (qkv, qkv_bias):  # softmax's factor, taken once from the queries
        part[:width] *= (width // block.config.heads) ** -0.5

    def cast(tensors: Tensor) -> list[Tensor]:
        return list(tensors.to(dtype).unbind(0))

    return PreparedBlock(
        scale1=cast(1 + scale1),
        shift1=cast(shift1),
        qkv=qkv.to(dtype),
        qkv_bias=qkv_bias.to(dtype),
        out=cast(gate1[:, :, None] * block.out.weight),
        out_bias=cast(gate1 * block.out.bias),
        scale2=cast(1 + scale2),
        shift2=cast(shift2),
        up=block.up.weight.to(dtype, copy=True),
        up_bias=block.up.bias.to(dtype, copy=True),
        down=cast(gate2[:, :, None] * block.down.weight),
        down_bias=cast(gate2 * block.down.bias),
    )


def sinusoids(length: int, width: int) -> Tensor:
    """[length, width] fixed embeddings of positions."""
    rate = torch.exp(-math.log(10_000.0) / (width // 2) * torch.arange(width // 2))
    angle = torch.arange(length)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), eps=_EPSILON)
