"""Maze2D: D4RL's ball in a maze, many balls at a time, and its exact one-step dynamics.

A state is (x, y, vx, vy) and an action the force (ax, ay) in [−1, 1]. x counts rows and y columns, and (1, 2)
belongs to row 1, column 2; but it is not the middle of that cell: cell w spans [w − 0.7, w + 0.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sageplan.errors import ConfigError, DataError
from sageplan.tasks.bodies import Simulator
from sageplan.tasks.physics import load_mujoco
from sageplan.tasks.world import Float64Array
from sageplan.types import BoolArray, FloatArray, IntArray

# '#' wall, '.' free, 'G' the rewarded goal
MAPS: dict[str, tuple[str, ...]] = {
    "umaze": (
        "#####",
        "#G..#",
        "###.#",
        "#...#",
        "#####",
    ),
    "medium": (
        "########",
        "#..##..#",
        "#..#...#",
        "##...###",
        "#..#...#",
        "#.#..#.#",
        "#...#.G#",
        "########",
    ),
    "large": (
        "############",
        "#....#.....#",
        "#.##.#.#.#.#",
        "#......#...#",
        "#.####.###.#",
        "#..#.#.....#",
        "##.#.#.#.###",
        "#..#...#.G.#",
        "############",
    ),
}
STEP_LIMITS = {"umaze": 300, "medium": 600, "large": 800}

CELL_START = 0.7  # cell w begins this far before the coordinate w
BALL_RADIUS = 0.1
GOAL_RADIUS = 0.5
SPOT_SPREAD = 0.1  # starts lie at most this far from a cell's coordinate, per axis
START_SPEED = 0.1  # standard deviation
MAX_SPEED = 5.0  # per axis
_MUJOCO_LIMIT = 1e10  # MuJoCo gives up on a simulation whose coordinates exceed this


@dataclass(frozen=True, eq=False)
class Maze:
    """The layout of one maze.

    walls       [rows, cols] bool
    free        [F, 2] row and column of the cells that are not walls, the goal among them
    goal        [2]    row and column
    step_limit  steps of one evaluation episode
    """

    name: str
    walls: BoolArray
    free: IntArray
    goal: IntArray
    step_limit: int

    @classmethod
    def named(cls, name: str) -> Maze:
        if name not in MAPS:
            raise ConfigError(f"there is no maze '{name}'; choose one of {', '.join(MAPS)}")
        tiles = np.array([list(row) for row in MAPS[name]])
        walls = tiles == "#"
        return cls(name, walls, np.argwhere(~walls), np.argwhere(tiles == "G")[0], STEP_LIMITS[name])

    def cells(self, xy: npt.NDArray[np.floating]) -> IntArray:
        """[..., 2] row and column of points [..., 2] that lie on the map."""
        cells: IntArray = np.floor(xy + CELL_START).astype(np.int64)
        return cells

    def inside_wall(self, xy: npt.NDArray[np.floating]) -> BoolArray:
        """[...] whether points [..., 2] lie in a wall or off the map (where NaN lies, too)."""
        edges = np.floor(xy + CELL_START)
        on_map = ((edges >= 0) & (edges < self.walls.shape)).all(-1)
        cells = np.where(on_map[..., None], edges, 0).astype(np.int64)
        inside: BoolArray = ~on_map | self.walls[cells[..., 0], cells[..., 1]]
        return inside

    def crosses_wall(self, xy: npt.NDArray[np.floating]) -> BoolArray:
        """[...] whether any point of the paths [..., T, 2] lies in a wall."""
        return np.asarray(self.inside_wall(xy).any(-1))

    def reward(self, xy: npt.NDArray[np.floating]) -> FloatArray:
        """[...] 1 for points [..., 2] within 0.5 of the goal, otherwise 0."""
        return np.asarray(np.linalg.norm(xy - self.goal, axis=-1) <= GOAL_RADIUS, dtype=np.float32)

    def random_state(self, rng: np.random.Generator) -> Float64Array:
        """[4] near any free cell, almost at rest."""
        spot = self.free[rng.integers(len(self.free))] + rng.uniform(-SPOT_SPREAD, SPOT_SPREAD, 2)
        return np.concatenate([spot, START_SPEED * rng.standard_normal(2)])


class PointMaze:
    """A batch of balls that move at the same time and do not meet; none is ever done.

    What happens to a ball depends on its own seed, state and actions alone, to the last bit.
    """

    def __init__(self, maze: Maze, num_envs: int) -> None:
        self.maze = maze
        self.num_envs = num_envs
        # One thread even for many: a ball is so light that handing it to another costs more.
        self._simulator = _Simulator(maze, nthread=1)
        self._states = np.zeros((num_envs, 4))

    @property
    def state(self) -> Float64Array:
        """[B, 4]"""
        return self._states.copy()

    def reset(self, seeds: Sequence[int] | IntArray) -> Float64Array:
        """New states [B, 4]; ball i's is drawn from seeds[i]."""
        self.set_state(np.stack([self.maze.random_state(np.random.default_rng(seed)) for seed in seeds]))
        return self.state

    def set_state(self, states: npt.NDArray[np.floating]) -> None:
        """states [B, 4]"""
        if states.shape != (self.num_envs, 4):
            raise DataError(f"states have shape {states.shape}, expected ({self.num_envs}, 4)")
        self._states = states.astype(np.float64)

    def step(self, actions: npt.NDArray[np.floating]) -> Float64Array:
        """States [B, 4] after actions [B, 2]; the reward for them is `maze.reward(states[:, :2])`."""
        self._states = self._simulator.advance(self._states, actions)
        return self.state

    def close(self) -> None:
        self._simulator.close()


