"""`sageplan run`, `evaluate` and `compare`: from a task's name to paired episodes and what they show."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import AvoidSubcommands, Positional, subcommand

from sageplan.errors import ConfigError
from sageplan.planners.presets import NAMES
from sageplan.report import text
from sageplan.runs.config import RunConfig, preset
from sageplan.tasks import catalogue
from sageplan.training.checkpoint import claim_folder, write_json, write_text
from sageplan.training.metrics import Logger

if TYPE_CHECKING:
    from sageplan.runs.folder import Run as RunFolder

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Preset = Literal["cpu", "paper", "veteran"]


@dataclass
class Run:
    """Do it all for one task: data, gate, planner, paired episodes, report.

    Interrupt it at any time: the same command goes on where it stopped.
    """

    task: Positional[str]
    """for example maze2d-umaze-v1"""
    preset: Preset = "cpu"
    """cpu: two cores. paper: the paper's appendix. veteran: DV's released settings. The options below start from it"""
    out: Path | None = None
    """run folder; default: runs/TASK-PRESET-SEED"""
    data: Path | None = None
    """the task's data file; default: in the cache, else downloaded or, for Maze2D, made here"""
    episodes: int = 100
    """of each selector, on episode seeds 0, 1, …"""
    selectors: str = "mcss,sage"
    """arms, with commas between: mcss, sage, random, lowest-energy, oracle; settings as in sage:keep=0.5:prefix=5"""
    seed: int = 0
    """of the training"""
    device: str | None = None
    """default: cuda if there is one"""
    log: tuple[Logger, ...] = ()
    """training metrics also go there, besides metrics.jsonl"""
    config: Annotated[AvoidSubcommands[RunConfig], tyro.conf.arg(name="")] = field(
        default_factory=lambda: preset("cpu", next(iter(catalogue.TASKS.values())))
    )

    def run(self) -> None:
        from sageplan.runs.stages import run

        task = catalogue.get(self.task)
        folder = self.out or Path("runs") / f"{task.name}-{self.preset}-{self.seed}"
        try:
            done = run(
                task, self.preset, self.config,
                out=folder, data=self.data, seed=self.seed, episodes=self.episodes, selectors=_arms(self.selectors),
                device=self.device, loggers=self.log, say=heading,
            )  # fmt: skip
        except KeyboardInterrupt:
            err.print(f"interrupted; the same command goes on from {folder}")
            raise
        finish(done)


@dataclass
class Evaluate:
    """Run more episodes, or other selectors, of a trained run; those it has already are not run again."""

    run_folder: Positional[Path]
    """as `sageplan run` made it"""
    episodes: int = 100
    """of each selector, on episode seeds 0, 1, …"""
    selectors: str = "mcss,sage"
    """as for run"""
    width: int | None = None
    """environments stepped together; changes nothing but the speed"""
    device: str | None = None
    """default: cuda if there is one"""

    def run(self) -> None:
        import torch

        from sageplan.runs.folder import Run as RunFolder
        from sageplan.runs.stages import evaluate_run

        folder = RunFolder.open(self.run_folder)
        rollout = folder.config.rollout
        if self.width is not None:
            rollout = replace(rollout, width=self.width)
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            evaluate_run(folder, self.episodes, _arms(self.selectors), rollout=rollout, device=device)
        except KeyboardInterrupt:
            err.print("interrupted; finished episodes are kept, and the same command goes on")
            raise
        finish(folder)


@dataclass
class Compare:
    """Runs side by side: scores, paired differences, and the stratified bootstrap by domain and over all."""

    runs: Positional[tuple[Path, ...]]
    """run folders"""
    arm: str = "sage"
    """what is compared"""
    control: str = "mcss"
    """with what"""
    out: Path | None = None
    """also write it there: NAME.json with everything, and NAME.md with the tables"""

    def run(self) -> None:
        from sageplan.report.compare_table import markdown
        from sageplan.runs.compare import compare
        from sageplan.runs.folder import Run as RunFolder

        found = compare([RunFolder.open(path) for path in self.runs], self.arm, self.control)
        print_comparison(found)
        if self.out is not None:
            claim_folder(self.out.resolve().parent, needed_bytes=0)
            write_json(self.out.with_suffix(".json"), found)
            write_text(self.out.with_suffix(".md"), markdown(found))
            out.print(f"wrote {self.out.with_suffix('.json')} and {self.out.with_suffix('.md')}")


