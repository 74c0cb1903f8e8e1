"""The command line. Every command is a dataclass; its fields are the options and its docstring the help."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import AvoidSubcommands, Positional, subcommand

from sageplan import cli_data, cli_run
from sageplan._version import __version__
from sageplan.errors import SageplanError
from sageplan.gate.config import GateConfig
from sageplan.gate.gate import Gate
from sageplan.gate.presets import PRESETS
from sageplan.tasks import catalogue
from sageplan.training.checkpoint import atomic, claim_folder, write_json
from sageplan.training.metrics import Logger
from sageplan.types import Trajectories

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Preset = Literal["cpu", "paper"]


@dataclass
class Fit:
    """Fit a gate to recorded trajectories.

    Interrupt it at any time: the same command goes on where it stopped.
    """

    data: Positional[str]
    """D4RL .hdf5 file, .npz archive, folder of a Minari data set, or minari:ID"""
    out: Path
    """folder for the gate"""
    preset: Preset = "cpu"
    """cpu: minutes on two cores. paper: the paper's appendix. The options below start from it"""
    run_dir: Path | None = None
    """checkpoints and metrics; default: OUT.run"""
    device: str | None = None
    """default: cuda if there is one"""
    seed: int = 0
    log: tuple[Logger, ...] = ()
    """metrics also go there, besides metrics.jsonl"""
    config: Annotated[AvoidSubcommands[GateConfig], tyro.conf.arg(name="")] = field(default_factory=GateConfig)

    def run(self) -> None:
        run_dir = self.run_dir or self.out.with_name(self.out.name + ".run")
        claim_folder(self.out, needed_bytes=0)
        data = Trajectories.load(self.data)
        try:
            gate = Gate.fit(data, self.config, run_dir=run_dir, device=self.device, seed=self.seed, loggers=self.log)
        except KeyboardInterrupt:
            err.print(f"interrupted; the same command goes on from {run_dir}")
            raise
        gate.save(self.out)
        print_gate(gate)
        out.print(f"saved to {self.out}")


@dataclass
class Score:
    """Energy of every recorded transition: which ones look physically wrong?"""

    data: Positional[str]
    """as for fit"""
    gate: Path
    """folder of a saved gate"""
    out: Path = Path("scores.npz")
    """arrays energy [N] and quantile [N], NaN where a row has no next state; the histogram goes beside it"""
    worst: int = 10
    """stretches to list"""
    device: str = "cpu"

    def run(self) -> None:
        from sageplan.gate.score import worst_stretches
        from sageplan.report.figures import energy_histogram

        gate, data = Gate.load(self.gate, self.device), Trajectories.load(self.data)
        claim_folder(self.out.resolve().parent, needed_bytes=16 * len(data))
        energy = gate.score(data)
        quantile = gate.quantile(energy).astype(np.float32)
        with atomic(self.out) as partial, partial.open("wb") as file:
            np.savez(file, energy=energy, quantile=quantile)
        scored = energy[np.isfinite(energy)]
        picture = self.out.with_suffix(".png")
        marks = {"99 % of the gate's data": _energy_at(gate, 0.99), "99.9 %": _energy_at(gate, 0.999)}
        energy_histogram(picture, {data.name: scored}, marks, f"Energy of {len(scored):,} transitions")

        table = Table(title=f"Worst stretches of 10 steps in {data.name}", title_justify="left")
        for heading in ("episode", "steps", "mean energy", "× median", "share of the gate's data below"):
            table.add_column(heading, justify="right")
        median = float(np.median(scored))
        for stretch in worst_stretches(energy, data, width=10, count=self.worst):
            table.add_row(
                str(stretch.episode),
                f"{stretch.first}–{stretch.last}",
                f"{stretch.energy:.4f}",
                f"{stretch.energy / median:.1f}",
                f"{float(gate.quantile(stretch.energy)):.2%}",
            )
        out.print(table)
        above = float(np.mean(quantile[np.isfinite(energy)] > 0.999))
        out.print(f"{above:.3%} of the transitions are worse than 99.9 % of the gate's own data (expected: 0.100%)")
        out.print(f"wrote {self.out} and {picture}")


