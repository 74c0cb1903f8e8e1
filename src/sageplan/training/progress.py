"""Progress in the terminal: bars with time left, or a line now and then where output is not a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_QUIET_SECONDS = 30.0


class Bars:
    """One bar per job, all visible at once. `enabled=False` makes every call free and silent."""

    def __init__(self, enabled: bool = True) -> None:
        self._console = Console(stderr=True)
        self._live = enabled and self._console.is_terminal
        self._lines = enabled and not self._live
        self._bars = Progress(
            TextColumn("{task.description:<18}"), BarColumn(bar_width=30), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=self._console, disable=not self._live,
        )  # fmt: skip

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def job(self, name: str, total: int, done: int = 0) -> Job:
        return Job(self, name, total, done)


class Job:
    """One counted piece of work, begun at `done` of `total`."""

    def __init__(self, bars: Bars, name: str, total: int, done: int) -> None:
        self._parent, self._name, self._total, self._first = bars, name, total, done
        self._began = self._spoke = time.monotonic()
        self._task = bars._bars.add_task(name, total=total, completed=done, note="")

    def update(self, done: int, note: str = "") -> None:
        """`done` counts from the very start of the work."""
        self._parent._bars.update(self._task, completed=done, note=note)
        now = time.monotonic()
        if self._parent._lines and (now - self._spoke > _QUIET_SECONDS or done == self._total):
            self._spoke = now
            left = (now - self._began) / max(1, done - self._first) * (self._total - done)
            line = f"{self._name}: {done:,} of {self._total:,} · {now - self._began:.0f} s · {left:.0f} s left {note}"
            self._parent._console.print(line.rstrip(), highlight=False)
