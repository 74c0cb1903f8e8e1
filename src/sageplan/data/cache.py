"""The folder that official and built data files are kept in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sageplan.tasks.catalogue import Task

VARIABLE = "SAGEPLAN_DATA"


def cache_folder() -> Path:
    """$SAGEPLAN_DATA, or `sageplan/data` in the platform's folder for caches. It need not exist."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "sageplan" / "data"


def find(task: Task, folder: Path | None = None) -> Path | None:
    """The task's file in the cache, under its official name or as TASK.hdf5."""
    folder = folder or cache_folder()
    for name in (task.file_name, f"{task.name}.hdf5"):
        if (folder / name).is_file():
            return folder / name
    return None


def size_text(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
