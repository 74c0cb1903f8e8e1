"""A saved gate: a folder of gate.json, which says everything, and the weights that it names."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from sageplan._version import __version__
from sageplan.data.normaliser import Normaliser
from sageplan.diffusion.inverse_dynamics import ActionRange, InverseDynamicsModel
from sageplan.errors import FormatError, MissingExtraError
from sageplan.gate.calibrate import Calibration
from sageplan.gate.config import GateConfig
from sageplan.gate.encoder import Encoder
from sageplan.gate.predictor import FrozenEncoder, LatentPredictor, Whitening
from sageplan.training.checkpoint import claim_folder, read_json, read_tensors, write_json, write_tensors

if TYPE_CHECKING:
    from sageplan.gate.gate import Gate

FORMAT, VERSION = "sageplan-gate", 1
_WEIGHTS = "weights-*.safetensors"


class Parts(NamedTuple):
    """What a gate is made of, in the order of its constructor."""

    config: GateConfig
    encoder: FrozenEncoder
    predictor: LatentPredictor
    inverse_dynamics: InverseDynamicsModel | None
    info: dict[str, Any]
    calibration: Calibration | None


def save(gate: Gate, folder: Path) -> None:
    """The weights carry their digest in their name, so an older gate.json keeps its own until it is replaced."""
    claim_folder(folder, needed_bytes=0)
    fresh = folder / "weights.safetensors"
    write_tensors(fresh, gate.modules().state_dict())
    digest = hashlib.sha256(fresh.read_bytes()).hexdigest()
    weights = fresh.rename(folder / f"weights-{digest[:12]}.safetensors")
    write_json(
        folder / "gate.json",
        {
            "format": FORMAT,
            "version": VERSION,
            "sageplan": __version__,
            "state_dim": gate.state_dim,
            "action_dim": gate.action_dim,
            "stride": gate.config.stride,
            "weights": {"file": weights.name, "sha256": digest},
            "config": gate.config.to_json(),
            "calibration": gate.calibration and gate.calibration.to_json(),
            **gate.info,
        },
    )
    for stale in set(folder.glob(_WEIGHTS)) - {weights}:
        stale.unlink()


def load(folder: Path) -> tuple[Parts, dict[str, Tensor]]:
    """Untrained parts of the right shapes, and the weights to load into them."""
    path = folder / "gate.json"
    record = read_json(path, "a saved gate")
    if record.get("format") != FORMAT:
        raise FormatError(f"{path} is not a saved gate: its format is {record.get('format')!r}, not {FORMAT!r}")
    try:
        if record["version"] > VERSION:
            raise FormatError(
                f"{path} was saved by sageplan {record.get('sageplan')} in format {record['version']}; this is "
                f"{__version__}, which reads up to {VERSION}. Upgrade sageplan"
            )
        config = GateConfig.from_json(record["config"])
        state_dim, action_dim = int(record["state_dim"]), int(record["action_dim"])
        weights, digest = folder / Path(record["weights"]["file"]).name, record["weights"]["sha256"]
        calibration = Calibration(**record["calibration"]) if record["calibration"] else None
        info = {key: record[key] for key in ("data", "seed", "training")}
        parts = _untrained(config, state_dim, action_dim, info, calibration)
    except FormatError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FormatError(f"{path} is damaged: {type(error).__name__} {error}") from None
    tensors, _ = read_tensors(weights, "the weights of a saved gate")
    if hashlib.sha256(weights.read_bytes()).hexdigest() != digest:
        raise FormatError(f"{weights} is corrupt: its SHA-256 is not the one in gate.json")
    return parts, tensors


def _untrained(
    config: GateConfig, state_dim: int, action_dim: int, info: dict[str, Any], calibration: Calibration | None
) -> Parts:
    latent, inverse = config.stage1.latent, config.inverse_dynamics
    normaliser = Normaliser(state_dim)
    encoder = Encoder(state_dim, config.stage1.hidden, latent)
    return Parts(
        config,
        FrozenEncoder(normaliser, encoder, Whitening(latent, config.stage2.whitening)),
        LatentPredictor(latent, action_dim, config.stage2),
        InverseDynamicsModel(inverse, normaliser, ActionRange(action_dim)) if inverse else None,
        info,
        calibration,
    )


def push_to_hub(gate: Gate, repo_id: str, private: bool) -> str:
    hub = _hub("sharing a gate")
    hub.create_repo(repo_id, private=private, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sageplan-") as folder:
        gate.save(folder)
        return str(hub.upload_folder(repo_id=repo_id, folder_path=folder, delete_patterns=_WEIGHTS))


def download(repo_id: str) -> Path:
    """A local folder with the gate of a repository."""
    hub = _hub(f"{repo_id} is not a folder here; loading it from the Hugging Face Hub")
    return Path(hub.snapshot_download(repo_id, allow_patterns=["gate.json", _WEIGHTS]))


def _hub(purpose: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError("huggingface_hub", "hub", purpose) from None
    return huggingface_hub
