"""What every task simulates behind: a batch of independent worlds that are stepped together."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sageplan.types import BoolArray

Float64Array = npt.NDArray[np.float64]


class Outcome(NamedTuple):
    """rewards [B] and terminated [B] of one step; what was not stepped has 0 and False."""

    rewards: Float64Array
    terminated: BoolArray


class World(Protocol):
    """B simulations of one task.

    What happens in one depends on its own generator, state and actions alone, to the last bit.
    """

    num_envs: int

    def reset(self, index: int, rng: np.random.Generator) -> None:
        """Begin an episode in simulation `index`; all its chance, now and in later steps, comes from `rng`."""

    def step(self, actions: Float64Array, live: BoolArray) -> Outcome:
        """Advance the simulations that are `live` [B] by one environment step.

        actions [B, A] are clipped to the task's bounds.
        """

    def observe(self) -> Float64Array:
        """[B, S] D4RL's observations."""

    def info(self, index: int) -> dict[str, Any]:
        """What else an episode's owner may want to know: goal, qpos, qvel, tasks completed."""

    def render(self, index: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        """[height, width, 3] picture of one simulation; works without a display."""

    def close(self) -> None: ...
