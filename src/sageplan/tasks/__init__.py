"""D4RL's tasks on modern MuJoCo."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from sageplan.tasks.maze2d import MAPS, Maze, one_step


def simulator(data_name: str) -> Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]] | None:
    """The true dynamics behind a data set, if its name tells: states [n, S] and actions [n, A] to next states."""
    found = re.search(f"maze2d-({'|'.join(MAPS)})", data_name)
    if not found:
        return None
    maze = Maze.named(found[1])
    return lambda states, actions: one_step(maze, states, actions)
