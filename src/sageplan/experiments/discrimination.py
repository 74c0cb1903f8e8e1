"""The four-method AUROC table (paper, Table feas_discrim_by_domain), with its ceiling and the time it took.

    python -m sageplan.experiments.discrimination DATA... --runs runs --out results

Each data set gets a run folder with its gate and a record; finished ones are not repeated.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from tyro.conf import Positional

from sageplan.data.examine import origin
from sageplan.diagnostics.corruption import CORRUPTIONS
from sageplan.diagnostics.discrimination import discriminate
from sageplan.diagnostics.localisation import contexts, localise
from sageplan.diagnostics.ranking import rank_true_continuation
from sageplan.gate.gate import Gate
from sageplan.tasks import simulator
from sageplan.training.checkpoint import claim_folder, read_json, write_json, write_text
from sageplan.types import Trajectories

DOMAINS = {"halfcheetah": "MuJoCo", "hopper": "MuJoCo", "walker2d": "MuJoCo", "maze2d": "Maze2D", "antmaze": "AntMaze"}
PAPER = {"MuJoCo": 0.980, "Maze2D": 0.993, "AntMaze": 0.940}  # its SAGE column, on the official data
NEAR = 0.005  # of the ceiling
METHODS = ("ridge", "mlp", "random-latent ridge", "sage", "simulator")


@dataclass
class Run:
    """Fit a gate to each data set and compare it with the paper's baselines."""

    data: Positional[tuple[Path, ...]]
    """D4RL files, named after their tasks"""
    runs: Path = Path("runs/discrimination")
    out: Path = Path("results")
    preset: Literal["cpu", "paper"] = "cpu"
    seed: int = 0

    def __call__(self) -> None:
        claim_folder(self.out, needed_bytes=0)
        records = [self.one(path) for path in self.data]
        summary = {
            "command": "python -m sageplan.experiments.discrimination "
            + " ".join(path.name for path in self.data)
            + f" --preset {self.preset} --seed {self.seed}",
            "machine": f"{os.cpu_count()} CPU cores, {torch.get_num_threads()} threads, torch {torch.__version__}",
            "tasks": records,
            "domains": domain_means(records),
        }
        write_json(self.out / "discrimination.json", summary)
        write_text(self.out / "discrimination.md", markdown(summary))

    def one(self, path: Path) -> dict[str, Any]:
        run = self.runs / f"{path.stem}-{self.preset}-{self.seed}"
        finished = run / "discrimination.json"
        if finished.exists():
            return read_json(finished, "a finished record")
        data = Trajectories.load(path)
        began = time.monotonic()
        gate = Gate.fit(data, self.preset, run_dir=run / "fit", seed=self.seed)
        wall = time.monotonic() - began
        gate.save(run / "gate")
        found = discriminate(gate, data, simulator=simulator(data.name), seed=self.seed, progress=True)
        training = gate.info["training"]
        record = {
            "task": path.stem,
            "data": origin(path),
            "rows": len(data),
            "seed": self.seed,
            "fit_seconds": {
                "wall": round(wall, 1),
                **{stage: summary["seconds"] for stage, summary in training.items()},
            },
            "resumed": any(summary["first_step"] > 0 for summary in training.values()),
            "transitions": found.transitions,
            "auroc": found.auroc,
            "known_to_the_simulator": {"share": found.known, "sage": found.sage_known},
            "ranking": rank_true_continuation(gate, data, seed=self.seed)._asdict(),
            "localisation": {
                f"{kind}, {context}": localise(gate, data, kind, context=context, seed=self.seed).auroc
                for kind in CORRUPTIONS
                for context in contexts(gate)
            },
        }
        write_json(finished, record)
        return record


