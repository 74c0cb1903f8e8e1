"""From recorded trajectories with rewards to a planner: paths, normaliser, denoiser, critic."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Windows
from sageplan.gate.fit import pin_settings
from sageplan.planners.config import HorizonCritic, VeteranConfig
from sageplan.planners.critic import HorizonLearner, HorizonValue, StateValueLearner, SummedStateValue
from sageplan.planners.paths import valued_paths
from sageplan.planners.store import untrained_value
from sageplan.planners.veteran import Veteran, VeteranLearner
from sageplan.training.checkpoint import claim_folder
from sageplan.training.config import Optimiser
from sageplan.training.loop import train
from sageplan.training.metrics import Logger
from sageplan.training.progress import Bars
from sageplan.types import Trajectories


def fit(
    data: Trajectories,
    config: VeteranConfig,
    *,
    run_dir: str | Path | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    loggers: Sequence[Logger] = (),
    progress: bool = True,
) -> Veteran:
    """Train a planner and its critic, each resuming from its own folder in `run_dir` where it was interrupted.

    config   sageplan.planners.presets.preset(name, task), or one of your own
    run_dir  a folder of its own: settings, checkpoints and metrics
    device   default: CUDA if there is one
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        bars = stack.enter_context(Bars(progress))
        if run_dir is None:
            run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="sageplan-"))
        return _fit(data, config, Path(run_dir), where, seed, loggers, bars)


def _fit(
    data: Trajectories,
    config: VeteranConfig,
    run: Path,
    device: torch.device,
    seed: int,
    loggers: Sequence[Logger],
    bars: Bars,
) -> Veteran:
    claim_folder(run, needed_bytes=0)
    fingerprint = data.fingerprint()
    identity = pin_settings(run / "config.json", {"config": config.to_json(), "data": fingerprint, "seed": seed})
    paths, values = valued_paths(data, config.paths)
    episodes = paths.split(config.held_out, seed)
    windows = [
        Windows(paths, config.horizon, stride=config.stride, episodes=part, padded=config.paths.padded)
        for part in episodes
    ]
    summary: dict[str, Any] = {}

    def run_stage(learner: Any, optimiser: Optimiser) -> None:
        summary[learner.name] = train(
            learner, optimiser, run / learner.name,
            device=device, seed=seed, identity=identity, bars=bars, loggers=loggers,
        )  # fmt: skip

    torch.manual_seed(seed)  # for initial weights alone; batches and noise have their own generators
    normaliser = Normaliser.fit(data.states)
    planner = VeteranLearner(config, normaliser, windows[0], windows[1], values)
    run_stage(planner, config.optimiser)

    value = untrained_value(config, normaliser)
    if isinstance(value, HorizonValue):
        run_stage(HorizonLearner(value, windows[0], windows[1], values), config.critic.optimiser)
    else:
        assert isinstance(value, SummedStateValue)
        assert not isinstance(config.critic, HorizonCritic)
        run_stage(StateValueLearner(config.critic, value, data, *data.split(config.held_out, seed)),
                  config.critic.optimiser)  # fmt: skip
    about = {"name": data.name, "fingerprint": fingerprint, "rows": len(data), "episodes": data.num_episodes}
    info = {"data": about, "seed": seed, "training": summary}
    return Veteran(config, normaliser.to(device), planner.model, value, info)
