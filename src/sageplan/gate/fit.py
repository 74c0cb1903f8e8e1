"""Offline fitting: normaliser, Stage I, whitening, Stage II, and inverse dynamics beside it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Windows
from sageplan.diffusion.inverse_dynamics import ActionRange, InverseDynamicsLearner, InverseDynamicsModel
from sageplan.errors import ConfigError, DataError
from sageplan.gate.config import GateConfig
from sageplan.gate.encoder import EncoderLearner
from sageplan.gate.predictor import FrozenEncoder, LatentPredictor, PredictorLearner, Whitening
from sageplan.training.checkpoint import claim_folder, read_json, write_json
from sageplan.training.config import Optimiser
from sageplan.training.loop import train
from sageplan.training.metrics import Logger
from sageplan.training.progress import Bars
from sageplan.types import Trajectories

_STATISTICS_STATES = 100_000


class Fitted(NamedTuple):
    encoder: FrozenEncoder
    predictor: LatentPredictor
    inverse_dynamics: InverseDynamicsModel | None
    training: dict[str, Any]


def fit(
    data: Trajectories,
    config: GateConfig,
    run_dir: str | Path | None,
    device: torch.device,
    seed: int,
    loggers: Sequence[Logger],
    bars: Bars,
) -> Fitted:
    """Fit all parts, each resuming from its own folder in `run_dir` where an earlier call was interrupted."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        if run_dir is None:
            run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="sageplan-"))
        return _fit(data, config, Path(run_dir), device, seed, loggers, bars)


def _fit(
    data: Trajectories,
    config: GateConfig,
    run: Path,
    device: torch.device,
    seed: int,
    loggers: Sequence[Logger],
    bars: Bars,
) -> Fitted:
    _check_actions(data)
    if config.inverse_dynamics is not None and config.inverse_dynamics.relative > data.state_dim:
        raise ConfigError(
            f"inverse_dynamics.relative={config.inverse_dynamics.relative}, but states have {data.state_dim} entries"
        )
    claim_folder(run, needed_bytes=0)
    settings = {"config": config.to_json(), "data": data.fingerprint(), "seed": seed}
    identity = pin_settings(run / "config.json", settings)

    def windows(length: int) -> tuple[Windows, Windows]:
        """For training and for held-out metrics. Made before anything is trained: too short is said at once."""
        return (
            Windows(data, length, stride=config.stride, episodes=training_episodes),
            Windows(data, length, stride=config.stride, episodes=held_out_episodes),
        )

    def run_stage(learner: Any, optimiser: Optimiser) -> None:
        summary[learner.name] = train(
            learner, optimiser, run / learner.name,
            device=device, seed=seed, identity=identity, bars=bars, loggers=loggers,
        )  # fmt: skip

    training_episodes, held_out_episodes = data.split(config.held_out, seed)
    stage1_windows = windows(EncoderLearner.window_length(config.stage1))
    stage2_windows = windows(config.stage2.window + 1)
    summary: dict[str, Any] = {}

    torch.manual_seed(seed)  # for initial weights alone; batches and masks have their own generators
    normaliser = Normaliser.fit(data.states)
    stage1 = EncoderLearner(config.stage1, normaliser, *stage1_windows)
    run_stage(stage1, config.stage1.optimiser)

    whitening = _whiten(stage1, Windows(data, 1, episodes=training_episodes), config, seed)
    encoder = FrozenEncoder(normaliser, stage1.teacher, whitening)
    predictor = LatentPredictor(config.stage1.latent, data.action_dim, config.stage2)
    if config.stage2.delta_units == "data":
        pairs = windows(2)[0].sample(_STATISTICS_STATES, torch.Generator().manual_seed(seed))
        predictor.delta_scale.copy_(encoder.delta_std(pairs))
    stage2 = PredictorLearner(config.stage2, encoder, predictor, config.energy_reduction, *stage2_windows)
    run_stage(stage2, config.stage2.optimiser)

    model = None
    if config.inverse_dynamics is not None:
        inverse = InverseDynamicsLearner(
            config.inverse_dynamics, normaliser, ActionRange.fit(data.actions), *windows(2)
        )
        run_stage(inverse, config.inverse_dynamics.optimiser)
        model = inverse.model
    return Fitted(encoder, predictor, model, summary)


@torch.no_grad()
def _whiten(stage1: EncoderLearner, rows: Windows, config: GateConfig, seed: int) -> Whitening:
    states = rows.sample(_STATISTICS_STATES, torch.Generator().manual_seed(seed)).states[:, 0]
    latents = stage1.teacher(stage1.normaliser(states.to(stage1.normaliser.mean.device)))
    return Whitening.fit(latents.float().cpu(), config.stage2.whitening, config.stage2.whitening_floor)


def _check_actions(data: Trajectories) -> None:
    constant = np.flatnonzero(np.ptp(data.actions, axis=0) == 0)
    if len(constant) == data.action_dim:
        raise DataError(
            f"{data.name}: the actions never vary (all {data.action_dim} dimensions are constant), "
            "so no predictor can learn what they do; check that the right field was given as actions"
        )


def pin_settings(path: Path, settings: dict[str, Any]) -> str:
    """A run folder belongs to one configuration: the first call writes it, later ones must match. Its digest."""
    settings = json.loads(json.dumps(settings))  # as the file will give it back: tuples are lists
    if path.exists():
        earlier = read_json(path, "the settings of a run")
        different = [key for key in settings if earlier.get(key) != settings[key]]
        if different:
            raise ConfigError(
                f"{path.parent} holds a run with another {' and '.join(different)}; "
                "choose another run folder, or delete it to start afresh"
            )
    else:
        write_json(path, settings)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
