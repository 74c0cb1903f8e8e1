"""What the paper set by hand, set from data: the scale of energies, the prefix length and the penalty."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sageplan.diagnostics.auroc import auroc
from sageplan.diagnostics.corruption import corrupt
from sageplan.types import FloatArray

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0)
PREFIXES = (1, 2, 3, 5, 8, 10, 15, 20, 25, 31)
CORRUPTED_STEPS = 5
_TOLERANCE = 0.005  # AUROC given up for a shorter prefix, which prunes fewer good plans
_PENALTY_SHARE = 0.1  # spread of λE as a share of the spread of J: "a modest correction"


class Pools(NamedTuple):
    """Candidate pools as a planner proposes them offline: states [B, C, H+1, S], actions [B, C, H, A] or None,
    values [B, C]. All NumPy, or all torch."""

    states: Any
    actions: Any
    values: Any


@dataclass(frozen=True)
class Calibration:
    """levels, energies: the energy of single real transitions that a share `level` of them does not exceed.

    prefix, penalty: K and λ for this gate, None until `Gate.calibrate` has set them.
    detection: AUROC of corrupted against clean segments by prefix length, which the prefix was chosen from.
    """

    levels: list[float]
    energies: list[float]
    prefix: int | None = None
    penalty: float | None = None
    detection: dict[str, float] | None = None

    def quantile(self, energy: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Share of real transitions whose energy is lower."""
        share: npt.NDArray[np.float64] = np.interp(np.asarray(energy, np.float64), self.energies, self.levels)
        return share

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def energy_quantiles(energies: FloatArray) -> Calibration:
    """energies [n] of real transitions."""
    return Calibration(list(LEVELS), [float(e) for e in np.quantile(energies, LEVELS)])


def prefix_from_corruption(
    score: Any, states: Tensor, actions: Tensor, generator: torch.Generator
) -> tuple[int, dict[str, float]]:
    """The shortest prefix whose mean energy tells corrupted from clean segments about as well as any.

    score(states, actions) gives step energies [N, T] of real segments states [N, T+1, S], actions [N, T, A].
    Five actions are shuffled in time, beginning within the first five steps.
    """
    count, length, _ = actions.shape
    width = min(CORRUPTED_STEPS, length)
    begin = torch.randint(min(width, length - width + 1), (count,), generator=generator)
    clean = score(states, actions)
    broken = score(*corrupt(states, actions, begin, width, "shuffle", generator))
    detection = {
        str(k): auroc(broken[:, :k].mean(1).cpu().numpy(), clean[:, :k].mean(1).cpu().numpy())
        for k in PREFIXES
        if k <= length
    }
    best = max(detection.values())
    return min(int(k) for k, value in detection.items() if value >= best - _TOLERANCE), detection


def penalty_from_pools(energy: FloatArray, values: FloatArray) -> float:
    """energy [B, C] and values [B, C] of pools: λ so that λE spreads a tenth as widely as J in the median pool.

    Candidates without a finite energy or value do not count.
    """
    usable = np.isfinite(energy) & np.isfinite(values)
    count = np.maximum(usable.sum(1), 1)
    spreads = []
    for numbers in (values, energy):
        known = np.where(usable, numbers, 0.0)
        centred = np.where(usable, known - (known.sum(1) / count)[:, None], 0.0)
        spreads.append(np.sqrt(np.square(centred).sum(1) / count))
    ratio = spreads[0][spreads[1] > 0] / spreads[1][spreads[1] > 0]
    return float(_PENALTY_SHARE * np.median(ratio)) if len(ratio) else 0.0
