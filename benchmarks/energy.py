"""gate.energy for 50 observations × 50 candidates × prefix 10, `paper` and `cpu` widths.

Against a straightforward per-candidate implementation of the equation, and as a share of one DV-sized
proposal: 50 × 50 plans of 32 states, width 256, depth 2, 20 denoising steps, same precision.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

import sageplan
from common import interleaved, record
from sageplan.data.normaliser import Normaliser
from sageplan.gate.encoder import Encoder
from sageplan.gate.gate import Gate
from sageplan.gate.predictor import FrozenEncoder, LatentPredictor, Whitening

B, C, K, S, A = 50, 50, 10, 17, 6
HORIZON, WIDTH, HEADS, DEPTH, DENOISING = 32, 256, 4, 2, 20


class DiTBlock(nn.Module):
    """One adaLN block of a diffusion Transformer; the modulation is computed once per denoising step."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation
        batch, length, _ = x.shape
        h = self.norm(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + gate1 * self.out(h)
        return x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)


class Proposal(nn.Module):
    """The cost of proposing B·C plans: a DDIM loop over a DiT, batched in chunks that stay in the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(S, WIDTH), nn.Linear(WIDTH, S)
        self.blocks = nn.ModuleList(DiTBlock() for _ in range(DEPTH))
        self.modulation = nn.Parameter(0.1 * torch.randn(DENOISING, DEPTH, 6, WIDTH))

    @torch.inference_mode()
    def forward(self, plans: int) -> Tensor:
        out = []
        for x in torch.randn(plans, HORIZON, S).split(250):
            for step in range(DENOISING):
                h = self.embed(x)
                for block, modulation in zip(self.blocks, self.modulation[step], strict=True):
                    h = block(h, modulation)
                x = 0.99 * x + 0.01 * self.head(h)
            out.append(x)
        return torch.cat(out)


def untrained(preset: str, state_dim: int = S, action_dim: int = A) -> Gate:
    """A gate of the preset's shape with random weights: time does not depend on them."""
    config = replace(sageplan.PRESETS[preset], inverse_dynamics=None)
    torch.manual_seed(0)
    latent = config.stage1.latent
    layers = Encoder(state_dim, config.stage1.hidden, latent)
    encoder = FrozenEncoder(Normaliser(state_dim), layers, Whitening(latent, "per_dim"))
    info = {"data": {"name": "none", "fingerprint": ""}, "seed": 0, "training": {}}
    return Gate(config, encoder, LatentPredictor(latent, action_dim, config.stage2), None, info)


@torch.inference_mode()
def straightforward(gate: Gate, states: Tensor, actions: Tensor) -> Tensor:
    """The equation as written: one candidate after the other, one step after the other, with the same context."""
    window = gate.config.stage2.window
    hop = max(1, window // 2)
    energy = torch.empty(states.shape[:2])
    for b in range(states.shape[0]):
        for c in range(states.shape[1]):
            z = gate.encoder(states[b, c, : K + 1])
            total = 0.0
            for k in range(K):
                begin = 0 if k < window else (k - window) // hop * hop + hop
                begin = begin if gate.predictor.causal else k
                predicted = gate.predictor(z[None, begin : k + 1], actions[b, c, None, begin : k + 1])[0, -1]
                total += float((predicted - z[k + 1]).abs().mean())
            energy[b, c] = total / K
    return energy


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(B, C, HORIZON, S, generator=generator)
    actions = torch.rand(B, C, HORIZON - 1, A, generator=generator) * 2 - 1
    proposal = Proposal()
    result: dict[str, object] = {"shape": {"B": B, "C": C, "K": K, "S": S, "A": A}, "precision": "fp32"}
    some = states[:2], actions[:2]  # two observations, scaled up: all would take minutes
    for preset in ("paper", "cpu"):
        gate = untrained(preset)
        difference = float((gate.energy(*some, prefix=K) - straightforward(gate, *some)).abs().max())

        def energy(gate: Gate = gate) -> None:
            gate.energy(states, actions, prefix=K)

        pair = interleaved({"energy": energy, "straightforward": lambda g=gate: straightforward(g, *some)}, rounds=9)
        slow_seconds = pair["straightforward"] * B / 2
        seconds = interleaved({"energy": energy, "proposal": lambda: proposal(B * C)}, rounds=2, warm_up=1)
        result[preset] = {
            "largest difference from the straightforward energies": difference,
            "seconds, energy": round(seconds["energy"], 4),
            "seconds, straightforward (2 of 50 observations, scaled)": round(slow_seconds, 1),
            "seconds, proposal": round(seconds["proposal"], 3),
            "times faster than straightforward": round(slow_seconds / pair["energy"], 1),
            "share of the proposal": round(seconds["energy"] / seconds["proposal"], 4),
        }
        assert difference < 1e-5, difference  # which NaN is not
    record("energy", result)


if __name__ == "__main__":
    main()
