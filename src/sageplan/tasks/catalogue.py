"""The 18 D4RL tasks of the paper: sizes, limits, files, reference scores and DV's conventions. Needs no simulator."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sageplan.errors import ConfigError

ADDRESS = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"

Domain = Literal["locomotion", "kitchen", "antmaze", "maze2d"]


@dataclass(frozen=True)
class Task:
    """One task, its data and how results on it are reported.

    name          D4RL's, for example hopper-medium-v2
    domain        locomotion, kitchen, antmaze or maze2d
    world         what is simulated: hopper, halfcheetah or walker2d; kitchen; the maze's size
    variant       what tells its data or its goals from another task's of the same world; "" in maze2d
    state_dim     length of an observation
    action_dim    length of an action, every entry in [−1, 1]
    step_limit    steps of one episode
    min_return    undiscounted return that scores 0
    max_return    and 100
    source        where the official file lies, below ADDRESS
    bytes         of the official file, where known
    sha256        of the official file, where known
    discount      γ of DV's returns
    reward_shift  what DV adds to every recorded reward
    fall_reward   what DV puts in the place of the reward of a terminal step, if anything
    """

    name: str
    domain: Domain
    world: str
    variant: str
    state_dim: int
    action_dim: int
    step_limit: int
    min_return: float
    max_return: float
    source: str
    bytes: int | None = None
    sha256: str | None = None
    discount: float = 0.997
    reward_shift: float = 0.0
    fall_reward: float | None = None

    @property
    def file_name(self) -> str:
        """The official file's name."""
        return self.source.rsplit("/", 1)[1]

    @property
    def url(self) -> str:
        return ADDRESS + self.source

    def normalise(self, episode_return: float) -> float:
        """D4RL's score of an undiscounted return: 0 like a random policy, 100 like its reference."""
        return 100 * (episode_return - self.min_return) / (self.max_return - self.min_return)


def _locomotion(world: str, state_dim: int, action_dim: int, low: float, high: float) -> list[Task]:
    return [
        Task(
            name=f"{world}-{variant}-v2",
            domain="locomotion",
            world=world,
            variant=variant,
            state_dim=state_dim,
            action_dim=action_dim,
            step_limit=1000,
            min_return=low,
            max_return=high,
            source=f"gym_mujoco_v2/{world}_{variant.replace('-', '_')}-v2.hdf5",
            fall_reward=-100.0,
        )
        for variant in ("medium-expert", "medium", "medium-replay")
    ]


def _kitchen(variant: str, file: str, size: int, sha256: str) -> Task:
    return Task(
        name=f"kitchen-{variant}-v0",
        domain="kitchen",
        world="kitchen",
        variant=variant,
        state_dim=60,
        action_dim=9,
        step_limit=280,
        min_return=0,
        max_return=4,
        source=f"kitchen/{file}",
        bytes=size,
        sha256=sha256,
    )


def _antmaze(world: str, variant: str) -> Task:
    maze = {"medium": "big-maze", "large": "hardest-maze"}[world]
    many = variant == "diverse"
    return Task(
        name=f"antmaze-{world}-{variant}-v2",
        domain="antmaze",
        world=world,
        variant=variant,
        state_dim=29,
        action_dim=8,
        step_limit=1000,
        min_return=0,
        max_return=1,
        source=f"ant_maze_v2/Ant_maze_{maze}_noisy_multistart_True_multigoal_{many}_sparse_fixed.hdf5",
        discount=1.0,
        reward_shift=-1.0,
    )


def _maze2d(world: str, step_limit: int, low: float, high: float) -> Task:
    return Task(
        name=f"maze2d-{world}-v1",
        domain="maze2d",
        world=world,
        variant="",
        state_dim=4,
        action_dim=2,
        step_limit=step_limit,
        min_return=low,
        max_return=high,
        source=f"maze2d/maze2d-{world}-sparse-v1.hdf5",
        discount=1.0,
        reward_shift=-1.0,
    )


# In the order of the paper's table.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *_locomotion("halfcheetah", 17, 6, -280.178953, 12135.0),
        *_locomotion("hopper", 11, 3, -20.272305, 3234.3),
        *_locomotion("walker2d", 17, 6, 1.629008, 4592.3),
        _kitchen(
            "mixed",
            "kitchen_microwave_kettle_bottomburner_light-v0.hdf5",
            19_560_760,
            "a30382a50278fdaea2e2d88e5f2836a95bcf9b581d252617872fd6537302721b",
        ),
        _kitchen(
            "partial",
            "kitchen_microwave_kettle_light_slider-v0.hdf5",
            19_558_459,
            "57bfd9c5fe88a7cf702bbaf8b7cd800d30cd869e7f73416007238d26cd859800",
        ),
        _antmaze("large", "diverse"),
        _antmaze("large", "play"),
        _antmaze("medium", "diverse"),
        _antmaze("medium", "play"),
        _maze2d("large", 800, 6.7, 273.99),
        _maze2d("medium", 600, 13.13, 277.39),
        _maze2d("umaze", 300, 23.85, 161.86),
    )
}


def get(name: str) -> Task:
    """The task of this name, with or without the version."""
    known = {**{task.name.rsplit("-", 1)[0]: task for task in TASKS.values()}, **TASKS}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(TASKS)}"
    raise ConfigError(f"there is no task '{name}'; {hint}")


def recognise(file: str | Path) -> Task | None:
    """The task a data file belongs to by its name, official or `TASK.hdf5`, if any."""
    name = Path(file).name.lower()
    for task in TASKS.values():
        if name == task.file_name.lower():
            return task
    # the longest name first: "hopper-medium" is a part of "hopper-medium-replay"
    plain = re.sub(r"[-_ .]", "", name)
    for task in sorted(TASKS.values(), key=lambda task: -len(task.name)):
        if task.name.rsplit("-", 1)[0].replace("-", "") in plain:
            return task
    return None