def one_step(
    maze: Maze, states: npt.NDArray[np.floating], actions: npt.NDArray[np.floating], *, nthread: int = 1
) -> Float64Array:
    """The true next states [N, 4] of any states [N, 4] under actions [N, 2].

    The same as `PointMaze.step` to the last bit, whatever the number of threads.
    """
    return _Simulator(maze, nthread).advance(states, actions)


class _Simulator:
    """D4RL's step: action and velocity are clipped before it, and nonsense is refused."""

    def __init__(self, maze: Maze, nthread: int) -> None:
        self._simulator = Simulator(_ball_in_maze(load_mujoco("Maze2D"), maze), frame_skip=1, nthread=nthread)

    def advance(self, states: npt.NDArray[np.floating], actions: npt.NDArray[np.floating]) -> Float64Array:
        """Next states [N, 4] of states [N, 4] under actions [N, 2]."""
        count = len(states)
        if states.shape != (count, 4) or actions.shape != (count, 2):
            raise DataError(f"states {states.shape} and actions {actions.shape}: expected [N, 4] and [N, 2]")
        if not (np.abs(states) < _MUJOCO_LIMIT).all() or np.isnan(actions).any():
            raise DataError("states or actions to simulate are NaN or infinite")
        slow = states.astype(np.float64)
        np.clip(slow[:, 2:], -MAX_SPEED, MAX_SPEED, out=slow[:, 2:])
        return self._simulator.advance(slow, np.clip(actions, -1, 1, dtype=np.float64))

    def close(self) -> None:
        self._simulator.close()


def _ball_in_maze(mujoco: Any, maze: Maze) -> Any:
    """The compiled model; its world coordinates are 1.2 more than the state's."""
    spec = mujoco.MjSpec()
    spec.option.timestep = 0.01
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
    spec.option.gravity = [0, 0, 0]
    spec.option.iterations = 20
    contact = {"conaffinity": 1, "condim": 1, "friction": [0.5, 0.1, 0.1]}
    sphere, box = mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_BOX

    ball = spec.worldbody.add_body(name="ball", pos=[1.2, 1.2, 0])
    ball.add_geom(type=sphere, size=[BALL_RADIUS, 0, 0], density=1000, contype=1, margin=0.002, **contact)
    for name, axis in (("x", [1, 0, 0]), ("y", [0, 1, 0])):
        ball.add_joint(name=name, type=mujoco.mjtJoint.mjJNT_SLIDE, axis=axis)
        motor = spec.add_actuator(
            name=name, trntype=mujoco.mjtTrn.mjTRN_JOINT, target=name, ctrllimited=True, ctrlrange=[-1, 1]
        )
        motor.gear[0] = 100
    for row, col in np.argwhere(maze.walls):
        # D4RL's walls have the ball's margin, from times when the larger of two margins counted; from 3.5 on
        # MuJoCo adds them. With 0 here both come to 0.002.
        place = [row + 1, col + 1, 0]
        spec.worldbody.add_geom(type=box, size=[0.5, 0.5, 0.2], pos=place, contype=2, margin=0, **contact)
    model = spec.compile()
    # Not on the joints: late 3.x takes their damping for the coefficients of a polynomial.
    model.dof_damping[:] = 1
    return model
