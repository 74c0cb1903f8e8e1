"""What a run's report shows besides scores: energies of tampered recordings, and the stress test in Maze2D."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sageplan.diagnostics.corruption import CORRUPTIONS
from sageplan.diagnostics.localisation import aligned, localise
from sageplan.gate.gate import Gate
from sageplan.planners.veteran import Veteran
from sageplan.runs.folder import Run
from sageplan.training.checkpoint import write_json
from sageplan.training.progress import Bars
from sageplan.types import Trajectories

STARTS, CANDIDATES = 100, 500


def diagnose_run(run: Run, data: Trajectories, device: torch.device, progress: bool = False) -> dict[str, Any]:
    """Kept in the run's diagnosis.json, and read from there when it has been made."""
    if (earlier := run.diagnosis()) is not None:
        return earlier
    gate, planner = run.gate(device), run.planner(device)
    record: dict[str, Any] = {"localisation": [_localisation(gate, data, kind) for kind in CORRUPTIONS], "stress": None}
    if run.task.domain == "maze2d":
        record["stress"] = _stress(run, gate, planner, data, progress)
    write_json(run.path / "diagnosis.json", record)
    return record


def _localisation(gate: Gate, data: Trajectories, kind: Any) -> dict[str, Any]:
    result = localise(gate, data, kind)
    curves = aligned(result)
    return {
        "kind": kind,
        "auroc": result.auroc,
        "segments": len(result.mask),
        "width": curves.width,
        "offsets": curves.offsets.tolist(),
        "clean": curves.clean.tolist(),
        "corrupted": curves.corrupted.tolist(),
    }


def _stress(run: Run, gate: Gate, planner: Veteran, data: Trajectories, progress: bool) -> dict[str, Any]:
    """From held-out recorded states, evenly spaced."""
    from sageplan.experiments.stress import stress
    from sageplan.tasks.maze2d import Maze

    states = gate.held_out(data).states
    rows = np.linspace(0, len(states) - 1, STARTS).astype(np.int64)
    observations = torch.from_numpy(states[rows]).to(gate.device)
    with Bars(progress) as bars:
        job = bars.job("stress test", STARTS)
        return stress(
            planner, planner.critic, gate, Maze.named(run.task.world), observations,
            candidates=CANDIDATES, seed=run.seed, progress=job.update,
        )  # fmt: skip
