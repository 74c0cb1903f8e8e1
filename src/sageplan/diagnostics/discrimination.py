"""Feasibility discrimination (paper, Table feas_discrim_by_domain): real against action-shuffled transitions."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Batch, Windows
from sageplan.diagnostics.auroc import auroc
from sageplan.diagnostics.corruption import derangement
from sageplan.errors import DataError
from sageplan.gate.encoder import Encoder
from sageplan.gate.predictor import FrozenEncoder, PredictorLearner, Whitening
from sageplan.training.loop import train
from sageplan.training.progress import Bars
from sageplan.types import Trajectories

if TYPE_CHECKING:
    from sageplan.gate.gate import Gate

RIDGE = 1e-3  # per row of training data, on standardised inputs
_STATISTICS_ROWS = 200_000

Simulator = Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]
"""raw states [n, S] and actions [n, A] to the true next states [n, S], NaN where a state does not tell"""


@dataclass(frozen=True)
class Discrimination:
    """AUROC by method on the same held-out transitions, half real and half with another transition's action.

    The simulator's is of those alone whose recorded states tell it all, a share `known` of them; `sage_known` is
    the gate's on the same. `scores` holds each method's errors (real [n], shuffled [n]), for plots.
    """

    auroc: dict[str, float]
    known: float
    sage_known: float
    transitions: int
    seconds: dict[str, float]
    scores: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = field(repr=False)


def discriminate(
    gate: Gate,
    data: Trajectories,
    *,
    transitions: int = 50_000,
    baselines: bool = True,
    simulator: Simulator | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Discrimination:
    """Score held-out transitions by the gate, by the paper's three baselines, and by the simulator itself.

    The episodes are split as the gate's own fit split them, so on the data of the fit no method has seen what it
    is tested on. The MLP is trained as the gate's Stage II was. The simulator's score is the ceiling: shuffled
    actions are sometimes equal to the real ones, or act the same. Where it gives NaN it is not asked.
    """
    stride = gate.config.stride
    training, held_out = data.split(gate.config.held_out, gate.info["seed"])
    generator = torch.Generator().manual_seed(seed)
    pairs = Windows(data, 2, stride=stride, episodes=held_out)
    test = pairs.sample(min(transitions, len(pairs)), generator)
    wrong = test.actions[derangement(len(test.actions), generator)]

    scores: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
    seconds: dict[str, float] = {}

    def run(name: str, error: Callable[[Tensor, Tensor], npt.NDArray[Any]], began: float) -> None:
        scores[name] = error(test.states, test.actions), error(test.states, wrong)
        seconds[name] = round(time.monotonic() - began, 1)

    run("sage", lambda s, a: _first(gate.step_energy(s, a, stride=stride)), time.monotonic())
    normaliser = Normaliser.fit(data.states)
    if baselines:
        train_pairs = Windows(data, 2, stride=stride, episodes=training)
        rows = train_pairs.sample(min(_STATISTICS_ROWS, len(train_pairs)), generator)
        run("ridge", Ridge(normaliser, rows).error, time.monotonic())
        began = time.monotonic()
        latent_ridge = Ridge(random_encoder(gate, normaliser, rows.states[:, 0], seed), rows)
        run("random-latent ridge", latent_ridge.error, began)
        began = time.monotonic()
        run("mlp", fit_mlp(gate, data, normaliser, training, held_out, seed, progress), began)
    known: npt.NDArray[np.bool_] = np.ones(len(wrong), np.bool_)
    if simulator is not None:
        began = time.monotonic()
        std = normaliser.std.numpy()

        def simulated(states: Tensor, actions: Tensor) -> npt.NDArray[Any]:
            following = simulator(states[:, 0].numpy(), actions[:, 0].numpy())
            return np.asarray(np.abs((following - states[:, 1].numpy()) / std).mean(1))

        run("simulator", simulated, began)
        real, shuffled = scores["simulator"]
        known = np.asarray(np.isfinite(real))
        if not known.any():
            raise DataError(f"{data.name}: the simulator knows what follows none of {len(real)} held-out states")
        scores["simulator"] = real[known], shuffled[known]
    real, shuffled = scores["sage"]
    return Discrimination(
        {name: auroc(shuffled, real) for name, (real, shuffled) in scores.items()},
        float(known.mean()),
        auroc(shuffled[known], real[known]),
        len(wrong),
        seconds,
        scores,
    )


def _first(steps: Tensor) -> npt.NDArray[Any]:
    return np.asarray(steps[:, 0])


class Ridge:
    """Closed-form ridge regression of Δz on (z, a), z being whatever `encode` makes of a raw state."""

    def __init__(self, encode: nn.Module, rows: Batch) -> None:
        self._encode = encode
        z, following = self._pair(rows.states)
        self._actions = Normaliser.fit(rows.actions[:, 0].numpy())
        x = self._inputs(z, rows.actions)
        gram = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
        self._weights = torch.linalg.solve(gram, x.T @ (following - z))

    def error(self, states: Tensor, actions: Tensor) -> npt.NDArray[Any]:
        """states [n, 2, S] and actions [n, 1, A] to the ℓ1 errors [n]."""
        z, following = self._pair(states)
        predicted = z + self._inputs(z, actions) @ self._weights
        return np.asarray((predicted - following).abs().mean(1))

    @torch.no_grad()
    def _pair(self, states: Tensor) -> tuple[Tensor, Tensor]:
        now, following = self._encode(states).double().unbind(1)
        return now, following

    def _inputs(self, z: Tensor, actions: Tensor) -> Tensor:
        return torch.cat([z, self._actions(actions[:, 0]).double(), torch.ones(len(z), 1)], dim=1)


def random_encoder(gate: Gate, normaliser: Normaliser, states: Tensor, seed: int) -> FrozenEncoder:
    """An untrained encoder of the gate's own shape, whitened as the gate's is."""
    config = gate.config.stage1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(gate.state_dim, config.hidden, config.latent, config.bias_spread)
    with torch.no_grad():
        latents = encoder(normaliser(states))
    return FrozenEncoder(normaliser, encoder, Whitening.fit(latents, "per_dim", floor=0.0))


class StateMLP(nn.Module):
    """A forward model of normalised states: (s, a) to s + Δs, step by step, as wide as the gate's head."""

    def __init__(self, state_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(state_dim + action_dim, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, state_dim),
        )
        self.register_buffer("delta_scale", torch.ones(state_dim))

    delta_scale: Tensor

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        delta: Tensor = self.net(torch.cat([states, actions], dim=-1))
        return states + delta.float() * self.delta_scale

    def rollout(self, states: Tensor, actions: Tensor) -> Tensor:
        for t in range(actions.shape[1]):
            states = self(states, actions[:, t])
        return states


