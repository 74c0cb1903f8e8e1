"""Data files made here, where the official ones cannot be had: Maze2D, in D4RL's layout and at its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sageplan._version import __version__
from sageplan.data.cache import cache_folder
from sageplan.data.maze2d import Recording, record
from sageplan.data.official import FACTS
from sageplan.errors import ConfigError, DataError
from sageplan.tasks import catalogue
from sageplan.tasks.catalogue import Task
from sageplan.tasks.maze2d import Maze, one_step
from sageplan.training.checkpoint import atomic
from sageplan.training.progress import Bars


def build(
    task: str | Task,
    out: str | Path | None = None,
    *,
    rows: int | None = None,
    seed: int = 0,
    noise: float = 0.5,
    runs: int = 64,
    stale_rows: bool = False,
    ends_as_terminals: bool = False,
    rewards_of_state: bool = True,
    progress: bool = True,
) -> Path:
    """Collect a task's data and write them to `out`, by default TASK.hdf5 in the cache.

    rows   default: as many as the official file has
    noise  standard deviation of the noise added to actions
    runs   that are collected side by side and laid end to end; 1 is one continuous run, as in D4RL, but takes longer

    D4RL's quirks, each to be had or not:
    stale_rows         the row after a change of goal repeats the observation before it (in D4RL's script)
    ends_as_terminals  changes of goal are in `terminals` and there are no `timeouts` (in D4RL's script); otherwise
                       they are in `timeouts` and no row is terminal (in the official files)
    rewards_of_state   a row's reward is that of its own observation (in the official files), not of the next state
    """
    task = catalogue.get(task) if isinstance(task, str) else task
    if task.domain != "maze2d":
        can = ", ".join(name for name, known in catalogue.TASKS.items() if known.domain == "maze2d")
        raise ConfigError(
            f"{task.name} cannot be built here; {can} can, and `sageplan data get` has the official files"
        )
    path = Path(out).expanduser() if out is not None else cache_folder() / f"{task.name}.hdf5"
    if path.exists():
        raise DataError(f"{path} is there already; choose another file with --out, or delete it")
    _check_place(path)
    official_rows = FACTS[task.name].rows
    rows = official_rows if rows is None else rows
    assert rows is not None, "the length of every Maze2D file is known"
    with Bars(progress) as bars:
        job = bars.job(task.name, rows)
        recorded = record(
            task.world, rows, seed=seed, noise=noise, num_envs=runs, stale_rows=stale_rows, progress=job.update
        )
    columns = _columns(Maze.named(task.world), recorded, ends_as_terminals, rewards_of_state)
    quirks = {"stale_rows": stale_rows, "ends_as_terminals": ends_as_terminals, "rewards_of_state": rewards_of_state}
    try:
        with atomic(path) as partial, h5py.File(partial, "w") as file:
            file.attrs["description"] = f"{task.name} built by sageplan {__version__}; not D4RL's official file"
            file.attrs.update({"task": task.name, "seed": seed, "noise": noise, "runs": runs, **quirks})
            for name, array in columns.items():
                file.create_dataset(name, data=array, compression="gzip", shuffle=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror or error})") from None
    return path


def _columns(
    maze: Maze, recorded: Recording, ends_as_terminals: bool, rewards_of_state: bool
) -> dict[str, np.ndarray[Any, Any]]:
    rewarded = recorded.observations if rewards_of_state else one_step(maze, recorded.states, recorded.actions)
    never = np.zeros(len(recorded.ends), np.bool_)
    ends = {"terminals": recorded.ends} if ends_as_terminals else {"terminals": never, "timeouts": recorded.ends}
    return {
        "observations": recorded.observations,
        "actions": recorded.actions,
        "rewards": maze.reward(rewarded[:, :2]),
        **ends,
        "infos/goal": recorded.goals,
        "infos/qpos": recorded.states[:, :2],
        "infos/qvel": recorded.states[:, 2:],
    }


def _check_place(path: Path) -> None:
    """Now, rather than after minutes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as partial:
            partial.write_bytes(b"")
        path.unlink()
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror or error})") from None
