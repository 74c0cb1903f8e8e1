"""The stages of a run: data, gate, planner, episodes. Each is skipped when done and resumed when begun."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sageplan.data.build import build
from sageplan.data.cache import find
from sageplan.data.examine import origin
from sageplan.data.fetch import get
from sageplan.errors import ConfigError, DataError
from sageplan.evaluation.config import RolloutConfig, check_plan, episode_seeds
from sageplan.evaluation.effort import Effort
from sageplan.evaluation.rollout import Evaluation, evaluate
from sageplan.evaluation.selectors import arms
from sageplan.gate.gate import Gate
from sageplan.planners.fit import fit
from sageplan.planners.paths import stretches, valued_paths
from sageplan.planners.veteran import Veteran
from sageplan.runs.config import RunConfig
from sageplan.runs.diagnosis import diagnose_run
from sageplan.runs.effort import EFFORT, add_effort
from sageplan.runs.folder import Run
from sageplan.tasks.catalogue import Task
from sageplan.training.checkpoint import hold
from sageplan.training.metrics import Logger
from sageplan.types import Trajectories

SELECTORS = ("mcss", "sage")


def run(
    task: Task,
    preset: str,
    config: RunConfig,
    *,
    out: str | Path,
    data: str | Path | None = None,
    seed: int = 0,
    episodes: int = 100,
    selectors: Sequence[str] = SELECTORS,
    device: str | torch.device | None = None,
    loggers: Sequence[Logger] = (),
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """Train what is not trained yet, and run the episodes that have not been run.

    data  file of the task's data; default: in the cache, downloaded or, for Maze2D, made here
    say   told what is done next
    """
    # what is wrong with any of these is better said before the training
    episode_seeds(episodes)
    check_plan(config.planner.stride, task, arms(selectors), config.rollout)
    if config.gate.inverse_dynamics is None:
        raise ConfigError("the planner proposes states only, so gate.inverse_dynamics cannot be None")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    file = Path(data) if data is not None else task_file(task, say)
    trajectories = Trajectories.load(file)
    check_sizes(trajectories, task)
    valued_paths(trajectories, config.planner.paths)
    folder = Run.create(out, task, preset, seed, about(trajectories, file), config)
    if task.domain == "maze2d" and config.gate.stride > 1:
        trajectories = joined(trajectories)
    with hold(folder.path / ".lock", f"{folder.path} is in use by another run"):
        say(f"gate: Stage I, Stage II and inverse dynamics, from {len(trajectories):,} rows")
        train_gate(folder, trajectories, where, loggers, progress)
        say("planner: denoiser and critic")
        train_planner(folder, trajectories, where, loggers, progress)
        say("diagnosis: energies of tampered recordings" + (", and walls" if task.domain == "maze2d" else ""))
        diagnose_run(folder, trajectories, where, progress)
        say(f"episodes: {episodes} of each of {', '.join(selectors)}, on the same seeds and candidates")
        evaluate_run(folder, episodes, selectors, device=where, progress=progress)
    return folder


def task_file(task: Task, say: Callable[[str], None] = lambda text: None) -> Path:
    """The task's data file: in the cache, or downloaded, or made here where that is possible."""
    if found := find(task):
        return found
    if task.domain != "maze2d":
        return get(task)
    say("data: made here, by D4RL's controller in D4RL's maze")
    return build(task)


def check_sizes(data: Trajectories, task: Task) -> None:
    if (data.state_dim, data.action_dim) != (task.state_dim, task.action_dim):
        raise DataError(
            f"{data.name} has states of size {data.state_dim} and actions of size {data.action_dim}; "
            f"{task.name} has {task.state_dim} and {task.action_dim}"
        )


def about(data: Trajectories, file: Path) -> dict[str, Any]:
    """What a result says of the data it rests on."""
    return {
        "name": data.name,
        "fingerprint": data.fingerprint(),
        "rows": len(data),
        "episodes": data.num_episodes,
        "origin": origin(file),
    }


def train_gate(
    run: Run, data: Trajectories, device: torch.device, loggers: Sequence[Logger] = (), progress: bool = True
) -> Gate:
    folder = run.path / "gate"
    if (folder / "gate.json").exists():
        return Gate.load(folder, device)
    gate = Gate.fit(
        data, run.config.gate,
        run_dir=run.path / "gate.run", device=device, seed=run.seed, loggers=loggers, progress=progress,
    )  # fmt: skip
    gate.save(folder)
    return gate


def joined(data: Trajectories) -> Trajectories:
    """The same rows, with episodes put together of which one goes on where the other ended, as Maze2D's do.

    A window at DV's strides is hundreds of rows long, and few of Maze2D's episodes are.
    """
    return replace(data, offsets=stretches(data))


def train_planner(
    run: Run, data: Trajectories, device: torch.device, loggers: Sequence[Logger] = (), progress: bool = True
) -> Veteran:
    folder = run.path / "planner"
    if (folder / "planner.json").exists():
        return Veteran.load(folder, device)
    planner = fit(
        data, run.config.planner,
        run_dir=run.path / "planner.run", device=device, seed=run.seed, loggers=loggers, progress=progress,
    )  # fmt: skip
    planner.save(folder)
    return planner


def evaluate_run(
    run: Run,
    episodes: int | Sequence[int],
    selectors: Sequence[str],
    *,
    rollout: RolloutConfig | None = None,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> Evaluation:
    """Episodes of a trained run; those in its records are not run again."""
    rollout = rollout or run.config.rollout
    gate, planner = run.gate(device), run.planner(device)
    began, effort = time.monotonic(), Effort()
    try:
        return evaluate(
            planner, planner.critic, gate, run.task, list(selectors), episodes, rollout,
            records=run.records, effort=effort, progress=progress,
        )  # fmt: skip
    finally:
        if effort.decisions:
            add_effort(
                run.path / EFFORT,
                {
                    "wall": round(time.monotonic() - began, 1),
                    "threads": torch.get_num_threads(),
                    "device": str(device),
                    "decisions": effort.decisions,
                    "planned": effort.planned,
                    "steps": effort.steps,
                    "seconds": {stage: round(spent, 2) for stage, spent in effort.seconds.items()},
                },
            )
