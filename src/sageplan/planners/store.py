"""A saved planner: a folder of planner.json, which says everything, and the weights that it names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from sageplan._version import __version__
from sageplan.data.normaliser import Normaliser
from sageplan.diffusion.dit import DiT
from sageplan.errors import FormatError, SageplanError
from sageplan.planners.config import HorizonCritic, VeteranConfig
from sageplan.planners.critic import HorizonValue, PlanValue, SummedStateValue
from sageplan.training.checkpoint import claim_folder, read_json, read_tensors, write_json, write_tensors

FORMAT, VERSION = "sageplan-planner", 1
_WEIGHTS = "weights-*.safetensors"


class Parts(NamedTuple):
    """What a planner is made of, in the order of its constructor."""

    config: VeteranConfig
    normaliser: Normaliser
    denoiser: DiT
    value: PlanValue
    info: dict[str, Any]


def untrained_value(config: VeteranConfig, normaliser: Normaliser) -> PlanValue:
    critic = config.critic
    if isinstance(critic, HorizonCritic):
        return HorizonValue(critic, config.horizon, normaliser)
    return SummedStateValue(critic, normaliser)


def save(
    folder: Path, weights: dict[str, Tensor], *, state_dim: int, config: VeteranConfig, info: dict[str, Any]
) -> None:
    """The weights carry their digest in their name, so an older planner.json keeps its own until it is replaced."""
    claim_folder(folder, needed_bytes=0)
    fresh = folder / "weights.safetensors"
    write_tensors(fresh, weights)
    digest = hashlib.sha256(fresh.read_bytes()).hexdigest()
    named = fresh.rename(folder / f"weights-{digest[:12]}.safetensors")
    record = {
        "format": FORMAT,
        "version": VERSION,
        "sageplan": __version__,
        "planner": "veteran",
        "state_dim": state_dim,
        "stride": config.stride,
        "weights": {"file": named.name, "sha256": digest},
        "config": config.to_json(),
        **info,
    }
    write_json(folder / "planner.json", record)
    for stale in set(folder.glob(_WEIGHTS)) - {named}:
        stale.unlink()


def load(folder: Path) -> tuple[Parts, dict[str, Tensor]]:
    """Untrained parts of the right shapes, and the weights to load into them."""
    path = folder / "planner.json"
    record = read_json(path, "a saved planner")
    if record.get("format") != FORMAT:
        raise FormatError(f"{path} is not a saved planner: its format is {record.get('format')!r}, not {FORMAT!r}")
    try:
        if record["version"] > VERSION:
            raise FormatError(
                f"{path} was saved by sageplan {record.get('sageplan')} in format {record['version']}; this is "
                f"{__version__}, which reads up to {VERSION}. Upgrade sageplan"
            )
        config, state_dim = VeteranConfig.from_json(record["config"]), int(record["state_dim"])
        weights, digest = folder / Path(record["weights"]["file"]).name, record["weights"]["sha256"]
        info = {key: record[key] for key in ("data", "seed", "training")}
        normaliser = Normaliser(state_dim)
        denoiser = DiT(config.horizon, state_dim, config.network)
        parts = Parts(config, normaliser, denoiser, untrained_value(config, normaliser), info)
    except (SageplanError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is damaged: {type(error).__name__} {error}") from None
    tensors, _ = read_tensors(weights, "the weights of a saved planner")
    if hashlib.sha256(weights.read_bytes()).hexdigest() != digest:
        raise FormatError(f"{weights} is corrupt: its SHA-256 is not the one in planner.json")
    return parts, tensors
