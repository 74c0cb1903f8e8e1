"""A run folder: `run.json` says what it is, and every other part is there whole or not at all.

run.json                  task, preset, seed, data and all settings; the first thing written
gate.run/, gate/          the gate while it is fitted, and when it is done
planner.run/, planner/    the same of the planner
diagnosis.json            energies of tampered recordings; in Maze2D also the stress test
episodes.jsonl            finished episodes
effort.json               what the evaluations cost, an entry per session
summary.json, report.html
"""

from __future__ import annotations

import json
import platform
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sageplan._version import __version__
from sageplan.errors import ConfigError, FormatError, SageplanError
from sageplan.evaluation.records import Episode, read_records
from sageplan.gate.gate import Gate
from sageplan.planners.veteran import Veteran
from sageplan.runs.config import RunConfig
from sageplan.runs.config import preset as settings_of
from sageplan.tasks import catalogue
from sageplan.tasks.catalogue import Task
from sageplan.training.checkpoint import claim_folder, read_json, write_json

FORMAT, VERSION = "sageplan-run", 1
RECORDS = "episodes.jsonl"


@dataclass(frozen=True)
class Run:
    """One task, trained and evaluated under one configuration.

    data      name, fingerprint, rows, episodes and origin of what was learnt from
    software  versions that it was begun with
    """

    path: Path
    task: Task
    preset: str
    seed: int
    data: dict[str, Any]
    config: RunConfig
    software: dict[str, str]

    @classmethod
    def create(
        cls, path: str | Path, task: Task, preset: str, seed: int, data: dict[str, Any], config: RunConfig
    ) -> Run:
        """A new folder, or the one that an interrupted run of the same settings left."""
        run = cls(Path(path), task, preset, seed, data, config, _software())
        file = run.path / "run.json"
        if not file.exists():
            if run.path.is_dir() and any(not part.name.startswith(".") for part in run.path.iterdir()):
                raise ConfigError(f"{run.path} is not empty and holds no run; choose another folder with --out")
            claim_folder(run.path, needed_bytes=0)
            write_json(file, run._record())
            return run
        earlier = cls.open(run.path)
        was, now = earlier._record(), run._record()
        different = [key for key in ("task", "preset", "seed", "data", "config") if was[key] != now[key]]
        if different:
            raise ConfigError(
                f"{run.path} holds a run with another {' and '.join(different)}; choose another folder with --out, "
                "or delete it to start afresh"
            )
        return earlier

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """What `create` wrote. Foreign, damaged and newer folders are refused."""
        file = Path(path) / "run.json"
        record = read_json(file, "a run folder, as `sageplan run` makes them")
        if record.get("format") != FORMAT:
            raise FormatError(f"{file} is not of a run: its format is {record.get('format')!r}, not {FORMAT!r}")
        if record.get("version") != VERSION:
            raise FormatError(
                f"{file} was written by sageplan {record.get('sageplan')} as version {record.get('version')}; this is "
                f"{__version__}, which reads version {VERSION}. Run the task again, or use that sageplan"
            )
        try:
            task, config = catalogue.get(record["task"]), RunConfig.from_json(record["config"])
            seed, data, software = int(record["seed"]), dict(record["data"]), dict(record["software"])
            return cls(Path(path), task, record["preset"], seed, data, config, software)
        except (SageplanError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{file} is damaged: {type(error).__name__} {error}") from None

    @property
    def name(self) -> str:
        """What tells it from other runs."""
        return f"{self.task.name} {self.preset} {self.seed}"

    @property
    def command(self) -> str:
        """What trains it again, given the same data: the preset, and every setting in which it differs from that."""
        words = ["sageplan", "run", self.task.name, "--preset", self.preset, "--seed", str(self.seed)]
        usual, own = (
            _flat(_as_read(config.to_json())) for config in (settings_of(self.preset, self.task), self.config)
        )
        for name, value in own.items():
            if name not in usual or usual[name] != value:
                words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
        return shlex.join(words)

    @property
    def records(self) -> Path:
        return self.path / RECORDS

    def gate(self, device: str | torch.device = "cpu") -> Gate:
        return Gate.load(self._part("gate", "gate.json"), device)

    def planner(self, device: str | torch.device = "cpu") -> Veteran:
        return Veteran.load(self._part("planner", "planner.json"), device)

    def episodes(self) -> list[Episode]:
        """All that have finished."""
        if not self.records.exists():
            raise FormatError(f"{self.path} holds no episodes yet; `sageplan evaluate {self.path}` runs some")
        return read_records(self.records)

    def diagnosis(self) -> dict[str, Any] | None:
        """What `diagnose_run` found, if it has run."""
        path = self.path / "diagnosis.json"
        return read_json(path, "the diagnosis of a run") if path.exists() else None

    def _part(self, name: str, file: str) -> Path:
        if not (self.path / name / file).exists():
            raise FormatError(
                f"{self.path} has no finished {name}; `{self.command} --out {self.path}` goes on with its training"
            )
        return self.path / name

    def _record(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "sageplan": __version__,
            "software": self.software,
            "task": self.task.name,
            "preset": self.preset,
            "seed": self.seed,
            "data": self.data,
            "config": _as_read(self.config.to_json()),
        }


def _as_read(record: dict[str, Any]) -> dict[str, Any]:
    """As the file will give it back: tuples are lists."""
    read: dict[str, Any] = json.loads(json.dumps(record))
    return read


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by the names that they have as options."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _software() -> dict[str, str]:
    return {
        "sageplan": __version__,
        "torch": str(torch.__version__),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
