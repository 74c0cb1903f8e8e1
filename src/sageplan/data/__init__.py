"""Trajectories in: readers, windows, the normaliser, the Maze2D collector; data files got, built and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sageplan.data.examine import Report
    from sageplan.tasks.catalogue import Task

__all__ = ["check", "get"]


# Functions of their own, so that importing the package stays cheap.


def get(
    task: str | Task, folder: str | Path | None = None, *, mirrors: Sequence[str] | None = None, progress: bool = True
) -> Path:
    """The official data file of a task, downloaded into the cache unless it is there: see `sageplan.data.fetch`."""
    from sageplan.data import fetch

    return fetch.get(task, folder, mirrors=mirrors, progress=progress)


def check(path: str | Path, task: str | Task | None = None) -> Report:
    """What is in a data file, and whether it agrees with its task: see `sageplan.data.examine`."""
    from sageplan.data import examine

    return examine.check(path, task)
