"""One proposal for 50 observations × 50 candidates: 32 states of 17 numbers, width 256, depth 2, 20 DDIM steps.

Against the same network and sampler as one would write them down: float32, all plans in one batch, and the noise level
embedded and turned into modulations for each plan. Untrained weights of a trained one's size: time does not depend on
them, and the difference between the plans is that of rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common import interleaved, record
from sageplan.data.normaliser import Normaliser
from sageplan.diffusion.dit import DiT
from sageplan.diffusion.samplers import coefficients, sample
from sageplan.diffusion.schedules import alpha_sigma, times
from sageplan.planners.config import VeteranConfig
from sageplan.planners.store import untrained_value
from sageplan.planners.veteran import Veteran

B, C, S = 50, 50, 17
ROUNDS = 3


def untrained(config: VeteranConfig, state_dim: int = S) -> Veteran:
    """A planner whose weights, modulations included, do something."""
    torch.manual_seed(0)
    denoiser, normaliser = DiT(config.horizon, state_dim, config.network), Normaliser(state_dim)
    for name, weight in denoiser.named_parameters():
        if name.endswith("modulation.weight") or name == "head.weight":
            torch.nn.init.normal_(weight, std=0.02)
    return Veteran(config, normaliser, denoiser, untrained_value(config, normaliser), {})


@torch.no_grad()
def plain(planner: Veteran, observations: Tensor, candidates: int, generator: torch.Generator) -> Tensor:
    """The proposal as written down: every step the whole network, for every plan."""
    config, size = planner.config, (len(observations), candidates, planner.config.horizon, planner.state_dim)
    walk = times(config.sampling.steps)
    steps = coefficients(config.sampling.solver, *alpha_sigma(config.schedule, walk))
    noise = torch.randn(size, generator=generator).flatten(0, 1)
    first = planner.normaliser(observations).repeat_interleave(candidates, 0)

    def fix(x: Tensor) -> None:
        x[:, 0] = first

    def denoise(x: Tensor, step: int) -> Tensor:
        return planner.denoiser(x, walk[len(steps) - step].expand(len(x)))

    x = sample(denoise, steps, [noise], prediction=config.prediction, fix=fix)
    return (x * planner.normaliser.std + planner.normaliser.mean).view(size)


def main() -> None:
    observations = torch.randn(B, S, generator=torch.Generator().manual_seed(1))
    exact, fast = untrained(VeteranConfig()), untrained(VeteranConfig(precision="bf16"))
    steps = coefficients("ddim", *alpha_sigma("linear", times(20)))
    runs = {
        "plain": lambda: plain(exact, observations, C, torch.Generator().manual_seed(0)),
        "fp32": lambda: exact.propose(observations, C, torch.Generator().manual_seed(0)).states,
        "bf16": lambda: fast.propose(observations, C, torch.Generator().manual_seed(0)).states,
    }
    plans = {name: run() for name, run in runs.items()}
    spread = float(plans["plain"].std())
    difference = {name: float((plans[name] - plans["plain"]).abs().mean()) / spread for name in ("fp32", "bf16")}
    seconds = interleaved(runs, rounds=ROUNDS, warm_up=0)
    record(
        "propose",
        {
            "shape": {"B": B, "C": C, "H": exact.config.horizon, "S": S, "steps": len(steps)},
            "mean difference from the plain plans, in their standard deviations": difference,
            "seconds": {name: round(value, 2) for name, value in seconds.items()},
            "times faster than plain": {name: round(seconds["plain"] / seconds[name], 2) for name in ("fp32", "bf16")},
        },
    )
    assert difference["fp32"] < 1e-4, difference  # which NaN is not
    assert difference["bf16"] < 2e-2, difference


if __name__ == "__main__":
    main()
