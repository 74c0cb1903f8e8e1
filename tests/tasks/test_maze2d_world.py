import numpy as np
import pytest

from sageplan.tasks.maze2d import MAPS, Maze, PointMaze
from sageplan.tasks.maze2d_world import Maze2DWorld

pytest.importorskip("mujoco")


@pytest.fixture(params=MAPS)
def name(request):
    return request.param


def place(world, states):
    world._balls.set_state(np.asarray(states, np.float64))


def test_the_goal_is_d4rls_in_every_episode(name):
    world = Maze2DWorld(name, 1)
    for seed in range(5):
        world.reset(0, np.random.default_rng(seed))
        assert world.info(0)["goal"].tolist() == {"umaze": [1, 1], "medium": [6, 6], "large": [7, 9]}[name]


def test_starts_are_those_of_the_maze(name):
    world = Maze2DWorld(name, 200)
    for index in range(200):
        world.reset(index, np.random.default_rng(index))
        assert np.array_equal(world.observe()[index], Maze.named(name).random_state(np.random.default_rng(index)))


def test_reward_is_for_where_a_step_leads_and_nothing_ends(name):
    maze = Maze.named(name)
    world = Maze2DWorld(name, 3)
    x, y = maze.goal
    # outside of the goal and into it, inside of it and out, and at rest in it
    place(world, [[x - 0.52, y, 5, 0], [x - 0.48, y, -5, 0], [x, y, 0, 0]])
    rewards, terminated = world.step(np.zeros((3, 2)), np.ones(3, bool))
    assert rewards.tolist() == [1, 0, 1]
    assert rewards.dtype == np.float64
    assert not terminated.any()


def test_it_moves_like_the_balls_it_is_made_of(name):
    maze, rng = Maze.named(name), np.random.default_rng(0)
    world, balls = Maze2DWorld(name, 20), PointMaze(maze, 20)
    for index in range(20):
        world.reset(index, np.random.default_rng(index))
    balls.set_state(world.observe())
    for _ in range(20):
        actions = rng.uniform(-2, 2, (20, 2))
        rewards, _ = world.step(actions, np.ones(20, bool))
        assert np.array_equal(balls.step(actions), world.observe())
        assert np.array_equal(maze.reward(balls.state[:, :2]), rewards)


def test_what_is_not_live_does_not_move_and_earns_nothing():
    world = Maze2DWorld("umaze", 2)
    place(world, [[1, 1, 0, 3], [1, 1, 0, 3]])
    rewards, _ = world.step(np.ones((2, 2)), np.array([False, True]))
    assert rewards.tolist() == [0, 1]
    assert world.observe()[0].tolist() == [1, 1, 0, 3]
    assert world.observe()[1, 1] > 1
