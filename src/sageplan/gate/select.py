"""The selection rule: keep the lowest-energy share P, then argmax of J − λE (Eq. select_energy_value)."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sageplan.errors import ConfigError, DataError
from sageplan.types import Choice

PenaltyUnits = Literal["raw", "pool"]


def keep_count(candidates: int, keep: float) -> int:
    """⌈P·C⌉, at least one; the slack forgives float products such as 0.55·100 = 55.000000000000007."""
    return max(1, math.ceil(keep * candidates - 1e-9))


@overload
def select(
    values: Tensor,
    energy: Tensor,
    *,
    keep: float = ...,
    penalty: float = ...,
    penalty_units: PenaltyUnits = ...,
) -> Choice[Tensor]: ...
@overload
def select(
    values: npt.ArrayLike,
    energy: npt.ArrayLike,
    *,
    keep: float = ...,
    penalty: float = ...,
    penalty_units: PenaltyUnits = ...,
) -> Choice[npt.NDArray[Any]]: ...
def select(
    values: Any, energy: Any, *, keep: float = 0.8, penalty: float = 0.1, penalty_units: PenaltyUnits = "raw"
) -> Choice[Any]:
    """Pick one candidate per observation.

    values [B, C] or [C], energy like values. NumPy in, NumPy out; torch in, torch out.

    Exactly `keep_count(C, keep)` candidates survive, ties going to the lower index; then the highest
    value − penalty·energy wins, again the lower index on ties. A value that is NaN counts as −inf. An energy
    that is not finite sorts last and, under a penalty, can only win when nothing finite survives. Where no
    candidate has a finite energy there is nothing to gate by, and the highest value wins.
    keep=1 with penalty=0 is argmax of the values, exactly.

    penalty_units="raw" takes λ as the paper does: the penalty is λ·E whatever the scale of the values.
    "pool" measures λ in standard deviations of the pool's finite values, so that one λ means the same for a
    critic in [−1, 1] and for returns in the thousands.
    """
    if not isinstance(values, Tensor):
        if isinstance(energy, Tensor):
            raise DataError("values are not a torch tensor but energy is; give both as torch or both as NumPy")
        chosen = select(
            torch.from_numpy(np.array(values)),
            torch.from_numpy(np.array(energy)),
            keep=keep,
            penalty=penalty,
            penalty_units=penalty_units,
        )
        return Choice(*(t.numpy() for t in (chosen.index, chosen.energy, chosen.score, chosen.kept)))
    _check(values, energy, keep, penalty, penalty_units)

    whole = not (values.is_floating_point() and energy.is_floating_point())  # integers need float64 to stay exact
    least = torch.float64 if whole else torch.float32
    exact = torch.promote_types(torch.promote_types(values.dtype, energy.dtype), least)
    values, energy = values.to(exact), energy.to(exact)
    count = values.shape[-1]
    value = torch.where(values.isnan(), -torch.inf, values)
    finite = energy.isfinite()
    energy = torch.where(finite, energy, torch.inf)

    rank = energy.argsort(dim=-1, stable=True).argsort(dim=-1)
    kept = (rank < keep_count(count, keep)) | ~finite.any(-1, keepdim=True)

    weight = penalty * (_spread(value) if penalty_units == "pool" else torch.ones_like(value[..., :1]))
    cost = torch.where(weight > 0, weight * torch.where(finite, energy, 0.0), 0.0)
    unusable = ~kept
    if penalty > 0:
        unusable |= ~finite & finite.any(-1, keepdim=True)
    score = torch.where(unusable, -torch.inf, value - cost)

    index = score.argmax(-1)
    if penalty > 0 or not kept.all():
        # Where all scores are −inf (every kept value NaN, say) argmax would name any candidate, even a dropped one.
        index = torch.where(score.amax(-1) > -torch.inf, index, energy.argmin(-1))
    return Choice(index=index, energy=energy, score=score, kept=kept)


def _spread(value: Tensor) -> Tensor:
    """[..., C] to [..., 1]: standard deviation over the pool's finite values."""
    kind, value = value.dtype, value.double()  # squares of large values
    finite = value.isfinite()
    count = finite.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(finite, value, 0.0).sum(-1, keepdim=True) / count
    return (torch.where(finite, value - mean, 0.0).square().sum(-1, keepdim=True) / count).sqrt().to(kind)


def _check(values: Tensor, energy: Any, keep: float, penalty: float, penalty_units: str) -> None:
    if not isinstance(energy, Tensor):
        raise DataError("values are a torch tensor but energy is not; give both as torch or both as NumPy")
    if values.shape != energy.shape:
        raise DataError(f"values have shape {tuple(values.shape)} but energy has {tuple(energy.shape)}")
    if values.ndim not in (1, 2) or values.shape[-1] == 0:
        raise DataError(f"values have shape {tuple(values.shape)}, expected [B, C] or [C] with at least one candidate")
    check_rule(keep, penalty, penalty_units)


def check_rule(keep: float, penalty: float, penalty_units: str) -> None:
    """Refuse a rule that cannot be meant, before any energy is computed for it."""
    if not 0 < keep <= 1:
        raise ConfigError(f"keep is a share of the candidates in (0, 1], got {keep}")
    if not (penalty >= 0 and math.isfinite(penalty)):
        raise ConfigError(f"penalty must be finite and not negative, got {penalty}")
    if penalty_units not in ("raw", "pool"):
        raise ConfigError(f'penalty_units is "raw" or "pool", got {penalty_units!r}')
