import subprocess
import sys

import numpy as np
import pytest

from sageplan.errors import ConfigError
from sageplan.tasks.antmaze import AntMaze
from sageplan.tasks.drawing import BODY, GOAL, PAPER, WALL, Canvas, Capsule
from sageplan.tasks.locomotion import KINDS, Locomotion
from sageplan.tasks.maze2d_world import Maze2DWorld

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")


def where(picture, colour):
    """Rows and columns [n, 2] of exactly this colour."""
    return np.argwhere((picture == colour).all(-1))


def test_shapes_cover_what_they_should():
    canvas = Canvas(100, 60, (0, 0), 10, up=True)
    assert where(canvas.picture, PAPER).shape == (6000, 2)
    canvas.box((-2, 1), (-1, 3), (255, 0, 0))
    red = where(canvas.picture, (255, 0, 0))
    assert len(red) == 10 * 20
    assert red.min(0).tolist() == [0, 30]
    canvas.capsule(Capsule(np.array([1.0, -1]), np.array([3.0, -1]), 0.5, (0, 0, 255)), (0, 0, 255))
    blue = where(canvas.picture, (0, 0, 255))
    assert len(blue) == pytest.approx(100 * (2 + np.pi * 0.25), rel=0.08)
    assert blue.mean(0) == pytest.approx([39.5, 69.5], abs=0.1)


def test_what_lies_outside_is_cut_off():
    canvas = Canvas(20, 20, (0, 0), 10, up=True)
    canvas.capsule(Capsule(np.array([50.0, 0]), np.array([60.0, 0]), 1.0, (0, 0, 255)))
    canvas.box((9, 9), (10, 10), (255, 0, 0))
    assert (canvas.picture == PAPER).all()
    with pytest.raises(ConfigError, match="0 × 20 pixels"):
        Canvas(0, 20, (0, 0), 10, up=True)


@pytest.mark.parametrize("world", ["umaze", "medium", "large"])
def test_a_maze_is_drawn_as_its_map_is_printed(world):
    maze = Maze2DWorld(world, 1)
    maze.reset(0, np.random.default_rng(1))
    rows, columns = maze.maze.walls.shape
    picture = maze.render(0, 20 * columns, 20 * rows)
    assert picture.shape == (20 * rows, 20 * columns, 3)
    assert picture.dtype == np.uint8
    near_corner = picture[3::20, 3::20]  # of every cell, where no ball and no goal reaches
    assert ((near_corner == WALL).all(-1) == maze.maze.walls).all()


def test_ball_and_goal_are_drawn_where_they_are():
    maze = Maze2DWorld("medium", 1)
    maze._balls.set_state(np.array([[3.0, 2.0, 0, 0]]))  # 0.7 cells below and right of the corner of row 3, column 2
    picture = maze.render(0, 800, 800)
    assert where(picture, BODY).mean(0) == pytest.approx([369.5, 269.5], abs=1)
    assert where(picture, GOAL).mean(0) == pytest.approx([669.5, 669.5], abs=1)
    assert len(where(picture, GOAL)) == pytest.approx(np.pi * 50**2, rel=0.1)


def test_ant_and_goal_are_drawn_where_they_are():
    ant = AntMaze("large", 2)
    for index in range(2):
        ant.reset(index, np.random.default_rng(index))
    ant._bodies.states[1, :2] = 8, 4  # the middle of row 2, column 3
    ant.goals[1] = 32, 24
    picture = ant.render(1, 1200, 900)
    assert where(picture, BODY).mean(0) == pytest.approx([249.5, 349.5], abs=8)
    assert where(picture, GOAL).mean(0) == pytest.approx([749.5, 949.5], abs=1)
    assert (ant.render(0, 1200, 900) != picture).any()


@pytest.mark.parametrize("name", KINDS)
def test_runners_stand_on_the_ground_in_the_middle(name):
    world = Locomotion(name, 1)
    world.reset(0, np.random.default_rng(0))
    picture = world.render(0, 300, 240).astype(int)
    body = np.argwhere(np.ptp(picture, axis=-1) > 40)  # all else is almost grey
    assert len(body) > 300
    assert abs(body[:, 1].mean() - 150) < 40
    ground = np.flatnonzero((picture[:, 0] != PAPER).any(-1))[0]
    assert abs(body[:, 0].max() - ground) <= 12
    # the camera moves along, the ground does not
    world._bodies.states[0, 0] += 0.5
    moved = world.render(0, 300, 240)
    assert (moved[ground + 5] != picture[ground + 5]).any()
    assert np.array_equal(moved[:ground], picture[:ground])


def test_rendering_needs_neither_a_display_nor_graphics():
    program = """
import os, sys
os.environ.pop("DISPLAY", None)
os.environ["MUJOCO_GL"] = "disable"
import sageplan.tasks
for name in ("hopper-medium-v2", "antmaze-medium-play-v2", "maze2d-umaze-v1"):
    env = sageplan.tasks.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    assert len(set(map(tuple, env.render().reshape(-1, 3)))) > 3
assert not [name for name in sys.modules if "OpenGL" in name or "glfw" in name]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
