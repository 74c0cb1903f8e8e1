"""Environment steps of one MuJoCo model, many states at a time, as a pure function of state and control."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from sageplan.tasks.physics import load_mujoco
from sageplan.tasks.world import Float64Array
from sageplan.types import BoolArray

_CHUNK_ROWS = 8192  # states advanced in one call, so that a whole data set needs no more memory than this
_CLOCK = 1.0  # where every step's time begins; MuJoCo sets it to 0 when it gives up on a simulation


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Simulator:
    """What comes out does not depend on what else is in the batch, its order, or the number of threads.

    Nothing is carried over from one call to the next, not even the solver's warm start, which therefore starts
    from zero in every environment step.
    """

    def __init__(self, model: Any, frame_skip: int, nthread: int) -> None:
        mujoco = load_mujoco("simulation")
        self.model = model
        self.nq, self.nv = int(model.nq), int(model.nv)
        self.step_time = float(model.opt.timestep) * frame_skip
        self._frame_skip = frame_skip
        self._data = [mujoco.MjData(model) for _ in range(max(1, nthread))]
        # 0 threads means the calling one, which saves the hand-over to a pool
        self._rollout = mujoco.rollout.Rollout(nthread=nthread if nthread > 1 else 0)

    def advance(self, states: npt.NDArray[np.floating], controls: npt.NDArray[np.floating]) -> Float64Array:
        """States [N, nq + nv] one environment step after states [N, nq + nv] under constant controls [N, nu].

        NaN where MuJoCo gave up on a simulation: coordinates or accelerations beyond all bounds.
        """
        if len(states) <= _CHUNK_ROWS:
            return self._advance(states, controls)
        starts = range(0, len(states), _CHUNK_ROWS)
        chunks = [slice(start, start + _CHUNK_ROWS) for start in starts]
        return np.concatenate([self._advance(states[chunk], controls[chunk]) for chunk in chunks])

    def _advance(self, states: npt.NDArray[np.floating], controls: npt.NDArray[np.floating]) -> Float64Array:
        count, steps = len(states), self._frame_skip
        before = np.empty((count, 1 + self.nq + self.nv))  # MuJoCo's layout: time, position, velocity
        before[:, 0], before[:, 1:] = _CLOCK, states
        held = np.empty((count, steps, self.model.nu))
        held[:] = controls[:, None]
        after = np.empty((count, steps, before.shape[1]))
        self._rollout.rollout(
            [self.model] * count,
            self._data,
            before,
            held,
            nstep=steps,
            state=after,
            skip_checks=True,  # they take longer than small batches do
        )
        lost = np.abs(after[:, -1, 0] - _CLOCK - self.step_time) > 1e-6
        result: Float64Array = after[:, -1, 1:].copy()
        if lost.any():
            result[lost] = np.nan
        return result

    def close(self) -> None:
        self._rollout.close()


class Bodies:
    """The states of B simulations of one model."""

    def __init__(self, model: Any, frame_skip: int, num_envs: int) -> None:
        self.simulator = Simulator(model, frame_skip, nthread=min(cores(), num_envs))
        self.states = np.tile(np.concatenate([model.qpos0, np.zeros(model.nv)]), (num_envs, 1))

    @property
    def qpos(self) -> Float64Array:
        """[B, nq], a view."""
        return self.states[:, : self.simulator.nq]

    @property
    def qvel(self) -> Float64Array:
        """[B, nv], a view."""
        return self.states[:, self.simulator.nq :]

    def step(self, controls: Float64Array, live: BoolArray) -> BoolArray:
        """Advance the simulations that are `live` [B]; [B] those that MuJoCo gave up on stay where they were."""
        everyone = live.all()
        chosen = slice(None) if everyone else np.flatnonzero(live)
        after = self.simulator.advance(self.states[chosen], controls[chosen])
        gave_up = np.zeros(len(live), np.bool_)
        gave_up[chosen] = np.isnan(after[:, 0])
        if gave_up.any():
            after = np.where(gave_up[chosen, None], self.states[chosen], after)
        self.states[chosen] = after
        return gave_up
