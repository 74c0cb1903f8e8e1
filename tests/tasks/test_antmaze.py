import numpy as np
import pytest

from sageplan.errors import ConfigError
from sageplan.tasks.antmaze import AntMaze, cell_centre, load_model, random_goal, reward
from sageplan.tasks.maze2d import Maze

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

GOALS = {"medium": (20, 20), "large": (32, 24)}
LIVE = np.ones(1, bool)


def started(name="medium", seed=0, count=1):
    world = AntMaze(name, count)
    for index in range(count):
        world.reset(index, np.random.default_rng([seed, index]))
    return world


@pytest.fixture(params=GOALS)
def name(request):
    return request.param


def test_cells_are_4_metres_and_the_start_cell_is_the_origin(name):
    assert cell_centre([1, 1]).tolist() == [0, 0]
    assert cell_centre([2, 4]).tolist() == [12, 4]
    assert tuple(cell_centre(Maze.named(name).goal)) == GOALS[name]


def test_walls_stand_where_the_map_has_them(name):
    maze = Maze.named(name)
    model = load_model(maze, legacy=True)
    boxes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_BOX)
    expected = {(4.0 * (col - 1), 4.0 * (row - 1), 1.0) for row, col in np.argwhere(maze.walls)}
    assert {tuple(place) for place in model.geom_pos[boxes]} == expected
    assert (model.geom_size[boxes] == [2, 2, 1]).all()


def test_the_ant_is_d4rls():
    model = load_model(Maze.named("medium"), legacy=True)
    assert model.opt.timestep == 0.02
    assert (model.actuator_gear[:, 0] == 1).all()
    assert (model.actuator_ctrlrange == [-30, 30]).all()
    assert (model.geom_solimp[:, :3] == [0.8, 0.8, 0.01]).all()
    assert (model.geom_friction == [1, 0.5, 0.5]).all()


def test_goals_lie_in_the_goal_cell_off_its_centre(name):
    maze = Maze.named(name)
    offsets = np.stack([random_goal(maze, np.random.default_rng(seed)) for seed in range(2000)]) - GOALS[name]
    assert offsets.min() >= 0
    assert offsets.max() <= 1.5
    # the sum of U(0, 1) and U(0, 0.5)
    assert offsets.mean(0) == pytest.approx([0.75, 0.75], abs=0.03)
    assert offsets.std(0) == pytest.approx(np.sqrt([1.25 / 12] * 2), rel=0.05)


def test_every_reset_draws_a_new_goal_from_the_episodes_own_generator(name):
    world = started(name)
    first = world.info(0)["goal"]
    world.reset(0, np.random.default_rng(5))
    again = world.info(0)["goal"]
    assert (first != again).all()
    np.random.seed(0)  # noqa: NPY002 - D4RL drew it from there, which must not matter
    world.reset(0, np.random.default_rng(5))
    assert np.array_equal(world.info(0)["goal"], again)


def test_starts_are_around_the_origin_with_a_unit_quaternion():
    world = started(count=300)
    states = world.observe()
    model = world._bodies.simulator.model
    assert np.abs(states[:, :3] - model.qpos0[:3]).max() <= 0.1
    assert np.abs(states[:, 7:15]).max() <= 0.1
    assert np.linalg.norm(states[:, 3:7], axis=1) == pytest.approx(np.ones(300), abs=1e-12)
    assert states[:, 15:].std() == pytest.approx(0.1, rel=0.05)
    assert states[:, 2].std() == pytest.approx(0.1 / np.sqrt(3), rel=0.1)


def test_observations_are_position_and_velocity():
    world = started()
    info = world.info(0)
    assert np.array_equal(world.observe()[0], np.concatenate([info["qpos"], info["qvel"]]))
    assert (len(info["qpos"]), len(info["qvel"])) == (15, 14)


def test_reward_is_within_half_a_metre():
    goals, offsets = np.full((4, 2), 20.0), np.array([[0, 0], [0.5, 0], [0.36, 0.36], [0, -0.501]])
    assert reward(goals + offsets, goals).tolist() == [1, 1, 0, 0]


def test_reaching_the_goal_pays_once_and_ends():
    world = started(count=3)
    world.goals[1] = world.info(1)["qpos"][:2] + 0.2
    rewards, terminated = world.step(np.zeros((3, 8)), np.ones(3, bool))
    assert rewards.tolist() == [0, 1, 0]
    assert terminated.tolist() == [False, True, False]
    rewards, terminated = world.step(np.zeros((3, 8)), ~terminated)
    assert rewards.tolist() == [0, 0, 0]
    assert not terminated.any()


def test_lying_on_its_back_does_not_end_an_episode():
    world = started()
    world._bodies.states[0, 2:7] = 0.3, 0, 1, 0, 0
    for _ in range(10):
        outcome = world.step(np.zeros((1, 8)), LIVE)
        assert not outcome.terminated[0]
    assert world.observe()[0, 2] < 0.6


def test_actions_are_clipped_to_a_torque_of_30():
    wild, tame = started(), started()
    actions = np.linspace(-4, 4, 8)[None]
    for _ in range(3):
        wild.step(actions, LIVE)
        tame.step(np.clip(actions, -1, 1), LIVE)
    assert np.array_equal(wild.observe(), tame.observe())


def test_walls_stop_the_ant():
    world = started("medium")
    world._bodies.states[0, 15] = 15.0  # thrown along x, towards the wall two cells ahead, whose side is at 6 m
    for _ in range(20):
        world.step(np.zeros((1, 8)), LIVE)
        x = world.observe()[0, 0]
        assert x < 6
    assert x > 2


def test_unknown_maze():
    with pytest.raises(ConfigError, match="'tiny'"):
        AntMaze("tiny", 1)
