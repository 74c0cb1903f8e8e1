"""What a run's evaluations cost, an entry for every session that ran to its end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sageplan.training.checkpoint import read_json, write_json

EFFORT = "effort.json"


def add_effort(path: Path, session: dict[str, Any]) -> None:
    """Replaced whole, so that a kill leaves the sessions before."""
    write_json(path, {"sessions": [*_sessions(path), session]})


def total_effort(path: Path) -> dict[str, Any] | None:
    """Sums over all sessions; None where there is none."""
    sessions = _sessions(path)
    if not sessions:
        return None
    seconds: Counter[str] = Counter()
    for session in sessions:
        seconds.update(session["seconds"])
    return {
        **{name: sum(session[name] for session in sessions) for name in ("wall", "decisions", "planned", "steps")},
        "seconds": dict(seconds),
        "threads": sessions[-1]["threads"],
        "device": sessions[-1]["device"],
    }


def _sessions(path: Path) -> list[dict[str, Any]]:
    return list(read_json(path, "what a run cost")["sessions"]) if path.exists() else []