@dataclass
class Diagnose:
    """Can this gate tell real transitions from impossible ones? The paper's two offline diagnostics."""

    data: Positional[str]
    """as for fit; best the data of the fit, whose held-out episodes are used"""
    gate: Path
    """folder of a saved gate"""
    out: Path = Path("diagnosis")
    """folder for the figures and diagnosis.json"""
    baselines: bool = True
    """also fit the ridge, MLP and random-latent baselines; the MLP takes as many steps as Stage II did"""
    seed: int = 0

    def run(self) -> None:
        claim_folder(self.out, needed_bytes=0)
        gate, data = Gate.load(self.gate), Trajectories.load(self.data)
        write_json(self.out / "diagnosis.json", diagnose(gate, data, self.out, self.baselines, self.seed))
        out.print(f"wrote diagnosis.json and the figures to {self.out}")


@dataclass
class Info:
    """What is in a saved gate."""

    gate: Positional[Path]
    """folder of a saved gate"""

    def run(self) -> None:
        print_gate(Gate.load(self.gate))


@dataclass
class Demo:
    """Make Maze2D data, train a planner and a gate, and report what the gate changes."""

    out: Path = Path("demo")
    """folder for everything"""
    maze: Literal["umaze", "medium", "large"] = "medium"
    rows: int = 500_000
    """of data to make"""
    episodes: int = 30
    """of each arm"""
    seed: int = 0

    def run(self) -> None:
        from sageplan.demo import demo

        task = catalogue.get(f"maze2d-{self.maze}-v1")
        cli_run.finish(demo(task, self.out, self.rows, self.episodes, self.seed, cli_run.heading))


def diagnose(gate: Gate, data: Trajectories, folder: Path, baselines: bool, seed: int) -> dict[str, Any]:
    """Run both diagnostics, print their tables, draw their figures; the numbers as a JSON record."""
    from sageplan.diagnostics.corruption import CORRUPTIONS
    from sageplan.diagnostics.discrimination import discriminate
    from sageplan.diagnostics.localisation import contexts, localise
    from sageplan.diagnostics.ranking import rank_true_continuation
    from sageplan.report import figures
    from sageplan.tasks import simulator

    results = {
        context: [localise(gate, data, kind, context=context, seed=seed) for kind in CORRUPTIONS]
        for context in contexts(gate)
    }
    planned = next(iter(results.values()))
    figures.localisation(folder / "localisation.png", planned, data.name)
    names = {"plan": "whole plan as context", "step": "single steps"}
    table = Table(title="Corruption localisation: AUROC of corrupted steps", title_justify="left")
    for heading in ("corruption", *(names[context] for context in results), "energy outside, × clean"):
        table.add_column(heading)
    for row in zip(*results.values(), strict=True):
        table.add_row(row[0].kind, *(f"{result.auroc:.3f}" for result in row), f"{row[0].outside:.2f}")
    out.print(table)

    ranking = rank_true_continuation(gate, data, seed=seed)
    out.print(
        f"Ranking: the true continuation has the lowest energy of {ranking.candidates} candidates in "
        f"{ranking.first:.1%} of the pools; {ranking.below:.2%} of the shuffled ones have a higher energy than it\n"
    )
    found = discriminate(gate, data, baselines=baselines, simulator=simulator(data.name), seed=seed, progress=True)
    figures.discrimination(folder / "discrimination.png", found.auroc, data.name)
    real, shuffled = found.scores["sage"]
    marks = {"99 % of real": _energy_at(gate, 0.99)}
    groups = {"real": real, "action-shuffled": shuffled}
    figures.energy_histogram(folder / "energies.png", groups, marks, f"{data.name}, held-out transitions")
    table = Table(title=f"Feasibility discrimination on {found.transitions:,} transitions", title_justify="left")
    for heading in ("method", "AUROC", "seconds"):
        table.add_column(heading)
    for name, value in found.auroc.items():
        table.add_row(name, f"{value:.4f}", f"{found.seconds[name]:.1f}")
    out.print(table)
    return {
        "data": data.name,
        "seed": seed,
        "localisation": [
            {"corruption": r.kind, "context": r.context, "auroc": r.auroc, "outside": r.outside}
            for group in results.values()
            for r in group
        ],
        "ranking": ranking._asdict(),
        "discrimination": {"transitions": found.transitions, "auroc": found.auroc, "seconds": found.seconds},
    }


