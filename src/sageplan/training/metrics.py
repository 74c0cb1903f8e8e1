"""Where metrics go: JSON lines always; TensorBoard, Weights & Biases and trackio when asked."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from sageplan.errors import MissingExtraError

Logger = Literal["tensorboard", "wandb", "trackio"]


class Sink(Protocol):
    """Takes scalar metrics by step."""

    def write(self, step: int, metrics: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One object per line. Opening it drops what a killed run wrote after its last checkpoint."""

    def __init__(self, path: Path, last_step: int) -> None:
        kept = [line for line in _complete_lines(path) if json.loads(line)["step"] <= last_step]
        path.write_text("".join(kept))
        self._file = path.open("a", buffering=1)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class TensorBoard:
    def __init__(self, folder: Path, name: str, last_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboard", "tensorboard", "logging to TensorBoard") from None
        self._name = name
        self._writer: Any = SummaryWriter(str(folder / "tensorboard" / name), purge_step=last_step + 1)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(f"{self._name}/{key}", value, step)

    def close(self) -> None:
        self._writer.close()


class Tracker:
    """Weights & Biases, or trackio, which speaks the same language."""

    def __init__(self, package: Literal["wandb", "trackio"], folder: Path, name: str) -> None:
        import importlib

        try:
            module = importlib.import_module(package)
        except ImportError:
            raise MissingExtraError(package, package, f"logging to {package}") from None
        where = {"dir": str(folder)} if package == "wandb" else {}
        self._name = name
        self._run: Any = module.init(project="sageplan", name=f"{folder.name}-{name}", **where)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log({f"{self._name}/{key}": value for key, value in metrics.items()}, step=step)

    def close(self) -> None:
        self._run.finish()


def open_sinks(loggers: Sequence[Logger], folder: Path, name: str, last_step: int) -> list[Sink]:
    """`folder` is the learner's own; the trackers write beside it, in the run folder."""
    run = folder.parent
    asked = [TensorBoard(run, name, last_step) if log == "tensorboard" else Tracker(log, run, name) for log in loggers]
    return [JsonLines(folder / "metrics.jsonl", last_step), *asked]


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Every complete line of a metrics file, oldest first."""
    return [json.loads(line) for line in _complete_lines(path)]


def _complete_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n")]
