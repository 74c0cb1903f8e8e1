"""The pre-norm Transformer block that Stage I's and Stage II's predictors share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]  # [B, heads, T, d] each


class Block(nn.Module):
    """Self-attention and a GELU MLP of four times the width, each behind a LayerNorm, each residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [B, T, width]; mask [T, T] is true where the row may look at the column."""
        if x.shape[1] > 1:
            return self.extend(x, None, mask)[0]
        value = slice(2 * x.shape[2], None)  # a single token sees itself alone, whatever its query and its key
        return self._mlp(x + self.out(F.linear(self.norm1(x), self.qkv.weight[value], self.qkv.bias[value])))

    def extend(self, x: Tensor, past: KeysValues | None, mask: Tensor | None = None) -> tuple[Tensor, KeysValues]:
        """The next tokens x of sequences whose keys and values so far are `past`; also those with x's added."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        heads = attend(query, key, value, mask)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return self._mlp(x), (key, value)

    def _mlp(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + hidden


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention over [B, heads, T, d], T being 32 at most.

    On a CPU in bf16, two small matrix products are several times faster than the library's kernel, above all
    backwards; in fp32 as fast forwards, and slower backwards (benchmarks/attention.py).
    """
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    out: Tensor = scores.softmax(-1) @ value
    return out