def print_gate(gate: Gate) -> None:
    """A table of what the gate is, what it was fitted to and how well that went."""
    data, training = gate.info["data"], gate.info["training"]
    one, two = training["stage1"], training["stage2"]
    table = Table(title=f"Gate fitted to {data['name']}", title_justify="left", show_header=False)
    table.add_row("data", f"{data['rows']:,} rows in {data['episodes']:,} episodes, sha256 {data['fingerprint'][:12]}")
    table.add_row("plans", f"state {gate.state_dim}, action {gate.action_dim}, stride {gate.config.stride}")
    rows = {
        "stage I": f"latent {gate.config.stage1.latent}: standard deviation {one['teacher_std']:.2f}, "
        f"effective rank {one['teacher_rank']:.1f}; {one['steps']:,} steps",
        "stage II": f"held-out error {two['held_out_error']:.4f}, no change {two['held_out_no_change']:.4f}, "
        f"AUROC against shuffled actions {two['held_out_auroc']:.4f}; {two['steps']:,} steps",
    }
    if drawn := training.get("inverse_dynamics"):
        rows["inverse dynamics"] = (
            f"held-out error {drawn['held_out_error']:.3f}, mean action {drawn['held_out_mean_action']:.3f}; "
            f"{drawn['steps']:,} steps"
        )
    if gate.calibration is not None:
        rows["energies"] = (
            f"median {_energy_at(gate, 0.5):.4f}, 99 % {_energy_at(gate, 0.99):.4f}, "
            f"99.9 % {_energy_at(gate, 0.999):.4f} of real transitions"
        )
    rows["defaults"] = f"prefix {gate.prefix}, penalty {gate.penalty:g}"
    for name, text in rows.items():
        table.add_row(name, text)
    out.print(table)


def _energy_at(gate: Gate, level: float) -> float:
    assert gate.calibration is not None, "every saved gate has one"
    return float(np.interp(level, gate.calibration.levels, gate.calibration.energies))


def main(arguments: list[str] | None = None) -> None:
    """Exit code 0: done. 1: an error, said in one line. 2: wrong usage. 130: interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--version" in arguments:
        out.print(f"sageplan {__version__}")
        return
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    try:
        tyro.cli(
            _commands(arguments),
            prog="sageplan",
            description="A feasibility gate for planners that generate many plans and pick one. "
            "Every command also takes --debug, which shows the traceback of an error.",
            args=arguments,
        ).run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if debug:
            traceback.print_exc()
        elif isinstance(error, SageplanError):
            err.print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        else:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            err.print(f"[bold red]unexpected error:[/] {_escape(what)} (--debug shows where)", soft_wrap=True)
        sys.exit(1)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _preset(arguments: list[str]) -> GateConfig:
    """The preset must be known before the parser is built, because every other default comes from it."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name = following if word == "--preset" else word.removeprefix("--preset=")
        if name in PRESETS and word.startswith("--preset"):
            return PRESETS[name]
    return PRESETS["cpu"]


def _commands(arguments: list[str]) -> Any:
    fit = Fit(data=tyro.MISSING, out=tyro.MISSING, config=_preset(arguments))
    return (
        cli_run.commands(arguments)
        | Annotated[Fit, subcommand("fit", default=fit)]
        | Annotated[Score, subcommand("score")]
        | Annotated[Diagnose, subcommand("diagnose")]
        | Annotated[Info, subcommand("info")]
        | Annotated[Demo, subcommand("demo")]
        | cli_data.command()
    )
