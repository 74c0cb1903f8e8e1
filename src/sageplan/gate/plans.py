"""The boundary between a user's plans and the gate's tensors: check once, remember how to answer in kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sageplan.errors import DataError


@dataclass(frozen=True, eq=False)
class Plans:
    """Checked plans, flattened to N = B·C trajectories on the gate's device.

    states [N, H+1, S]   actions [N, H, A] or None   both float32, raw units
    leading  the dimensions that were flattened: (), (C,) or (B, C)
    """

    states: Tensor
    actions: Tensor | None
    leading: tuple[int, ...]
    home: torch.device | None
    """where answers go: a torch device, or None for NumPy"""

    @property
    def length(self) -> int:
        """H"""
        return self.states.shape[1] - 1

    @classmethod
    def check(
        cls, states: Any, actions: Any, state_dim: int, action_dim: int, *, pools: bool, device: torch.device
    ) -> Plans:
        """pools=True refuses a single trajectory, which has no candidates to choose among."""
        _same_kind("actions", actions, states)
        home = states.device if isinstance(states, Tensor) else None
        s = _tensor("states", states, device)
        least = 3 if pools else 2
        if not least <= s.ndim <= 4 or s.shape[-1] != state_dim or s.shape[-2] < 2:
            shapes = "[B, C, H+1, S] or [C, H+1, S]" + ("" if pools else " or [H+1, S]")
            raise DataError(
                f"states have shape {tuple(s.shape)}, expected {shapes} with S={state_dim} and at least 2 rows"
            )
        if s.numel() == 0:
            raise DataError(f"states have shape {tuple(s.shape)}: there are no candidates")
        a = None
        if actions is not None:
            a = _tensor("actions", actions, device)
            wanted = (*s.shape[:-2], s.shape[-2] - 1, action_dim)
            if a.shape != wanted:
                hint = "; the last state has no action" if a.shape == (*s.shape[:-1], action_dim) else ""
                raise DataError(f"actions have shape {tuple(a.shape)}, expected {wanted} for these states{hint}")
            a = a.reshape(-1, *wanted[-2:])
        return cls(s.reshape(-1, *s.shape[-2:]), a, tuple(s.shape[:-2]), home)

    def restore(self, flat: Tensor) -> Any:
        """[N, ...] on the gate's device to [*leading, ...] in the caller's kind."""
        out = flat.reshape(*self.leading, *flat.shape[1:])
        return out.cpu().numpy() if self.home is None else out.to(self.home)

    def values(self, values: Any) -> Any:
        """The caller's values, checked to be one per candidate and of the same kind as the states."""
        array = np.asarray(values) if self.home is None and not isinstance(values, Tensor) else values
        _same_kind("values", array, np.empty(0) if self.home is None else torch.empty(0))
        if tuple(array.shape) != self.leading:
            raise DataError(f"values have shape {tuple(array.shape)}, expected {self.leading}: one per candidate")
        return array.to(self.home) if isinstance(array, Tensor) else array


def _same_kind(name: str, other: Any, states: Any) -> None:
    if other is not None and isinstance(other, Tensor) != isinstance(states, Tensor):
        kinds = [("torch" if isinstance(x, Tensor) else "NumPy") for x in (states, other)]
        raise DataError(f"states are {kinds[0]} but {name} are {kinds[1]}; give both as the same kind")


def _tensor(name: str, values: Any, device: torch.device) -> Tensor:
    try:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.require(values, np.float32, ["C", "W"]))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be read as an array of numbers ({error})") from None
    return tensor.detach().to(device, torch.float32)
