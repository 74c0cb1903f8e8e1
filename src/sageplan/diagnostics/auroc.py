"""Area under the ROC curve, ties counted half."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def auroc(positive: npt.NDArray[Any], negative: npt.NDArray[Any]) -> float:
    """Chance that a draw from `positive` [n] exceeds one from `negative` [m]: the Mann–Whitney statistic."""
    ordered = np.sort(negative)
    below, not_above = np.searchsorted(ordered, positive, "left"), np.searchsorted(ordered, positive, "right")
    return float((below + not_above).sum(dtype=np.float64) / (2 * len(positive) * len(negative)))
