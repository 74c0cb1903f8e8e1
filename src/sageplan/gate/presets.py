"""Named settings: `paper` is the appendix to the letter, `cpu` fits in minutes on two cores."""

from __future__ import annotations

from sageplan.errors import ConfigError
from sageplan.gate.config import GateConfig, InverseDynamics, Stage1, Stage2
from sageplan.training.config import Optimiser

PRESETS: dict[str, GateConfig] = {
    "paper": GateConfig(),
    # Chosen by measurement; what each choice bought is in results/cpu_preset.md.
    "cpu": GateConfig(
        stage1=Stage1(
            latent=128,
            hidden=256,
            bias_spread=2.0,
            optimiser=Optimiser(steps=800, batch=64, rate=1e-3, warmup=100, precision="bf16"),
        ),
        stage2=Stage2(
            window=4,  # the same tokens from four times as many windows: a batch that is far more diverse
            context="step",
            width=128,
            delta_units="data",
            head_hidden=256,
            rollout_weight=0.1,  # at 1 its large gradients leave the one-step error a third higher
            auxiliary_every=8,
            optimiser=Optimiser(steps=8_000, batch=512, rate=4e-3, warmup=200, precision="bf16"),
        ),
        inverse_dynamics=InverseDynamics(
            hidden=128,
            steps=5,  # an eighth of the time of the paper's sizes, for actions that are as exact
            precision="bf16",
            optimiser=Optimiser(
                steps=6_000, batch=512, rate=1e-3, final_rate=0.0, warmup=100, weight_decay=0.01, clip=None
            ),
        ),
    ),
}


def resolve(preset: str | GateConfig) -> GateConfig:
    if isinstance(preset, GateConfig):
        return preset
    if preset not in PRESETS:
        raise ConfigError(f"there is no preset '{preset}'; choose one of {', '.join(PRESETS)}")
    return PRESETS[preset]
