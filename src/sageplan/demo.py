"""`make demo`: from no data at all to a planner, a gate and a report of what the gate changes, in minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import h5py

from sageplan.data.build import build
from sageplan.diffusion.samplers import Sampling
from sageplan.errors import ConfigError
from sageplan.gate.config import InverseDynamics, Stage1, Stage2
from sageplan.planners.config import HorizonCritic, VeteranConfig
from sageplan.runs.config import RunConfig, preset
from sageplan.runs.folder import Run
from sageplan.runs.stages import run
from sageplan.tasks.catalogue import Task
from sageplan.training.checkpoint import claim_folder

LearnerT = TypeVar("LearnerT", Stage1, Stage2, InverseDynamics, VeteranConfig, HorizonCritic)


def shortened(config: RunConfig) -> RunConfig:
    """The preset's gate and the paper's planner, in small and with trainings cut to what a first look needs.

    The paper's planner predicts noise, 32 states at stride 1. After a short training its plans are rough, so that what
    the gate is for shows; the preset's own planner makes smoother ones (results/cpu_preset.md).
    """
    gate, planner = config.gate, config.planner
    assert isinstance(planner.critic, HorizonCritic)
    planner = replace(
        planner,
        horizon=32,
        prediction="noise",
        sampling=Sampling("ddim", steps=10),
        network=replace(planner.network, patch=4),
        critic=replace(_steps(planner.critic, 3_000), patch=4),
    )
    return replace(config, gate=replace(gate, stage2=_steps(gate.stage2, 3_000)), planner=_steps(planner, 4_000))


def demo(task: Task, folder: Path, rows: int, episodes: int, seed: int, say: Callable[[str], None]) -> Run:
    """Everything into `folder`; what an earlier call finished is kept, and what it began goes on."""
    claim_folder(folder, needed_bytes=60 * rows)
    file = folder / f"{task.name}.hdf5"
    if not file.exists():
        say(f"data: {rows:,} rows, made here by D4RL's controller in D4RL's maze")
        build(task, file, rows=rows, seed=seed)
    with h5py.File(file, "r") as content:
        made = len(content["observations"]), int(content.attrs["seed"])
    if made != (rows, seed):
        raise ConfigError(
            f"{file} holds {made[0]} rows of seed {made[1]}, not {rows} of seed {seed}; "
            "choose another folder with --out, or delete it"
        )
    config = shortened(preset("cpu", task))
    return run(task, "cpu", config, out=folder / "run", data=file, seed=seed, episodes=episodes, say=say)


def _steps(part: LearnerT, steps: int) -> LearnerT:
    return replace(part, optimiser=replace(part.optimiser, steps=steps))
