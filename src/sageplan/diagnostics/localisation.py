"""Corruption localisation (paper, Figure traj_main): does the energy rise where a recording was tampered with?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sageplan.diagnostics.auroc import auroc
from sageplan.diagnostics.corruption import Corruption, corrupt, inside
from sageplan.gate.energy import Context
from sageplan.gate.score import longest_segments
from sageplan.types import Trajectories

if TYPE_CHECKING:
    from sageplan.gate.gate import Gate


@dataclass(frozen=True)
class Localisation:
    """Step energies of the same held-out segments, clean and corrupted.

    auroc    of corrupted steps against the steps outside, in the corrupted segments
    outside  mean energy outside the corruption, relative to the same steps of the clean segments; 1 is no leak
    clean    [N, T]   corrupted [N, T]   mask [N, T] true where corrupted
    """

    kind: Corruption
    context: Context
    auroc: float
    outside: float
    clean: npt.NDArray[Any] = field(repr=False)
    corrupted: npt.NDArray[Any] = field(repr=False)
    mask: npt.NDArray[np.bool_] = field(repr=False)


class Aligned(NamedTuple):
    """Quartiles of the energies around the first corrupted step, which has offset 0.

    offsets [n]   clean, corrupted [3, n]: lower quartile, median, upper quartile
    width         corrupted steps
    """

    offsets: npt.NDArray[np.int64]
    clean: npt.NDArray[np.float64]
    corrupted: npt.NDArray[np.float64]
    width: int


def aligned(result: Localisation, before: int = 15, after: int = 30) -> Aligned:
    """What the paper's figure shows of all segments together."""
    offsets, first = np.arange(-before, after), result.mask.argmax(1)[:, None]
    offsets = offsets[((first + offsets >= 0) & (first + offsets < result.mask.shape[1])).any(0)]  # some segment has it
    steps = first + offsets
    valid = (steps >= 0) & (steps < result.mask.shape[1])
    steps = np.clip(steps, 0, result.mask.shape[1] - 1)

    def quartiles(energies: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        there = np.where(valid, np.take_along_axis(energies, steps, 1), np.nan)
        return np.asarray(np.nanquantile(there, (0.25, 0.5, 0.75), axis=0), np.float64)

    return Aligned(offsets, quartiles(result.clean), quartiles(result.corrupted), int(result.mask[0].sum()))


def contexts(gate: Gate) -> tuple[Context, ...]:
    """The contexts that make a difference to a gate, the one it plans with first."""
    return ("plan", "step") if gate.config.stage2.context == "plan" else ("step",)


def localise(
    gate: Gate,
    data: Trajectories,
    kind: Corruption = "shuffle",
    *,
    context: Context = "plan",
    segments: int = 400,
    steps: int = 64,
    width: int = 12,
    seed: int = 0,
) -> Localisation:
    """Corrupt `width` steps somewhere in each of `segments` held-out segments of `steps` steps.

    With context="plan" the corrupted actions stay in the predictor's context after the corruption has ended,
    which costs some contrast; "step" judges every transition by itself.
    """
    generator = torch.Generator().manual_seed(seed)
    stride = gate.config.stride
    states, actions = longest_segments(gate.held_out(data), steps, stride).sample(segments, generator)
    length = actions.shape[1]
    width = min(width, max(2, length // 3))
    begin = torch.randint(length - width + 1, (len(actions),), generator=generator)
    clean = gate.step_energy(states, actions, stride=stride, context=context)
    broken = gate.step_energy(*corrupt(states, actions, begin, width, kind, generator), stride=stride, context=context)
    mask = inside(begin, width, length)
    return Localisation(
        kind,
        context,
        auroc=auroc(broken[mask].numpy(), broken[~mask].numpy()),
        outside=float(broken[~mask].mean() / clean[~mask].mean()),
        clean=clean.numpy(),
        corrupted=broken.numpy(),
        mask=mask.numpy(),
    )
