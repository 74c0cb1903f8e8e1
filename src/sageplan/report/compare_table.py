"""A comparison of runs as Markdown, to be kept beside its JSON. Published numbers stand in a table of their own."""

from __future__ import annotations

from typing import Any

from sageplan.experiments.published import PUBLISHED
from sageplan.report import text


def markdown(found: dict[str, Any]) -> str:
    """Everything that `compare` found."""
    arm, control, rows = found["arm"], found["control"], found["runs"]
    lines = [
        f"# {arm} against {control}",
        "",
        "Mean ± standard error over episodes, of one training per row; the paired difference is over the same episode",
        "seeds, starts and candidates. Intervals are of 95 %.",
        "",
    ]
    lines += _table(
        ("run", "metric", "episodes", control, arm, "Δ, paired", "Δ, Welch", "p, Welch, one-sided"),
        [
            (row["run"], row["metric"].replace("_", " "), row["episodes"], text.mean(row["baseline"]),
             text.mean(row["treatment"]), text.gap(row["paired"]), text.gap(row["welch"]),
             f"{row['welch']['p_greater']:.2g}" if row["welch"] else "–")
            for row in rows
        ],
    )  # fmt: skip
    lines += ["", "Mean difference over runs, every run weighing the same, stratified bootstrap:", ""]
    lines += _table(
        ("domain", "runs", "Δ, paired", "p, two-sided", "Δ, unpaired", "p, two-sided"),
        [
            (domain, paired["tasks"], text.gap(paired, 2), f"{paired['p']:.2g}",
             text.gap(found["unpaired"][domain], 2), f"{found['unpaired'][domain]['p']:.2g}")
            for domain, paired in found["paired"].items()
        ],
    )  # fmt: skip
    means = (f"{name} {v['estimate']:.1f} [{v['low']:.1f}, {v['high']:.1f}]"
             for name, v in found["interquartile_mean"].items())  # fmt: skip
    lines += ["", f"Interquartile mean over all: {', '.join(means)}."]
    lines += [
        f"Over {group['treatment']['training_seeds']} training seeds of {group['task']} {group['preset']}: "
        f"{control} {text.mean(group['baseline'])}, {arm} {text.mean(group['treatment'])}, errors between trainings."
        for group in found["training_seeds"]
    ]
    lines += _walls(rows)
    lines += ["", "## How they were made", ""]
    lines += _table(
        ("command", "data", "replans every", "training, s", "episodes, s", "plannings", "shared"),
        [
            (f"`{row['command']}`", f"{row['data']['rows']:,} rows, {row['data']['origin']}",
             row["rollout"]["replan_every"], f"{sum(row['training_seconds'].values()):.0f}", *_effort(row["effort"]))
            for row in rows
        ],
    )  # fmt: skip
    lines += [
        "",
        "Training: the seconds of all learners. Shared: decisions that needed no planning of their own, because arms",
        "were in the same state.",
        "",
        "## What the paper reports",
        "",
        "On D4RL's official data, 500 episodes, other training lengths: not to be compared number by number.",
        "",
    ]
    known = [(row["task"], PUBLISHED[row["task"]]) for row in rows if row["task"] in PUBLISHED]
    lines += _table(
        ("task", "DV", "SAGE"),
        [(task, f"{p.dv} ± {p.dv_se}", f"{p.sage} ± {p.sage_se}") for task, p in dict(known).items()],
    )
    return "\n".join(lines) + "\n"


def _walls(rows: list[dict[str, Any]]) -> list[str]:
    tested = [row for row in rows if row["stress"]]
    if not tested:
        return []
    lines = [
        "",
        "## Stress test",
        "",
        "Share of plans, and of each rule's winners, with a state in a wall in the prefix / in the whole plan.",
        "",
    ]
    rules = list(dict.fromkeys(name for row in tested for name in row["stress"]["winners"]))
    return lines + _table(
        ("task", "starts × candidates", "prefix / steps", "all plans", *rules),
        [
            (stress["maze"], f"{stress['starts']} × {stress['candidates']}", f"{stress['prefix']} / {stress['steps']}",
             _shares(stress["plans"]), *(_winners(stress["winners"].get(rule)) for rule in rules))
            for stress in (row["stress"] for row in tested)
        ],
    )  # fmt: skip


def _winners(shares: dict[str, dict[str, float]] | None) -> str:
    return _shares({part: share["estimate"] for part, share in shares.items()}) if shares else "–"


def _table(headings: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def _effort(effort: dict[str, Any] | None) -> tuple[str, str, str]:
    if effort is None:
        return "–", "–", "–"
    seconds = f"{effort['wall']:.0f} ({effort['threads']} threads)"
    return seconds, f"{effort['planned']:,}", f"{1 - effort['planned'] / effort['decisions']:.0%}"


def _shares(shares: dict[str, float]) -> str:
    return f"{shares['prefix']:.1%} / {shares['whole']:.0%}"