def finish(run: RunFolder) -> None:
    """Summary, report and table of what a run has by now."""
    from sageplan.report.run_page import run_page
    from sageplan.runs.summary import summarise

    summary = summarise(run)
    write_json(run.path / "summary.json", summary)
    write_text(run.path / "report.html", run_page(run, summary, run.diagnosis()))
    print_summary(summary)
    out.print(f"\n{run.path / 'report.html'}: pictures, energies, scores, times, settings", soft_wrap=True)


def print_summary(summary: dict[str, Any]) -> None:
    data = summary["data"]
    title = f"{summary['task']}, preset {summary['preset']}, training seed {summary['seed']}, data: {data['origin']}"
    table = Table(title=title, title_justify="left")
    for heading in ("arm", "episodes", *(m.replace("_", " ") for m in summary["metrics"]), "Δ to mcss, paired (95 %)"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for name, arm in summary["arms"].items():
        gap = (summary["differences"].get(name) or {}).get(summary["metrics"][0])
        table.add_row(
            name,
            str(arm["episodes"]),
            *(text.mean(arm[m]) for m in summary["metrics"]),
            text.gap(gap and gap["paired"]),
        )
    out.print(table)


def print_comparison(found: dict[str, Any]) -> None:
    table = Table(title=f"{found['arm']} against {found['control']}", title_justify="left")
    for heading in ("run", "n", found["control"], found["arm"], "Δ paired (95 %)", "p, Welch"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for row in found["runs"]:
        p = "–" if row["welch"] is None else f"{row['welch']['p_greater']:.2g}"
        scores = text.mean(row["baseline"]), text.mean(row["treatment"]), text.gap(row["paired"])
        table.add_row(row["run"], str(row["episodes"]), *scores, p)
    out.print(table)
    table = Table(title="Mean difference over runs, stratified bootstrap", title_justify="left")
    for heading in ("domain", "runs", "paired Δ (95 %)", "p", "unpaired Δ (95 %)", "p"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for domain, paired in found["paired"].items():
        unpaired = found["unpaired"][domain]
        table.add_row(domain, str(paired["tasks"]), text.gap(paired, 2), f"{paired['p']:.2g}",
                      text.gap(unpaired, 2), f"{unpaired['p']:.2g}")  # fmt: skip
    out.print(table)
    for name, value in found["interquartile_mean"].items():
        out.print(f"interquartile mean of {name}: {value['estimate']:.1f} [{value['low']:.1f}, {value['high']:.1f}]")
    for group in found["training_seeds"]:
        seeds = group["treatment"]["training_seeds"]
        sides = {found["control"]: group["baseline"], found["arm"]: group["treatment"]}
        values = [f"{name} {text.mean(side)}" for name, side in sides.items()]
        out.print(
            f"{group['task']} {group['preset']}, over {seeds} training seeds, errors between them: {', '.join(values)}"
        )


def _arms(listed: str) -> list[str]:
    return [part for part in listed.split(",") if part.strip()]


def heading(line: str) -> None:
    err.print(f"[bold]▸ {line}[/]")


def chosen_config(arguments: Sequence[str]) -> RunConfig:
    """Of the task and the preset that the arguments name: they must be known before the parser is built."""
    name = "cpu"
    task = next(iter(catalogue.TASKS.values()))
    for before, word in itertools.pairwise(["", *arguments]):
        value = word if before == "--preset" else word.removeprefix("--preset=")
        if value in NAMES and (before == "--preset" or word != value):
            name = value
        if before in ("--out", "--data"):  # which may be called like another task
            continue
        with contextlib.suppress(ConfigError):
            task = catalogue.get(word)
    return preset(name, task)


def commands(arguments: Sequence[str]) -> Any:
    """The commands, for the union of all."""
    run = Run(task=tyro.MISSING, config=chosen_config(arguments))
    return (
        Annotated[Run, subcommand("run", default=run)]
        | Annotated[Evaluate, subcommand("evaluate")]
        | Annotated[Compare, subcommand("compare")]
    )