def domain_means(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and standard error of each method's AUROC over the tasks of a domain."""
    domains: dict[str, dict[str, Any]] = {}
    for record in records:
        domain = DOMAINS.get(record["task"].split("-")[0], "other")
        for method, value in record["auroc"].items():
            domains.setdefault(domain, {}).setdefault(method, []).append(value)
    return {
        domain: {
            method: {
                "mean": statistics.mean(values),
                "standard_error": statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None,
            }
            for method, values in methods.items()
        }
        for domain, methods in domains.items()
    }


def markdown(summary: dict[str, Any]) -> str:
    """The record as tables. Published numbers stand apart: they are of other data."""
    lines = [
        "# Feasibility discrimination",
        "",
        "AUROC of real against action-shuffled held-out transitions, each scored by itself (context of one step).",
        f"Command: `{summary['command']}`  ",
        f"Machine: {summary['machine']}. Data: see the column; none of it is official D4RL data unless it says so.",
        "",
        "| task | data | ridge | MLP | random-latent ridge | **SAGE** | simulator | it knows | SAGE there | fit, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in summary["tasks"]:
        cells = [f"{record['auroc'][m]:.4f}" if m in record["auroc"] else "–" for m in METHODS]
        data = f"{record['rows'] / 1e6:.2g}M rows, {record['data']}, fit seed {record['seed']}"
        known = record["known_to_the_simulator"]
        cells += [f"{known['share']:.2f}", f"{known['sage']:.4f}", f"{record['fit_seconds']['wall']:.0f}"]
        lines.append(f"| {record['task']} | {data} | {' | '.join(cells)} |")
    lines += [
        "",
        "The simulator scores with its own one-step error: the ceiling. Shuffled actions can equal real ones, or act",
        "the same. Hopper's and Walker2d's observations clip velocities at 10: where one was, no method can know the",
        "state, and the simulator is not asked. Then come the share of the others, and SAGE's AUROC on these.",
        "",
        *_verdicts(summary["tasks"]),
    ]
    lines += ["", "## By domain (mean ± standard error over tasks)", ""]
    lines += ["| domain | ridge | MLP | random-latent ridge | **SAGE** | simulator |", "|---|---|---|---|---|---|"]
    for domain, methods in summary["domains"].items():
        lines.append(f"| {domain} | " + " | ".join(_mean_cell(methods.get(method)) for method in METHODS) + " |")
    lines += [
        "",
        "The paper's own numbers for SAGE, on the official data and 200,000 steps per stage, for orientation: ",
    ]
    lines[-1] += ", ".join(f"{domain} {value:.3f}" for domain, value in PAPER.items()) + "."
    lines += ["", "## Ranking and localisation of the same gates", ""]
    kinds = list(summary["tasks"][0]["localisation"])
    lines += ["| task | true continuation first of 50 | shuffled ones below it | " + " | ".join(kinds) + " |"]
    lines += ["|---" * (3 + len(kinds)) + "|"]
    for record in summary["tasks"]:
        ranking, localisation = record["ranking"], record["localisation"]
        cells = [f"{ranking['first']:.3f}", f"{ranking['below']:.4f}", *(f"{localisation[k]:.3f}" for k in kinds)]
        lines.append(f"| {record['task']} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Ranking: 400 pools of a held-out continuation of 10 steps and 49 copies, their actions permuted in time.",
        "Localisation: AUROC of 12 corrupted steps in 400 held-out segments of 64; `step` judges each step alone,",
        "`plan`, for gates that look at the plan so far, keeps the corrupted steps in the predictor's context.",
    ]
    return "\n".join(lines) + "\n"


def _verdicts(records: list[dict[str, Any]]) -> list[str]:
    """Where SAGE falls short of the ceiling, and where a plain baseline does as well."""
    short, matched = [], []
    for record in records:
        auroc = record["auroc"]
        if "simulator" in auroc:
            gap = auroc["simulator"] - record["known_to_the_simulator"]["sage"]
            short += [f"{record['task']} by {gap:.4f}"] if gap > NEAR else []
        matched += [
            f"{method} on {record['task']} ({auroc[method]:.4f})"
            for method in METHODS[:3]
            if method in auroc and auroc[method] >= auroc["sage"]
        ]
    return [
        f"- More than {NEAR} below the simulator where it knows the state: {', '.join(short) or 'none'}.",
        f"- Baselines that do as well as SAGE or better: {', '.join(matched) or 'none'}.",
    ]


def _mean_cell(entry: dict[str, float] | None) -> str:
    if entry is None:
        return "–"
    return f"{entry['mean']:.4f}" + (f" ± {entry['standard_error']:.4f}" if entry["standard_error"] is not None else "")


if __name__ == "__main__":
    tyro.cli(Run, description=__doc__)()
