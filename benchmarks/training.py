"""Training steps per second of Stage I and Stage II: autocast against fp32, and what the `cpu` preset's choices buy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch

import sageplan
from common import interleaved, record
from sageplan.data.maze2d import collect
from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Windows
from sageplan.gate.config import GateConfig
from sageplan.gate.encoder import EncoderLearner
from sageplan.gate.predictor import FrozenEncoder, LatentPredictor, PredictorLearner, Whitening
from sageplan.training.config import Optimiser
from sageplan.training.loop import autocast


def learners(config: GateConfig, data: sageplan.Trajectories) -> dict[str, tuple[torch.nn.Module, Optimiser]]:
    normaliser = Normaliser.fit(data.states)
    one = Windows(data, EncoderLearner.window_length(config.stage1))
    two = Windows(data, config.stage2.window + 1)
    stage1 = EncoderLearner(config.stage1, normaliser, one, one)
    encoder = FrozenEncoder(normaliser, stage1.teacher, Whitening(config.stage1.latent, "per_dim"))
    predictor = LatentPredictor(config.stage1.latent, data.action_dim, config.stage2)
    stage2 = PredictorLearner(config.stage2, encoder, predictor, "mean", two, two)
    return {"stage I": (stage1, config.stage1.optimiser), "stage II": (stage2, config.stage2.optimiser)}


def step(learner: torch.nn.Module, optimiser: Optimiser, precision: str) -> Callable[[], None]:
    """One update as the training loop makes it, past the steps in which the hinge is always evaluated."""
    parameters = [p for p in learner.parameters() if p.requires_grad]
    update = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    generator = torch.Generator().manual_seed(0)
    count = itertools.count(1_000)

    def run() -> None:
        with autocast(torch.device("cpu"), precision):
            loss, _ = learner.loss(learner.sample(optimiser.batch, generator), next(count), generator)
        update.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        update.step()

    return run


def main() -> None:
    data = collect("medium", 50_000)
    presets = sageplan.PRESETS
    cpu = presets["cpu"]
    variants = {
        "paper": presets["paper"],
        "cpu": cpu,
        "cpu, the plan as context": replace(cpu, stage2=replace(cpu.stage2, context="plan")),
        "cpu, separate tokens": replace(cpu, stage2=replace(cpu.stage2, tokens="separate")),
        "cpu, all terms in every step": replace(cpu, stage2=replace(cpu.stage2, auxiliary_every=1)),
    }
    result: dict[str, dict[str, object]] = {}
    for name, config in variants.items():
        for stage, (learner, optimiser) in learners(config, data).items():
            if stage == "stage I" and name not in presets:
                continue
            runs = {precision: step(learner, optimiser, precision) for precision in ("fp32", "bf16")}
            seconds = interleaved(runs, rounds=3 if name == "paper" else 12)
            result[f"{name}: {stage}"] = {
                "batch": optimiser.batch,
                "steps per second": {precision: round(1 / t, 2) for precision, t in seconds.items()},
                "bf16 against fp32": round(seconds["fp32"] / seconds["bf16"], 2),
            }
    record("training", result)


if __name__ == "__main__":
    main()
