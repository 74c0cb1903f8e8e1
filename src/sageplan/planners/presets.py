"""Settings by name and task: `paper`, the appendix to the letter; `veteran`, DV's released ones; `cpu`, two cores."""

from __future__ import annotations

from dataclasses import replace

from sageplan.diffusion.dit import Network
from sageplan.diffusion.samplers import Sampling
from sageplan.errors import ConfigError
from sageplan.planners.config import HorizonCritic, PartialCosine, Paths, StateValue, VeteranConfig
from sageplan.tasks.catalogue import Domain, Task

NAMES = ("paper", "veteran", "cpu")

_PATHS: dict[Domain, Paths] = {
    "maze2d": Paths("to reward", padded=True, max_length=800),  # 800 for all three mazes
    "antmaze": Paths("to terminal", padded=True, max_length=1001),
    "kitchen": Paths(padded=True, max_length=280),
    "locomotion": Paths(max_length=1000),
}
_VETERAN: dict[Domain, VeteranConfig] = {
    "maze2d": VeteranConfig(stride=15),
    "antmaze": VeteranConfig(horizon=40, stride=25, network=Network(depth=8)),
    "kitchen": VeteranConfig(stride=4),
    "locomotion": VeteranConfig(horizon=4, network=Network(heads=8), value_weight=2.0, critic=StateValue()),
}


def preset(name: str, task: Task) -> VeteranConfig:
    """The settings of this name for a task."""
    if name not in NAMES:
        raise ConfigError(f"there is no preset '{name}'; choose one of {', '.join(NAMES)}")
    paths = replace(
        _PATHS[task.domain], discount=task.discount, reward_shift=task.reward_shift, fall_reward=task.fall_reward
    )
    if name == "veteran":
        return replace(_VETERAN[task.domain], paths=paths)
    if name == "paper":
        return VeteranConfig(paths=replace(paths, discount=0.997))
    return _cpu(task, paths)


def _cpu(task: Task, paths: Paths) -> VeteranConfig:
    """What was measured is in results/cpu_preset.md."""
    # In mazes 32 states at stride 1 are a third of a second (an ant: three), in which no plan gets anywhere.
    horizon, patch = (128, 8) if task.domain in ("maze2d", "antmaze") else (32, 4)
    return VeteranConfig(
        horizon=horizon,
        paths=paths,
        network=Network(width=128, embedding=64, gelu="none", patch=patch),
        prediction="clean",  # smooth plans after few updates
        value_weight=4.0 if task.domain == "locomotion" else None,
        ema=0.998,
        sampling=Sampling("dpm++", steps=5),
        precision="bf16",
        critic=HorizonCritic(width=128, patch=patch, optimiser=_cpu_training(4_000)),
        optimiser=_cpu_training(5_000),
    )


def _cpu_training(steps: int) -> PartialCosine:
    return PartialCosine(
        steps=steps, batch=128, rate=1e-3, final_rate=0.0, warmup=100, weight_decay=1e-5, precision="bf16"
    )
