"""`sageplan data`: which data there are, and getting, building and checking them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg, subcommand

if TYPE_CHECKING:
    from sageplan.data.examine import Report, Spread

out = Console(highlight=False)


@dataclass
class List:
    """List D4RL's 18 tasks, their data files and which of these are in the cache."""

    def run(self) -> None:
        from sageplan.data.cache import VARIABLE, cache_folder, find, size_text
        from sageplan.tasks.catalogue import TASKS

        # lines rather than a table, whose columns a narrow terminal would cut; what is longest stands last
        line = "{:<28} {:>5} {:>6} {:>5} {:>11}  {}"
        print(line.format("task", "state", "action", "steps", "here", "official file"))
        for task in TASKS.values():
            path = find(task)
            here = "no" if path is None else size_text(path.stat().st_size)
            print(line.format(task.name, task.state_dim, task.action_dim, task.step_limit, here, task.file_name))
        print(f"here: in the cache, {cache_folder()} (set {VARIABLE} to have it elsewhere)")


@dataclass
class Get:
    """Download a task's official file into the cache; interrupt it at any time, the same command goes on.

    Minari is not asked: its data sets of the same names were recorded anew, in other environments.
    """

    task: Positional[str]
    """for example hopper-medium-v2"""
    out: Path | None = None
    """folder in place of the cache"""
    mirror: Annotated[Sequence[str], arg(metavar="URL")] = ()
    """folders on the net that hold such files, in place of D4RL's own address and the copies known"""

    def run(self) -> None:
        from sageplan.data.examine import says_of_itself
        from sageplan.data.fetch import get, sha256
        from sageplan.tasks.catalogue import get as find_task

        task = find_task(self.task)
        try:
            path = get(task, self.out, mirrors=self.mirror or None)
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted; the same command goes on where this one was")
            raise
        print(path)
        if not task.sha256:
            said = f"a whole HDF5 file; the official SHA-256 is not known, this one has {sha256(path)}"
            if own := says_of_itself(path):
                said = f"not the official file, which had no such note: {own}"
            out.print(escape(said), soft_wrap=True)


@dataclass
class Build:
    """Make a task's data here, at the official size: Maze2D only. The options are explained in D4RL's terms."""

    task: Positional[str]
    """maze2d-umaze-v1, maze2d-medium-v1 or maze2d-large-v1"""
    out: Path | None = None
    """file; default: TASK.hdf5 in the cache"""
    rows: int | None = None
    """default: as many as the official file has"""
    seed: int = 0
    noise: float = 0.5
    """standard deviation of the noise added to actions"""
    runs: int = 64
    """collected side by side and laid end to end; 1: one continuous run, as in D4RL, which takes longer"""
    stale_rows: bool = False
    """quirk of D4RL's script: the row after a change of goal repeats the observation before it"""
    ends_as_terminals: bool = False
    """quirk of D4RL's script: a change of goal is a terminal, and there are no timeouts"""
    rewards_of_state: bool = True
    """quirk of D4RL's files: a row's reward is that of its own observation, not of the next state"""

    def run(self) -> None:
        from sageplan.data.build import build

        path = build(
            self.task,
            self.out,
            rows=self.rows,
            seed=self.seed,
            noise=self.noise,
            runs=self.runs,
            stale_rows=self.stale_rows,
            ends_as_terminals=self.ends_as_terminals,
            rewards_of_state=self.rewards_of_state,
        )
        print(path)


@dataclass
class Check:
    """Say what is in a data file, how it differs from D4RL's, and whether the task's physics agree with it."""

    file: Positional[str]
    """D4RL .hdf5 file, .npz archive, folder of a Minari data set, or minari:ID"""
    task: str | None = None
    """whose data these are; default: as the file's name says"""
    json: bool = False
    """print the findings for machines"""

    def run(self) -> None:
        from sageplan.data import check

        report = check(self.file, self.task)
        if self.json:
            print(json.dumps(report.to_json(), indent=2))
        else:
            print_report(report)


Data = (
    Annotated[List, subcommand("list")]
    | Annotated[Get, subcommand("get")]
    | Annotated[Build, subcommand("build")]
    | Annotated[Check, subcommand("check")]
)


def print_report(report: Report) -> None:
    table = Table(title=f"{report.file} ({report.task or 'no task of D4RL'})", title_justify="left", show_header=False)
    for name, text in _rows(report):
        table.add_row(name, escape(text))
    out.print(table)
    for note in report.notes:
        out.print(f"note: {escape(note)}", soft_wrap=True)
    if report.task is not None and not report.differences:
        out.print("nothing differs from what is known of the official file")
    for difference in report.differences:
        out.print(f"[bold yellow]differs:[/] {escape(difference)}", soft_wrap=True)


def _rows(report: Report) -> list[tuple[str, str]]:
    flags = report.boundaries
    rows = [
        ("rows", f"{report.rows:,} in {report.episodes:,} episodes"),
        ("episode length", _spread(report.lengths, "{:,.0f}")),
        ("return", _spread(report.returns, "{:,.2f}")),
        ("score", _spread(report.scores, "{:,.1f}")),
        (
            "arrays",
            "\n".join(f"{name} {tuple(shape)}" for name, shape in report.shapes.items() if "metadata" not in name),
        ),
        ("NaN or infinite", _listed({name: f"{count:,} values" for name, count in report.nan.items()})),
        ("never changes", _listed({name: f"column {_ranges(found)}" for name, found in report.constant.items()})),
        ("episodes end by", _ends(report)),
        (
            "position jumps",
            f"{flags.jumps_across:,} of {flags.across:,} boundaries, {flags.jumps_inside:,} inside episodes",
        ),
    ]
    if flags.stale_rows is not None:
        rows.append(("stale rows", f"{flags.stale_rows:,} repeat the observation before a change of goal"))
    if found := report.replay:
        reward = "not known" if found.reward_median is None else f"{found.reward_median:.1e}"
        errors = f"median {found.median:.1e}, 95 % {found.p95:.1e}; reward median {reward}"
        rows.append(("one-step replay", f"{errors} ({found.rows:,} rows)"))
    return rows


def _ends(report: Report) -> str:
    flags = report.boundaries
    parts = [
        f"{'no array of' if count is None else f'{count:,}'} {name}"
        for name, count in (("terminals", flags.terminals), ("timeouts", flags.timeouts))
    ]
    if flags.both:
        parts.append(f"{flags.both:,} both")
    if flags.terminals_inside:
        parts.append(f"{flags.terminals_inside:,} terminals inside episodes")
    parts.append("the last row ends one" if flags.last_row_flagged else "the last episode is unfinished")
    return ", ".join(parts)


def _spread(values: Spread | None, form: str) -> str:
    if values is None:
        return "not known"
    mean, std, low, median, high = (
        form.format(x) for x in (values.mean, values.std, values.min, values.median, values.max)
    )
    return f"{mean} ± {std}, from {low} to {high}, median {median}"


def _listed(found: dict[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in found.items()) or "none"


def _ranges(columns: list[int]) -> str:
    """1, 4-6"""
    runs: list[list[int]] = []
    for column in columns:
        if runs and runs[-1][-1] == column - 1:
            runs[-1].append(column)
        else:
            runs.append([column])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def command() -> Any:
    """The nested commands, for the union of all."""
    return Annotated[Data, subcommand("data", description="D4RL's data: list, get, build and check files.")]
