"""Where the randomness of an evaluation comes from: a stream for every purpose, decision and episode."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """What a stream is for. Arms that draw differently from one still see the same of the others."""

    PROPOSE = 0
    """the planner's noise"""
    EXECUTE = 1
    """actions between planned states that may be executed"""
    SCORE = 2
    """actions further on, that only the energy is asked about"""
    PICK = 3
    """the random selector"""


def stream(
    purpose: Stream, sampler_seed: int, episode: int, step: int, device: torch.device, *more: int
) -> torch.Generator:
    """Depends on what it is for and on nothing that runs beside it or before."""
    source = np.random.SeedSequence([sampler_seed, episode, step], spawn_key=(int(purpose), *more))
    return torch.Generator(device).manual_seed(int(source.generate_state(1, np.uint64)[0]))
