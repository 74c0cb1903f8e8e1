"""What is known of every finished episode: JSON lines that survive being killed at any byte."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from sageplan.errors import ConfigError, EvaluationError, FormatError
from sageplan.training.checkpoint import lock

FORMAT, VERSION = "sageplan-episodes", 1


class Cell(NamedTuple):
    """What identifies an episode; each is recorded once."""

    task: str
    arm: str
    seed: int


@dataclass(frozen=True)
class Episode:
    """One finished episode. None is what its task, its arm or its evaluation has none of.

    seed             of the environment, and of the sampler's streams
    episode_return   undiscounted sum of rewards: D4RL's own
    score            normalised: 0 like a random policy, 100 like D4RL's reference
    terminated       ended by what happened in it, not by the time limit
    success          touched the goal, or completed all tasks; runners have no such thing
    occupancy        Maze2D: steps at the goal, the same as episode_return
    sticky_return    Maze2D: steps since the goal was first touched, which DV and SAGE report
    sticky_score     and its normalised score
    decisions        plans that were chosen
    filter_changed   decisions in which dropping candidates changed the winner
    penalty_changed  decisions in which the penalty changed the winner among the kept
    gate_changed     decisions in which the winner is not the candidate of the highest value
    prefix_energy    of the chosen plans' first K steps, K as in the run's settings, mean over decisions
    executed_energy  of the steps that were executed as planned, mean over decisions
    gap              |planned − reached| one step after a decision in standard deviations, mean over dimensions
    settings         of the selector
    sampler_seed     what all streams of the run derive from
    """

    task: str
    arm: str
    seed: int
    episode_return: float
    score: float
    length: int
    terminated: bool
    success: bool | None
    occupancy: float | None
    sticky_return: float | None
    sticky_score: float | None
    decisions: int
    filter_changed: int
    penalty_changed: int
    gate_changed: int
    prefix_energy: float | None
    executed_energy: float | None
    gap: float | None
    settings: dict[str, Any]
    sampler_seed: int

    @property
    def cell(self) -> Cell:
        return Cell(self.task, self.arm, self.seed)


class Records:
    """A file of finished episodes that only grows; opening it claims it and drops a line that was cut off.

    identity  what all its episodes have in common; a file with another identity is refused
    """

    def __init__(self, path: str | Path, identity: dict[str, Any]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._identity: dict[str, Any] = json.loads(json.dumps(identity))  # as it reads back: tuples are lists
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from None
        try:
            lock(self._file, f"{self.path} is being written by another evaluation; wait, or choose another file")
            self.episodes = self._recover()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, episodes: Iterable[Episode]) -> None:
        """Returns when they are on the disk; a full disk takes none of them and leaves what was there."""
        fresh = list(episodes)
        for episode in fresh:
            if episode.cell in self.episodes:
                raise ConfigError(f"{self.path} already holds {_say(episode.cell)}")
        self._write("".join(_line(dataclasses.asdict(episode)) for episode in fresh))
        self.episodes |= {episode.cell: episode for episode in fresh}

    def close(self) -> None:
        os.close(self._file)

    def _recover(self) -> dict[Cell, Episode]:
        content = self.path.read_bytes()
        header = _line({"format": FORMAT, "version": VERSION, "identity": self._identity})
        whole = content.rfind(b"\n") + 1
        if not whole:
            if not header.encode().startswith(content):
                raise FormatError(f"{self.path} holds no records of episodes")
            os.ftruncate(self._file, 0)
            self._write(header)
            return {}
        found, episodes = _parse(content[:whole], self.path)
        if found != self._identity:
            keys = sorted(key for key in found.keys() | self._identity if found.get(key) != self._identity.get(key))
            was = ", ".join(f"{key} {found.get(key)!r} instead of {self._identity.get(key)!r}" for key in keys)
            raise ConfigError(f"{self.path} was made with other settings ({was}); choose another file")
        os.ftruncate(self._file, whole)
        return episodes

    def _write(self, text: str) -> None:
        size = os.fstat(self._file).st_size
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)
            raise EvaluationError(
                f"cannot write {self.path} ({error.strerror}); the episodes in it are kept, and the same "
                "command goes on from there"
            ) from None


def read_records(path: str | Path) -> list[Episode]:
    """All whole records of a file, also of one that is being written."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror}); expected records of episodes") from None
    whole = content.rfind(b"\n") + 1
    return list(_parse(content[:whole], path)[1].values()) if whole else []


def _parse(content: bytes, path: Path) -> tuple[dict[str, Any], dict[Cell, Episode]]:
    """The identity and the episodes of whole lines."""
    header, *lines = content.splitlines()
    identity = _header(header, path)
    episodes: dict[Cell, Episode] = {}
    for number, line in enumerate(lines, 2):
        try:
            episode = Episode(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise FormatError(f"{path}, line {number} is no record of an episode ({error})") from None
        if episodes.setdefault(episode.cell, episode) != episode:
            raise FormatError(f"{path}, line {number}: {_say(episode.cell)} is recorded twice, differently")
    return identity, episodes


def _header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
        form, version, identity = header["format"], header["version"], dict(header["identity"])
    except (ValueError, TypeError, KeyError):
        raise FormatError(f"{path} holds no records of episodes") from None
    if form != FORMAT:
        raise FormatError(f"{path} holds no records of episodes: its format is {form!r}, not {FORMAT!r}")
    if version != VERSION:
        raise FormatError(f"{path} has records of version {version}; this sageplan reads version {VERSION}")
    return identity


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def _say(cell: Cell) -> str:
    return f"episode {cell.seed} of {cell.arm} on {cell.task}"
