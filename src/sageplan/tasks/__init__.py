"""D4RL's tasks on modern MuJoCo."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sageplan.errors import MissingExtraError
from sageplan.tasks.catalogue import TASKS, Task, get, recognise

if TYPE_CHECKING:
    from sageplan.tasks.env import D4RLEnv
    from sageplan.tasks.vector import D4RLVectorEnv

__all__ = ["TASKS", "Task", "get", "list", "make", "make_vector", "recognise", "simulator"]


def list() -> builtins.list[str]:
    """The names of all tasks."""
    return [*TASKS]


def make(task: str | Task, render_mode: str | None = None, **options: Any) -> D4RLEnv:
    """A task as a Gymnasium environment. `gymnasium.make("sageplan/TASK")` wraps the same one."""
    task = get(task) if isinstance(task, str) else task
    _require_gymnasium(task)
    from sageplan.tasks.env import D4RLEnv

    return D4RLEnv(task, render_mode, **options)


def make_vector(
    task: str | Task, num_envs: int, seeds: int | Sequence[int] | None = None, **options: Any
) -> D4RLVectorEnv:
    """`num_envs` environments of a task that are stepped together; environment i has seeds[i], or seeds + i."""
    task = get(task) if isinstance(task, str) else task
    _require_gymnasium(task)
    from sageplan.tasks.vector import make_vector

    return make_vector(task, num_envs, seeds, **options)


def simulator(data_name: str) -> Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]] | None:
    """The true dynamics behind a data set, if its name tells: states [n, S] and actions [n, A] to next states.

    None for data of no known task, and for kitchen, whose observations are noisy and do not tell velocities.
    NaN after observations of hopper and walker2d in which a velocity was clipped: it may have been anything beyond.
    """
    task = recognise(data_name)
    if task is None or task.domain == "kitchen":
        return None

    def step(states: npt.NDArray[Any], actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        from sageplan.tasks.replay import clipped, one_step, simulated_states

        after = one_step(task, *simulated_states(task, states), actions).observations
        after[clipped(task, states)] = np.nan
        return after

    return step


def _require_gymnasium(task: Task) -> None:
    try:
        import gymnasium  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("gymnasium", "tasks", task.name) from error


def _register() -> None:
    """With Gymnasium, where that is installed."""
    try:
        import gymnasium
    except ImportError:
        return
    for task in TASKS.values():
        if (name := f"sageplan/{task.name}") not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="sageplan.tasks.env:D4RLEnv",
                vector_entry_point="sageplan.tasks.vector:make_vector",
                kwargs={"task": task.name},
                max_episode_steps=task.step_limit,
            )


_register()
