"""Attention over a handful of tokens on the CPU: two matrix products against the library's kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from common import interleaved, record
from sageplan.gate.transformer import attend


def main() -> None:
    result = {}
    for name, shape, dtype in (
        ("stage I, bf16", (128, 4, 19, 32), torch.bfloat16),
        ("paper, fp32", (256, 4, 16, 64), torch.float32),
        ("paper, bf16", (256, 4, 16, 64), torch.bfloat16),
    ):
        q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
        mask = torch.ones(shape[2], shape[2], dtype=torch.bool).tril()
        kernels = {
            "products": lambda q=q, k=k, v=v, mask=mask: attend(q, k, v, mask),
            "library": lambda q=q, k=k, v=v, mask=mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        }
        forward = interleaved(kernels, rounds=30)
        both = interleaved({n: (lambda f=f: f().sum().backward()) for n, f in kernels.items()}, rounds=30)
        result[name] = {
            "milliseconds, forward": {n: round(1e3 * t, 2) for n, t in forward.items()},
            "milliseconds, forward and backward": {n: round(1e3 * t, 2) for n, t in both.items()},
            "times faster, forward and backward": round(both["library"] / both["products"], 2),
        }
    record("attention", result)


if __name__ == "__main__":
    main()
