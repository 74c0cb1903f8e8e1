"""Official data files from the net into the cache: resumed, verified, and there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from sageplan._version import __version__
from sageplan.data import official
from sageplan.data.cache import cache_folder, size_text
from sageplan.errors import ConfigError, DataError, FormatError
from sageplan.tasks import catalogue
from sageplan.tasks.catalogue import Task
from sageplan.training.progress import Bars

TRIES = 4  # per address, beginning with the first; counted anew when a try has got on
BACK_OFF_SECONDS = 1.0  # before the second try; doubled before each further one
STALL_SECONDS = 30.0  # without a byte
_BLOCK = 1 << 18
_GOT_ON = 1 << 20  # bytes that a try must add to count as such
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def get(
    task: str | Task, folder: str | Path | None = None, *, mirrors: Sequence[str] | None = None, progress: bool = True
) -> Path:
    """The official file of a task, downloaded unless it is there already.

    folder   default: the cache, $SAGEPLAN_DATA
    mirrors  addresses of folders that hold such files, in place of D4RL's own address and the copies known

    What was downloaded before an interruption is kept in a file that ends in `.part`, and the next call goes on from
    there. Size and SHA-256 are compared where they are known; of other files, that they are whole HDF5 files.
    """
    task = catalogue.get(task) if isinstance(task, str) else task
    folder = Path(folder).expanduser() if folder is not None else cache_folder()
    path = folder / task.file_name
    if path.exists():
        if fault := _fault(path, task):
            raise FormatError(f"{path} {fault}: delete or move it, then get it again")
        return path
    addresses = [official.address(pattern, task) for pattern in (mirrors or official.ADDRESSES)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(path), Bars(progress) as bars:
            # the process that held the lock before may have fetched it
            failures = None if path.exists() else _from_any(addresses, path, task, bars)
    except OSError as error:
        raise _unwritable(path, error) from None
    if failures is None:
        return path
    size = f" ({task.bytes:,} bytes)" if task.bytes else ""
    told = "; ".join(f"{', '.join(hosts)}: {reason}" for reason, hosts in failures.items())
    build = f", or make one like it: sageplan data build {task.name}" if task.domain == "maze2d" else ""
    raise DataError(
        f"{task.name} could not be downloaded ({told}); "
        f"get {task.url} on a machine that can, and put it here as {path}{size}{build}"
    )


def _from_any(addresses: list[str], path: Path, task: Task, bars: Bars) -> dict[str, list[str]] | None:
    """None when the file is there; otherwise what was wrong, and with which hosts."""
    failures: dict[str, list[str]] = {}
    for address in addresses:
        download = _Download(address, path, task)
        reason, failed = "not tried", 0
        while failed < TRIES:
            if failed:
                time.sleep(BACK_OFF_SECONDS * 2 ** (failed - 1))
            furthest = download.furthest
            try:
                download.run(bars)
                return None
            except _RefusedError as error:
                reason = str(error)
                break
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
                    raise _unwritable(path, error) from None
                reason = _reason(error)
                if _offline(error) and not download.furthest:
                    break
                failed = 1 if download.furthest >= furthest + _GOT_ON else failed + 1
        hosts = failures.setdefault(reason, [])
        if (host := urllib.parse.urlsplit(address).netloc or address) not in hosts:
            hosts.append(host)
    return failures


class _RefusedError(Exception):
    """This address will not give the file, however often it is asked."""


class _Download:
    """One address, and what has been received from it so far.

    `FILE.part` holds the bytes; `FILE.part.json` says whose they are, so that those of two files are never joined.
    Another address's part is left alone until this one answers.

    furthest  most bytes there have been at once
    """

    def __init__(self, address: str, path: Path, task: Task) -> None:
        self._address, self._path, self._task = address, path, task
        self._part = path.with_name(path.name + ".part")
        self._origin = path.with_name(path.name + ".part.json")
        self._own = False  # whether the part is of this address
        self.furthest = 0

    def run(self, bars: Bars) -> None:
        """Receive the rest, verify it and put it in place."""
        done, origin = self._received()
        if done and done == origin["total"]:  # interrupted while it was verified
            self._finish(resumed=True)
            return
        headers = {"User-Agent": f"sageplan/{__version__}", "Accept-Encoding": "identity"}
        if done:
            headers["Range"] = f"bytes={done}-"
            if origin["validator"]:
                headers["If-Range"] = origin["validator"]
        try:
            request = urllib.request.Request(self._address, headers=headers)
            answer = urllib.request.urlopen(request, timeout=STALL_SECONDS)
        except ValueError as error:
            raise _RefusedError(str(error)) from None
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # nothing beyond what is here: it is not a part of that file
                self._forget()
                raise ConnectionError("the server has less than was received before") from None
            if error.code < 500 and error.code not in (408, 425, 429):
                raise _RefusedError(f"HTTP {error.code} {error.reason}") from None
            raise
        with answer:
            total = self._total(answer, done)
            resumed = answer.status == 206
            if resumed and total != origin["total"]:
                self._forget()
                raise ConnectionError("the file has changed since the last try")
            done = done if resumed else 0
            if self._task.bytes and total and total != self._task.bytes:
                self._forget()
                raise _RefusedError(f"{total:,} bytes are offered, the official file has {self._task.bytes:,}")
            validator = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            validator = "" if validator.startswith("W/") else validator
            record = {"address": self._address, "total": total, "validator": validator}
            if not resumed:  # first, so that old bytes never stand under the new record
                self._part.unlink(missing_ok=True)
            self._origin.write_text(json.dumps(record))
            self._own = True
            self._receive(answer, done, total, bars)
        self._finish(resumed)

    def _received(self) -> tuple[int, dict[str, Any]]:
        """How many bytes there are to go on from, and whence."""
        try:
            origin = json.loads(self._origin.read_text())
            if origin["address"] == self._address and {"total", "validator"} <= origin.keys():
                done, self._own = self._part.stat().st_size, True
                self.furthest = max(self.furthest, done)
                return done, origin
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self._own = False
        return 0, {}

    def _total(self, answer: Any, done: int) -> int | None:
        """Length of the whole file, if the answer tells."""
        if answer.status == 206:
            unit, _, rest = (answer.headers.get("Content-Range") or "").partition(" ")
            span, _, total = rest.partition("/")
            if unit != "bytes" or span.partition("-")[0] != str(done):
                self._forget()
                raise ConnectionError("the server sent another part than was asked for")
            return int(total) if total.isdigit() else None
        length = answer.headers.get("Content-Length")
        return int(length) if length and length.isdigit() else None

    def _receive(self, answer: Any, done: int, total: int | None, bars: Bars) -> None:
        job = bars.job(self._task.name, max(1, total // 10**6), done // 10**6) if total else None
        with self._part.open("r+b" if done else "wb") as file:
            file.seek(done)
            file.truncate()
            while block := answer.read1(_BLOCK):
                file.write(block)
                done += len(block)
                self.furthest = max(self.furthest, done)
                if job is not None:
                    job.update(done // 10**6, "MB")
        if total is not None and done != total:
            raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")

    def _finish(self, resumed: bool) -> None:
        if fault := _fault(self._part, self._task):
            self._forget()
            # pieces may not have belonged together, so what came in several is asked for once more, whole
            raise (ConnectionError if resumed else _RefusedError)(f"what it sent {fault}")
        with self._part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(self._part, self._path)
        self._origin.unlink(missing_ok=True)

    def _forget(self) -> None:
        if self._own:
            self._part.unlink(missing_ok=True)
            self._origin.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fault(path: Path, task: Task) -> str:
    """What shows that this is not the task's file; empty if nothing does."""
    size = path.stat().st_size
    if task.bytes and size != task.bytes:
        return f"has {size:,} bytes, the official file {task.bytes:,}"
    if task.sha256 and (found := sha256(path)) != task.sha256:
        return f"has SHA-256 {found}, the official file {task.sha256}"
    if not task.sha256:
        try:
            with h5py.File(path, "r") as file:
                if "observations" not in file:
                    return "is an HDF5 file without observations"
        except OSError:
            return f"({size_text(size)}) is no whole HDF5 file"
    return ""


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be written ({error.strerror or error})")


def _offline(error: Exception) -> bool:
    """No way to the address at all, which waiting for seconds will not change."""
    cause = getattr(error, "reason", error)
    unreachable = (errno.ENETUNREACH, errno.EHOSTUNREACH)
    return isinstance(cause, socket.gaierror) or getattr(cause, "errno", None) in unreachable


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(cause, TimeoutError):
        return f"no data for {STALL_SECONDS:g} s"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two processes that write one part would spoil it for each other. Not on systems without fcntl."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = path.with_name(path.name + ".lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not lock.exists() or not os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                raise BlockingIOError  # whoever held it before has just deleted it, and a third has made a new one
        except BlockingIOError:
            raise ConfigError(f"{path} is being downloaded by another process; wait for it") from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
