"""`make demo`: from no data at all to a gate, and pictures of what it tells apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from sageplan.cli import diagnose, out, print_gate
from sageplan.data.maze2d import collect
from sageplan.data.readers import save_npz
from sageplan.diagnostics.auroc import auroc
from sageplan.errors import ConfigError
from sageplan.gate.gate import Gate
from sageplan.gate.score import longest_segments
from sageplan.report import figures
from sageplan.tasks.maze2d import Maze, one_step
from sageplan.training.checkpoint import claim_folder, write_json
from sageplan.training.progress import Bars
from sageplan.types import Trajectories

_PLANS, _STEPS = 60, 64
_SAME = 1e-3  # a step that the simulator reproduces to this is possible


def demo(folder: Path, maze_name: str, steps: int, seed: int) -> None:
    """Data, gate, diagnostics and figures into `folder`; every part that an earlier run finished is kept."""
    claim_folder(folder, needed_bytes=40 * steps)
    maze = Maze.named(maze_name)
    data = _data(folder / f"maze2d-{maze_name}.npz", maze_name, steps, seed)
    gate = Gate.fit(data, "cpu", run_dir=folder / "fit", seed=seed)
    gate.calibrate(data)
    gate.save(folder / "gate")
    print_gate(gate)
    record = diagnose(gate, data, folder, baselines=False, seed=seed)
    record["plans"] = _draw_plans(gate, data, maze, folder / "plans.png", seed)
    write_json(folder / "demo.json", record)
    out.print(f"\nPictures in {folder}: plans.png, localisation.png, energies.png, discrimination.png")


def _data(path: Path, maze_name: str, steps: int, seed: int) -> Trajectories:
    if not path.exists():
        with Bars() as bars:
            job = bars.job(f"collect {maze_name}", steps, 0)
            save_npz(collect(maze_name, steps, seed=seed, progress=job.update), path)
    data = Trajectories.load(path)
    if len(data) != steps:
        raise ConfigError(f"{path} holds {len(data)} rows, not {steps}; choose another folder, or delete it")
    return data


def _draw_plans(gate: Gate, data: Trajectories, maze: Maze, path: Path, seed: int) -> dict[str, float]:
    """Recorded motions, where they happened and moved elsewhere in the maze, coloured by energy.

    A ball moves alike everywhere but at walls, so a moved motion is possible until it meets one; the simulator
    says which moved motions are. Returns the mean energies, and the AUROC of impossible against possible ones.
    """
    windows = longest_segments(gate.held_out(data), _STEPS, 1)
    states, actions = (part.numpy() for part in windows.sample(_PLANS * 16, torch.Generator().manual_seed(seed)))
    moved = states.copy()
    shift = np.roll(states[:, 0, :2], 1, axis=0) - states[:, 0, :2]
    moved[..., :2] += shift[:, None]
    simulated = one_step(maze, moved[:, :-1].reshape(-1, 4), actions.reshape(-1, 2)).reshape(moved[:, 1:].shape)
    possible = np.abs(simulated - moved[:, 1:]).max((1, 2)) < _SAME

    recorded_energy, moved_energy = gate.step_energy(states, actions), gate.step_energy(moved, actions)
    panels = {
        "recorded": (states, recorded_energy),
        "moved elsewhere, still possible": (moved[possible], moved_energy[possible]),
        "moved elsewhere, through a wall": (moved[~possible], moved_energy[~possible]),
    }
    figures.maze_paths(
        path,
        maze,
        {name: (xy[:_PLANS, :, :2], energy[:_PLANS]) for name, (xy, energy) in panels.items()},
        limit=float(np.quantile(moved_energy[~possible], 0.9)),
    )
    record = {name: float(energy.mean()) for name, (_, energy) in panels.items()}
    record["AUROC, through a wall against possible"] = auroc(
        moved_energy[~possible].mean(1), moved_energy[possible].mean(1)
    )
    out.print("Mean energy of motions: " + ", ".join(f"{name} {value:.2g}" for name, value in record.items()))
    return record
