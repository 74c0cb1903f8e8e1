"""The report of one run: pictures first, then energies, scores, what the gate did, times and settings."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import numpy as np

from sageplan.report import svg, text
from sageplan.report.page import details, figure, page, row, section, table
from sageplan.runs.folder import Run
from sageplan.runs.summary import CONTROL
from sageplan.tasks.maze2d import Maze

_MCSS, _SAGE, _OTHER = "#D55E00", "#0072B2", "#009E73"
_STAGES = {"propose": ("propose plans", "#56B4E9"), "value": ("value them", "#009E73"),
           "actions": ("inverse dynamics", "#E69F00"), "gate": ("energies", "#0072B2"),
           "select": ("select", "#CC79A7"), "environment": ("environment", "#999999"),
           "simulate": ("simulate (oracle)", "#D55E00")}  # fmt: skip
_KINDS = {
    "shuffle": "actions shuffled in time",
    "action-noise": "noise on the actions",
    "state-noise": "noise on the states",
}


def run_page(run: Run, summary: dict[str, Any], diagnosis: dict[str, Any] | None) -> str:
    """HTML of everything that `summarise` and `diagnose_run` found; without a diagnosis, of the episodes alone."""
    sections = []
    if diagnosis and diagnosis["stress"]:
        sections.append(_pictures(diagnosis["stress"]))
    if diagnosis:
        sections.append(_energies(diagnosis["localisation"]))
    sections += [_scores(run, summary), _gate(summary)]
    if summary["effort"]:
        sections.append(_times(summary))
    sections.append(_provenance(run, summary))
    return page(f"{run.task.name}: plans with and without the gate", _lead(summary), sections)


def _lead(summary: dict[str, Any]) -> str:
    found = (summary["differences"].get("sage") or {}).get(summary["metrics"][0])
    if not found:
        return escape(", ".join(summary["arms"]) or "No episodes yet") + "."
    gap = found["paired"]
    said = (
        f"Score {found['treatment']['mean']:.1f} with SAGE and {found['control']['mean']:.1f} without, over "
        f"{found['episodes']} paired episodes. "
        f"The difference is {gap['delta']:+.1f}, 95 % interval {gap['low']:+.1f} to {gap['high']:+.1f}: "
    )
    if gap["low"] > 0:
        return said + "the gate helps here."
    if gap["high"] < 0:
        return said + "the gate does harm here."
    return said + "these episodes do not tell whether the gate helps."


def _pictures(stress: dict[str, Any]) -> str:
    maze, example = Maze.named(stress["maze"]), stress["example"]
    xy, energies = np.array(example["paths"]), np.array(example["energies"])
    limit = float(np.quantile(energies, 0.98)) or 1.0
    order = energies.mean(1).argsort()  # strange plans on top
    everything = [svg.Path(xy[i], energies[i]) for i in order]
    (without, first), (with_gate, second) = list(example["winners"].items())[:2]
    reach = float(np.quantile(np.abs(xy - xy[0, 0]).max((1, 2)), 0.9)) + 0.6
    view = svg.View(xy[0, 0], max(1.5, reach))
    mazes = [
        figure(
            svg.maze_plans(maze, everything, limit, view, "all plans"),
            f"<b>{len(xy)} of {stress['candidates']} plans</b>, each step coloured by its energy",
        )
    ]
    for name, index in ((without, first), (with_gate, second)):
        crosses = "enters a wall" if maze.crosses_wall(xy[index]) else "stays clear of walls"
        mean = energies[index, : stress["prefix"]].mean()
        mazes.append(
            figure(
                svg.maze_plans(maze, [svg.Path(xy[index], energies[index], 4.0)], limit, view, name),
                f"<b>{name}</b>: value {example['values'][index]:.3f}, energy {mean:.4f} over the first "
                f"{stress['prefix']} steps; {crosses}",
            )
        )
    rows = [["all plans", _percent(stress["plans"]["prefix"]), _percent(stress["plans"]["whole"])]]
    rows += [
        [name, text.share(shares["prefix"]), text.share(shares["whole"])] for name, shares in stress["winners"].items()
    ]
    return section(
        "Which plans can happen?",
        "<p class='soft'>One decision, the ball at the dot, the goal green where it is in view: the one of "
        f"{stress['starts']} in which the gate saves most energy. Grey is wall.</p>",
        row(*mazes),
        svg.heat_key(limit, "energy of a step"),
        f"<p>Stress test: {stress['starts']} starts with {stress['candidates']} plans each. Share of the chosen plans "
        f"with a state in a wall within the first {stress['prefix']} steps, or anywhere in their {stress['steps']} "
        "(95 % interval):</p>",
        table(("chosen by", f"first {stress['prefix']} steps", "whole plan"), rows),
    )


def _energies(results: list[dict[str, Any]]) -> str:
    figures = []
    for result in results:
        series = [svg.Series(name, colour, *result[key]) for name, key, colour in
                  (("as recorded", "clean", _SAGE), ("corrupted", "corrupted", _MCSS))]  # fmt: skip
        drawing = svg.curves(result["offsets"], series, (0, result["width"] - 1), result["kind"])
        figures.append(figure(drawing, f"<b>{_KINDS[result['kind']]}</b>: AUROC of the corrupted steps "
                                       f"{result['auroc']:.3f}"))  # fmt: skip
    return section(
        "Does the energy see what is wrong?",
        f"<p>{results[0]['segments']} held-out recordings, tampered with in the shaded steps. Energy as recorded "
        "(blue) and corrupted (orange): median and middle half.</p>",
        row(*figures),
    )


def _scores(run: Run, summary: dict[str, Any]) -> str:
    arms, metric = summary["arms"], summary["metrics"][0]
    colours = {CONTROL: _MCSS, "sage": _SAGE}
    estimates = [
        svg.Estimate(name, arm[metric]["mean"], arm[metric]["mean"] - 1.96 * arm[metric]["se"],
                     arm[metric]["mean"] + 1.96 * arm[metric]["se"], colours.get(name, _OTHER))
        for name, arm in arms.items() if arm["episodes"] > 1
    ]  # fmt: skip
    gaps = [
        svg.Estimate(f"{name} − {CONTROL}", found[metric]["paired"]["delta"], found[metric]["paired"]["low"],
                     found[metric]["paired"]["high"], colours.get(name, _OTHER))
        for name, found in summary["differences"].items() if found[metric]
    ]  # fmt: skip
    drawings = []
    if estimates:
        drawings.append(figure(svg.intervals(estimates, f"{metric.replace('_', ' ')}, mean and 95 %", "scores"), ""))
    if gaps:
        caption = (
            "On the same episode seeds, starts and candidates: most of what differs from episode to episode cancels."
        )
        drawings.append(figure(svg.intervals(gaps, "paired difference, 95 %", "differences", zero=True), caption))
    headings = ["arm", "episodes", *(name.replace("_", " ") for name in summary["metrics"]), "success", "steps"]
    rows = [
        [name, str(arm["episodes"]), *(text.mean(arm[m]) for m in summary["metrics"]),
         text.share(arm["success"]) if arm["success"] else "–", f"{arm['length']:.0f}"]
        for name, arm in arms.items()
    ]  # fmt: skip
    differences = []
    for name, of in summary["differences"].items():
        for m in summary["metrics"]:
            if found := of[m]:
                sides = [(text.gap(found[kind]), f"{found[kind]['p_greater']:.2g}") for kind in ("paired", "welch")]
                differences.append([f"{name} − {CONTROL}", m.replace("_", " "), *sides[0], *sides[1]])
    heads = ("difference", "metric", "paired (95 %)", "p, one-sided", "Welch (95 %)", "p, one-sided")
    sticky = "<p class='soft'>Sticky score: the goal counts in every step once it has been touched, as DV and SAGE "
    sticky += "report it. Score: D4RL's own, the steps at the goal.</p>"
    note = "" if run.data["origin"] == "official layout" else (
        "<p class='soft'>The data are not D4RL's official file, so these scores do not stand beside published ones.</p>"
    )  # fmt: skip
    tables = [table(headings, rows), *([table(heads, differences)] if differences else [])]
    return section("Scores", row(*drawings), *tables, sticky if metric == "sticky_score" else "", note)


def _gate(summary: dict[str, Any]) -> str:
    rows = [
        [name, str(arm["decisions"]), _percent(arm["filter_changed"]), _percent(arm["penalty_changed"]),
         _percent(arm["gate_changed"]), _number(arm["prefix_energy"]), _number(arm["executed_energy"]),
         _number(arm["gap"])]
        for name, arm in summary["arms"].items()
    ]  # fmt: skip
    heads = ("arm", "decisions", "filter decided", "penalty decided", "not argmax J",
             "energy, prefix", "executed", "gap")  # fmt: skip
    return section(
        "What the gate did",
        table(heads, rows),
        "<p class='soft'>Decided: share of decisions in which it changed the winner. Energies are of the chosen plans, "
        "over the prefix and over the steps that were executed. Gap: how far the state one step after a decision is "
        "from the planned one, in standard deviations, mean over dimensions.</p>",
    )


def _times(summary: dict[str, Any]) -> str:
    effort = summary["effort"]
    planned = effort["planned"]
    parts = [(_STAGES[stage][0], 1000 * seconds / planned, _STAGES[stage][1])
             for stage, seconds in effort["seconds"].items() if stage in _STAGES]  # fmt: skip
    shared = 1 - planned / effort["decisions"]
    trained = "; ".join(
        f"{name.replace('_', ' ')} {spent:.0f} s" for name, spent in summary["training_seconds"].items()
    )
    return section(
        "Where the time went",
        figure(svg.stacked(parts, "ms", "milliseconds per planning"),
               f"Per planning of {summary['rollout']['candidates']} candidates, all arms and their records together, "
               f"on {effort['device']} with {effort['threads']} threads. {planned:,} plannings served "
               f"{effort['decisions']:,} decisions: arms in the same state share one ({shared:.0%})."),
        f"<p class='soft'>Training: {trained}. Episodes: {effort['wall']:.0f} s.</p>",
    )  # fmt: skip


def _provenance(run: Run, summary: dict[str, Any]) -> str:
    data = run.data
    trained = ", ".join(f"{name} {version}" for name, version in run.software.items())
    said = (
        f"<p><code>{escape(run.command)}</code></p>"
        f"<p class='soft'>Data: {escape(data['name'])}, {escape(data['origin'])}, {data['rows']:,} rows in "
        f"{data['episodes']:,} episodes, SHA-256 of the arrays {data['fingerprint'][:16]}. "
        f"Begun with {escape(trained)}. One training seed: what differs between trainings is not in these "
        "intervals.</p>"
    )
    return section("How it was made", said, details("All settings", json.dumps(run.config.to_json(), indent=2)))


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
