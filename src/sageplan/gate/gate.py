"""The gate: raw plans in, energies and a choice out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sageplan.diffusion.inverse_dynamics import InverseDynamicsModel
from sageplan.errors import ConfigError, DataError
from sageplan.gate import store
from sageplan.gate.calibrate import (
    Calibration,
    Pools,
    energy_quantiles,
    penalty_from_pools,
    prefix_from_corruption,
)
from sageplan.gate.config import GateConfig
from sageplan.gate.energy import Context, step_energy
from sageplan.gate.fit import fit
from sageplan.gate.plans import Plans
from sageplan.gate.predictor import FrozenEncoder, LatentPredictor
from sageplan.gate.presets import resolve
from sageplan.gate.score import longest_segments, score_transitions
from sageplan.gate.select import PenaltyUnits, check_rule, select
from sageplan.parallel import spread
from sageplan.training.checkpoint import load_weights
from sageplan.training.loop import autocast
from sageplan.training.metrics import Logger
from sageplan.training.progress import Bars
from sageplan.types import Choice, FloatArray, Trajectories

PREFIX, KEEP, PENALTY = 10, 0.8, 0.1  # the paper's K, P and λ, for all 18 tasks
_CHUNK_STEPS = 2_048  # plan steps whose activations are worked on together; about what stays in the cache


class Gate:
    """Tells plans whose first steps can happen from plans whose first steps cannot.

    Make one with `Gate.fit`, `Gate.load` or `Gate.from_pretrained`. Plans are given in raw units:

        states   [B, C, H+1, S]   row 0 is the observed state, the same in every candidate
        actions  [B, C, H, A]     None if the planner proposes states only
        values   [B, C]

    all as NumPy arrays or all as torch tensors; results come back as the same kind, torch ones on the device of
    `states`. Every method also takes a single pool, without B. `stride` is the number of environment steps
    between two rows of the plan, and must be the one that the gate was fitted at.
    """

    def __init__(
        self,
        config: GateConfig,
        encoder: FrozenEncoder,
        predictor: LatentPredictor,
        inverse_dynamics: InverseDynamicsModel | None,
        info: dict[str, Any],
        calibration: Calibration | None = None,
    ) -> None:
        self.config, self.info, self.calibration = config, info, calibration
        self.encoder, self.predictor, self.inverse_dynamics = encoder, predictor, inverse_dynamics
        self.modules().requires_grad_(False).eval()
        self._generator = torch.Generator(self.device).manual_seed(0)
        self._said_clamped = False

    def __repr__(self) -> str:
        return f"Gate({self.info['data']['name']}, state {self.state_dim}, action {self.action_dim}, {self.device})"

    # ---- properties -------------------------------------------------------------------------------

    @property
    def state_dim(self) -> int:
        return len(self.encoder.normaliser.mean)

    @property
    def action_dim(self) -> int:
        return self.predictor.action_in.in_features

    @property
    def device(self) -> torch.device:
        return self.encoder.whitening.mean.device

    @property
    def prefix(self) -> int:
        """Default K: the calibrated one, else the paper's."""
        calibrated = self.calibration.prefix if self.calibration else None
        return PREFIX if calibrated is None else calibrated

    @property
    def penalty(self) -> float:
        """Default λ: the calibrated one, else the paper's."""
        calibrated = self.calibration.penalty if self.calibration else None
        return PENALTY if calibrated is None else calibrated

    def to(self, device: str | torch.device) -> Gate:
        """Move the gate, in place."""
        self.modules().to(device)
        self._generator = torch.Generator(self.device).manual_seed(0)
        return self

    def modules(self) -> nn.ModuleDict:
        """The networks by the names under which they are saved."""
        parts: dict[str, nn.Module] = {"encoder": self.encoder, "predictor": self.predictor}
        if self.inverse_dynamics is not None:
            parts["inverse_dynamics"] = self.inverse_dynamics
        return nn.ModuleDict(parts)

    # ---- fitting ----------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        data: Trajectories,
        preset: str | GateConfig = "cpu",
        *,
        run_dir: str | Path | None = None,
        device: str | torch.device | None = None,
        seed: int = 0,
        loggers: Sequence[Logger] = (),
        progress: bool = True,
    ) -> Gate:
        """Fit a gate to recorded trajectories; no rewards and no environment are needed.

        preset   "cpu", "paper", or a GateConfig of your own
        run_dir  checkpoints and metrics go there, and a fit that was interrupted resumes from there
        device   default: CUDA if there is one
        loggers  any of "tensorboard", "wandb", "trackio", beside the JSON lines that are always written
        """
        config = resolve(preset)
        where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        with Bars(progress) as bars:
            fitted = fit(data, config, run_dir, where, seed, loggers, bars)
        info = {
            "data": {
                "name": data.name,
                "fingerprint": data.fingerprint(),
                "rows": len(data),
                "episodes": data.num_episodes,
            },
            "seed": seed,
            "training": fitted.training,
        }
        gate = cls(config, fitted.encoder, fitted.predictor, fitted.inverse_dynamics, info)
        energies = gate.score(gate.held_out(data))
        gate.calibration = energy_quantiles(energies[np.isfinite(energies)])
        return gate

    def calibrate(self, data: Trajectories, pools: Pools | None = None) -> Calibration:
        """Set and store, offline, what the paper set by hand; returned, and kept by `save`.

        The energy quantiles of real transitions and the default prefix length come from `data`: from the
        held-out episodes where it is the data of the fit. The default penalty comes from `pools`, candidate
        pools with values as the planner proposes them, and stays as it is without any.
        """
        data = self.held_out(data)
        energies = self.score(data)
        calibration = energy_quantiles(energies[np.isfinite(energies)])
        generator = torch.Generator().manual_seed(0)
        states, actions = longest_segments(data, 32, self.config.stride).sample(1_000, generator)
        prefix, detection = prefix_from_corruption(
            lambda s, a: self.step_energy(s, a, stride=self.config.stride), states, actions, generator
        )
        penalty = self.calibration.penalty if self.calibration else None
        if pools is not None:
            states, actions, values = pools
            energy = self.energy(states, actions, prefix=prefix, stride=self.config.stride)
            penalty = penalty_from_pools(np.atleast_2d(energy), np.atleast_2d(values))
        self.calibration = replace(calibration, prefix=prefix, detection=detection, penalty=penalty)
        return self.calibration

    def held_out(self, data: Trajectories) -> Trajectories:
        """What of `data` no training step has seen: its held-out episodes, or all of it if it is other data."""
        if data.fingerprint() != self.info["data"]["fingerprint"]:
            return data
        return data.episodes(data.split(self.config.held_out, self.info["seed"])[1])

    # ---- energies ---------------------------------------------------------------------------------

    def energy(
        self,
        states: Any,
        actions: Any = None,
        *,
        prefix: int | None = None,
        stride: int = 1,
        context: Context = "plan",
        generator: torch.Generator | None = None,
    ) -> Any:
        """[B, C] mean energy of each candidate's first `prefix` steps; inf where a plan is not finite.

        A prefix longer than the plan is cut to it, one of 0 gives 0. With actions=None they are drawn by inverse
        dynamics, from `generator` or else from a stream of the gate's own.
        """
        plans = self._plans(states, actions, stride)
        steps, _ = self._prefix_energy(plans, self._clamp(prefix, plans.length), context, generator)
        return plans.restore(_mean(steps))

    def step_energy(
        self,
        states: Any,
        actions: Any = None,
        *,
        stride: int = 1,
        context: Context = "plan",
        generator: torch.Generator | None = None,
    ) -> Any:
        """[B, C, H] energy of every step. A single trajectory, states [H+1, S], works too and gives [H]."""
        plans = self._plans(states, actions, stride, pools=False)
        steps, _ = self._prefix_energy(plans, plans.length, context, generator)
        return plans.restore(steps)

    def choose(
        self,
        states: Any,
        actions: Any,
        values: Any,
        *,
        prefix: int | None = None,
        keep: float = KEEP,
        penalty: float | None = None,
        penalty_units: PenaltyUnits = "raw",
        stride: int = 1,
        generator: torch.Generator | None = None,
    ) -> Choice[Any]:
        """The candidate to execute: `select` on the energies of the plans' first `prefix` steps.

        `choice.actions` holds the scored prefix and `choice.action` the winner's first action. With actions=None
        execute that one: it is the drawn action that the energy is about.
        """
        penalty = self.penalty if penalty is None else penalty
        check_rule(keep, penalty, penalty_units)
        plans = self._plans(states, actions, stride)
        values = plans.values(values)
        prefix = self._clamp(prefix, plans.length)
        # A prefix of 0 is the planner without a gate: nobody is dropped, and there still is an action to execute.
        steps, prefix_actions = self._prefix_energy(plans, max(prefix, 1), "plan", generator)
        chosen = select(
            values,
            plans.restore(_mean(steps[:, :prefix])),
            keep=keep if prefix else 1.0,
            penalty=penalty,
            penalty_units=penalty_units,
        )
        return replace(chosen, actions=plans.restore(prefix_actions.clone()))  # the caller's buffer may be reused

    def score(self, data: Trajectories) -> FloatArray:
        """[N] energy of every recorded transition; NaN in rows that have no next state in their episode."""
        if (data.state_dim, data.action_dim) != (self.state_dim, self.action_dim):
            raise DataError(
                f"{data.name} has states of size {data.state_dim} and actions of size {data.action_dim}; "
                f"this gate was fitted to {self.state_dim} and {self.action_dim}"
            )
        return score_transitions(self._window_energy, data, self.config.stage2.window, self.config.stride)

    @torch.no_grad()
    def _window_energy(self, states: Tensor, actions: Tensor) -> Tensor:
        """Raw states [n, W+1, S] and actions [n, W, A], on the CPU, to step energies [n, W], on the CPU."""
        return self._latent_energy(self.encoder(states.to(self.device)), actions.to(self.device)).cpu()

    def quantile(self, energy: Any) -> Any:
        """Share of real transitions whose energy is lower: .999 reads "worse than 99.9 % of the data"."""
        if self.calibration is None:
            raise ConfigError("this gate has no calibration; run gate.calibrate(data)")
        return self.calibration.quantile(energy)

    # ---- saving -----------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write a folder of JSON and safetensors; replacing an older gate in it is atomic."""
        store.save(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu") -> Gate:
        """Read what `save` wrote. Corrupt, foreign and newer gates are refused; nothing is ever unpickled."""
        parts, tensors = store.load(Path(folder))
        gate = cls(*parts)
        load_weights(gate.modules(), tensors, Path(folder))
        return gate.to(device)

    def push_to_hub(self, repo_id: str, *, private: bool = True) -> str:
        """Save to a repository on the Hugging Face Hub; returns the address of the commit."""
        return store.push_to_hub(self, repo_id, private)

    @classmethod
    def from_pretrained(cls, name: str | Path, device: str | torch.device = "cpu") -> Gate:
        """Load a folder if there is one of that name, else a repository from the Hugging Face Hub."""
        return cls.load(name if Path(name).is_dir() else store.download(str(name)), device)

    # ---- inside -----------------------------------------------------------------------------------

    def _plans(self, states: Any, actions: Any, stride: int, *, pools: bool = True) -> Plans:
        if stride != self.config.stride:
            raise ConfigError(
                f"this gate was fitted at stride {self.config.stride} and cannot judge plans of stride {stride}; "
                "fit one with GateConfig(stride=…), or plan at the gate's stride"
            )
        if actions is None and self.inverse_dynamics is None:
            raise ConfigError(
                "plans without actions need inverse dynamics, which this gate was fitted without; "
                "give actions, or fit with GateConfig(inverse_dynamics=InverseDynamics())"
            )
        return Plans.check(states, actions, self.state_dim, self.action_dim, pools=pools, device=self.device)

    def _clamp(self, prefix: int | None, length: int) -> int:
        prefix = self.prefix if prefix is None else prefix
        if prefix < 0:
            raise ConfigError(f"prefix counts steps and cannot be negative, got {prefix}")
        if prefix > length and not self._said_clamped:
            self._said_clamped = True
            warnings.warn(
                f"sageplan: prefix {prefix} is longer than the plan; scoring its {length} steps", stacklevel=3
            )
        return min(prefix, length)

    @torch.no_grad()
    def _prefix_energy(
        self, plans: Plans, prefix: int, context: Context, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Step energies [N, K] and the actions [N, K, A] that they are for."""
        states = plans.states[:, : prefix + 1]
        if plans.actions is None:
            actions = self._draw(states, generator or self._generator)
        else:
            actions = plans.actions[:, :prefix]
        rows = max(1, _CHUNK_STEPS // max(1, prefix))
        pieces = list(zip(torch.split(states, rows), torch.split(actions, rows), strict=True))
        energies = spread(lambda piece: self._finite_energy(*piece, context), pieces, self.device)
        return torch.cat(energies), actions

    def _draw(self, states: Tensor, generator: torch.Generator) -> Tensor:
        assert self.inverse_dynamics is not None
        count, rows, _ = states.shape
        now, following = states[:, :-1].flatten(0, 1), states[:, 1:].flatten(0, 1)
        return self.inverse_dynamics.draw(now, following, generator).view(count, rows - 1, self.action_dim)

    @torch.no_grad()
    def _finite_energy(self, states: Tensor, actions: Tensor, context: Context) -> Tensor:
        """A step that touches a value that is not finite, and every step after it in the plan, costs inf."""
        if actions.shape[1] == 0:
            return states.new_zeros(actions.shape[:2])
        broken = ~states.isfinite().all(-1)
        broken = (broken[:, :-1] | broken[:, 1:] | ~actions.isfinite().all(-1)).cummax(1).values
        if not broken.any():
            return self._latent_energy(self.encoder(states), actions, context)
        zero = {"nan": 0.0, "posinf": 0.0, "neginf": 0.0}
        energy = self._latent_energy(self.encoder(states.nan_to_num(**zero)), actions.nan_to_num(**zero), context)
        return energy.masked_fill(broken, torch.inf)

    def _latent_energy(self, latents: Tensor, actions: Tensor, context: Context = "plan") -> Tensor:
        with autocast(self.device, self.config.precision):
            return step_energy(
                self.predictor,
                latents,
                actions,
                window=self.config.stage2.window,
                reduction=self.config.energy_reduction,
                context=context if self.predictor.causal else "step",
            )


def _mean(steps: Tensor) -> Tensor:
    """[N, K] to [N]; no steps cost nothing."""
    return steps.mean(1) if steps.shape[1] else steps.new_zeros(len(steps))
