"""Atomic files: a checkpoint is either the whole old one or the whole new one, and nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sageplan.errors import ConfigError, FormatError, TrainingError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it is flushed to disk and takes the name of `path`."""
    partial = path.with_name(f".{path.name}.part")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, record: dict[str, Any]) -> None:
    write_text(path, json.dumps(record, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    try:
        with atomic(path) as partial:
            partial.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}); what was there before is kept") from None


def read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        raise FormatError(f"{path} does not exist; expected {what}") from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror}); expected {what}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is not valid JSON ({error}); expected {what}") from None
    if not isinstance(record, dict):
        raise FormatError(f"{path} holds a JSON {type(record).__name__}, not an object; expected {what}")
    return record


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic(path) as partial:
            save_file(tensors, partial, metadata)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot write {path} ({error}); what was there before is kept") from None


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise FormatError(f"{path} does not exist; expected {what}")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path} is corrupt or not a safetensors file ({error}); expected {what}") from None


def load_weights(module: nn.Module, tensors: dict[str, Tensor], where: Path) -> None:
    """Load by name and shape; anything missing, left over or misshapen is named."""
    own = module.state_dict()
    missing, foreign = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or foreign:
        raise FormatError(f"{where} does not fit: missing {missing[:3]}, unexpected {foreign[:3]}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise FormatError(
                f"{where} does not fit: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(tensor.shape)}"
            )
    module.load_state_dict(tensors)


def claim_folder(folder: Path, needed_bytes: int) -> None:
    """Create the folder now and see that it takes files, rather than after an hour of training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"cannot write to the output folder {folder}: {error.strerror}") from None
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise TrainingError(
            f"{folder} has {free / 2**20:.0f} MiB free, {needed_bytes / 2**20:.0f} MiB are needed for checkpoints"
        )


def lock(file: int, refusal: str) -> None:
    """Claim an open file for this process, until it closes it or ends; another's claim raises ConfigError."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(refusal) from None


@contextmanager
def hold(path: Path, refusal: str) -> Iterator[None]:
    """Keep others out while the body runs, by a lock file that may stay where it is."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        lock(file, refusal)
        yield
    finally:
        os.close(file)


class Checkpoint:
    """One file with all that a training run needs to go on exactly where it was.

    model/*, optimiser/<parameter>/*, generator/* tensors; the step and the run's identity in the header.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        self.seconds = 0.0  # of training that led to it, in all sessions

    def save(
        self,
        step: int,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        generators: dict[str, torch.Generator],
    ) -> None:
        tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
        for number, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser/{number}/{name}": value for name, value in state.items()}
        tensors |= {f"generator/{name}": generator.get_state() for name, generator in generators.items()}
        write_tensors(self.path, tensors, {"step": str(step), "identity": self.identity, "seconds": str(self.seconds)})

    def restore(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, generators: dict[str, torch.Generator]
    ) -> int:
        """Load everything in place; the step to continue from, 0 when there is no checkpoint."""
        if not self.path.exists():
            return 0
        tensors, header = read_tensors(self.path, "a training checkpoint")
        if header.get("identity") != self.identity:
            raise ConfigError(
                f"{self.path} was made with other settings or other data; "
                "choose another run folder, or delete this one to start afresh"
            )
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}, "generator": {}}
        for name, tensor in tensors.items():
            kind, rest = name.split("/", 1)
            groups[kind][rest] = tensor
        load_weights(model, groups["model"], self.path)
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in groups["optimiser"].items():
            number, field = name.split("/")
            state.setdefault(int(number), {})[field] = tensor
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
        for name, generator in generators.items():
            generator.set_state(groups["generator"][name])
        self.seconds = float(header.get("seconds", 0))
        return int(header["step"])
