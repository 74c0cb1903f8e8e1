"""AntMaze as in D4RL's version 2: its own ant (not Gymnasium's) in mazes of 4 m cells, a new goal in every episode.

Row r and column c of the map lie at y = 4 (r − 1) and x = 4 (c − 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sageplan.tasks.bodies import Bodies
from sageplan.tasks.drawing import BODY, Capsule, draw_maze, moving_capsules
from sageplan.tasks.maze2d import Maze
from sageplan.tasks.physics import compile_model, gymnasium_spec, load_mujoco
from sageplan.tasks.world import Float64Array, Outcome
from sageplan.types import BoolArray

CELL = 4.0
WALL_HEIGHT = 2.0
TORQUE = 30.0  # of an action of 1
FRAME_SKIP = 5
GOAL_RADIUS = 0.5
START_SPREAD, START_SPEED = 0.1, 0.1


class AntMaze:
    """A batch of ants that start at the origin. Reaching the goal ends an episode, falling over does not."""

    def __init__(self, world: str, num_envs: int, legacy: bool = True) -> None:
        self.maze, self.num_envs = Maze.named(world), num_envs
        self.goals = np.tile(cell_centre(self.maze.goal), (num_envs, 1))
        self._bodies = Bodies(load_model(self.maze, legacy=legacy), FRAME_SKIP, num_envs)

    def reset(self, index: int, rng: np.random.Generator) -> None:
        self.goals[index] = random_goal(self.maze, rng)
        model = self._bodies.simulator.model
        qpos = model.qpos0 + rng.uniform(-START_SPREAD, START_SPREAD, model.nq)
        qpos[3:7] /= np.linalg.norm(qpos[3:7])  # MuJoCo 2.0 did so in place, before anything was observed
        qvel = START_SPEED * rng.standard_normal(model.nv)
        self._bodies.states[index] = np.concatenate([qpos, qvel])

    def step(self, actions: Float64Array, live: BoolArray) -> Outcome:
        gave_up = self._bodies.step(TORQUE * np.clip(actions, -1, 1), live)
        reached = reward(self._bodies.qpos[:, :2], self.goals)
        return Outcome(np.where(live & ~gave_up, reached, 0.0), live & (gave_up | (reached > 0)))

    def observe(self) -> Float64Array:
        return self._bodies.states.copy()

    def info(self, index: int) -> dict[str, Any]:
        return {
            "goal": self.goals[index].copy(),
            "qpos": self._bodies.qpos[index].copy(),
            "qvel": self._bodies.qvel[index].copy(),
        }

    def render(self, index: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        shapes = moving_capsules(self._bodies.simulator.model, self._bodies.qpos[index])
        shapes.sort(key=lambda shape: shape.start[2] + shape.end[2])
        ant = [Capsule(_on_map(s.start), _on_map(s.end), s.radius / CELL, BODY) for s in shapes]
        return draw_maze(self.maze.walls, _on_map(self.goals[index]), GOAL_RADIUS / CELL, ant, width, height)

    def close(self) -> None:
        self._bodies.simulator.close()


def cell_centre(cells: npt.ArrayLike) -> Float64Array:
    """x, y [..., 2] of rows and columns [..., 2]."""
    return np.asarray((np.asarray(cells)[..., ::-1] - 1) * CELL, np.float64)


def _on_map(xy: Float64Array) -> Float64Array:
    """[2] cells across and down from the map's top left corner."""
    return np.asarray(xy[:2] / CELL + 1.5, np.float64)


def random_goal(maze: Maze, rng: np.random.Generator) -> Float64Array:
    """[2] in the goal's cell, up to 1.5 m off its centre towards larger x and y."""
    offset = rng.uniform(0, CELL / 4, 2) + rng.uniform(0, CELL / 8, 2)
    return np.maximum(cell_centre(maze.goal) + offset, 0)


def reward(xy: Float64Array, goals: Float64Array) -> Float64Array:
    """[B] 1 for positions [B, 2] within half a metre of goals [B, 2], otherwise 0; 1 ends the episode."""
    return np.asarray(np.linalg.norm(xy - goals, axis=1) <= GOAL_RADIUS, np.float64)


def load_model(maze: Maze, *, legacy: bool) -> Any:
    """Gymnasium's ant with D4RL's time step, motors and contacts, between walls."""
    mujoco = load_mujoco("AntMaze")
    spec = gymnasium_spec(mujoco, "ant.xml", "AntMaze")
    spec.option.timestep = 0.02
    for motor in spec.actuators:
        motor.gear[0] = 1
        motor.ctrlrange = [-TORQUE, TORQUE]
    size = [CELL / 2, CELL / 2, WALL_HEIGHT / 2]
    contact = {"contype": 1, "conaffinity": 1, "condim": 3, "friction": [1, 0.5, 0.5], "margin": 0.01}
    for row, col in np.argwhere(maze.walls):
        place = [*cell_centre([row, col]), WALL_HEIGHT / 2]
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=size, pos=place, **contact)
    for geom in spec.geoms:
        geom.solref = [0.02, 1]
        geom.solimp[:3] = [0.8, 0.8, 0.01]
    return compile_model(mujoco, spec, legacy=legacy)