def fit_mlp(
    gate: Gate,
    data: Trajectories,
    normaliser: Normaliser,
    training: npt.NDArray[np.int64],
    held_out: npt.NDArray[np.int64],
    seed: int,
    progress: bool,
) -> Callable[[Tensor, Tensor], npt.NDArray[Any]]:
    """The MLP, trained with Stage II's objective, batches, steps and schedule, and its error function."""
    config = gate.config.stage2
    windows = [
        Windows(data, config.window + 1, stride=gate.config.stride, episodes=episodes)
        for episodes in (training, held_out)
    ]
    states = FrozenEncoder(normaliser, nn.Identity(), Whitening(data.state_dim, "none"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = StateMLP(data.state_dim, data.action_dim, config.head_hidden)
    if config.delta_units == "data":
        pairs = Windows(data, 2, stride=gate.config.stride, episodes=training)
        model.delta_scale.copy_(states.delta_std(pairs.sample(_STATISTICS_ROWS, torch.Generator().manual_seed(seed))))
    learner = PredictorLearner(config, states, model, "mean", windows[0], windows[1])
    learner.name = "mlp baseline"
    with tempfile.TemporaryDirectory(prefix="sageplan-") as folder, Bars(progress) as bars:
        train(
            learner,
            config.optimiser,
            Path(folder),
            device=torch.device("cpu"),
            seed=seed,
            identity="",
            bars=bars,
        )

    @torch.no_grad()
    def error(states: Tensor, actions: Tensor) -> npt.NDArray[Any]:
        normalised = normaliser(states)
        return np.asarray((model(normalised[:, :1], actions) - normalised[:, 1:]).abs().mean((1, 2)))

    return error
