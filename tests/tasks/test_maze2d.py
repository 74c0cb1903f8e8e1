import sys
from collections import deque

import numpy as np
import pytest

from sageplan.errors import ConfigError, DataError, MissingExtraError
from sageplan.tasks.maze2d import MAPS, Maze, PointMaze, one_step

pytest.importorskip("mujoco")

MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1))
MASS = 1000 * 4 / 3 * np.pi * 0.1**3
TIMESTEP, FORCE, DAMPING = 0.01, 100.0, 1.0


def euler(states, actions):
    """MuJoCo's Euler step without contacts: the new velocity is damped, and moves the ball."""
    velocity = (MASS * states[:, 2:] + TIMESTEP * FORCE * actions) / (MASS + TIMESTEP * DAMPING)
    return np.concatenate([states[:, :2] + TIMESTEP * velocity, velocity], axis=1)


def random_states(maze, count, seed=0, speed=3.0):
    """States anywhere that the ball fits, many of them touching a wall."""
    rng = np.random.default_rng(seed)
    xy = maze.free[rng.integers(len(maze.free), size=count)] + rng.uniform(-0.6, 0.2, (count, 2))
    return np.concatenate([xy, speed * rng.standard_normal((count, 2))], axis=1)


@pytest.fixture(params=MAPS)
def maze(request):
    return Maze.named(request.param)


def test_layouts_are_those_of_d4rl():
    mazes = {name: Maze.named(name) for name in MAPS}
    assert {name: (m.walls.shape, tuple(m.goal), len(m.free), m.step_limit) for name, m in mazes.items()} == {
        "umaze": ((5, 5), (1, 1), 7, 300),
        "medium": ((8, 8), (6, 6), 26, 600),
        "large": ((9, 12), (7, 9), 46, 800),
    }


def test_free_cells_are_enclosed_and_connected(maze):
    assert maze.walls[[0, -1]].all()
    assert maze.walls[:, [0, -1]].all()
    free = {tuple(cell) for cell in maze.free}
    seen, queue = {tuple(maze.goal)}, deque([tuple(maze.goal)])
    while queue:
        row, col = queue.popleft()
        new = {(row + r, col + c) for r, c in MOVES} & free - seen
        seen |= new
        queue.extend(new)
    assert seen == free


def test_unknown_maze_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"'huge'.*umaze, medium, large"):
        Maze.named("huge")


def test_inside_wall_follows_the_cell_borders():
    maze = Maze.named("umaze")  # row 1 is free from column 1 to 3, with walls on all other sides
    eps = 1e-9
    inside = maze.inside_wall(np.array([
        [1, 1], [0.3, 0.3], [1.3 - eps, 3.3 - eps], [0.3 - eps, 1], [1, 0.3 - eps], [1.3, 1], [1, 3.3],
        [-0.8, 1], [-9, -9], [4.2, 1], [99, 1], [1, -0.8], [1, 4.4], [np.nan, 1], [1, np.inf],
    ]))  # fmt: skip
    assert inside.tolist() == [False] * 3 + [True] * 12


def test_a_ball_anywhere_in_the_maze_is_in_a_free_cell(maze):
    xy = random_states(maze, 2000)[:, :2]
    assert not maze.inside_wall(xy).any()
    assert not maze.walls[tuple(maze.cells(xy).T)].any()


def test_crosses_wall_looks_at_every_point_of_each_path():
    maze = Maze.named("umaze")
    path = np.stack([np.full(9, 1.0), np.linspace(1, 3, 9)], axis=-1)
    paths = path + np.array([[0, 0], [0.29, 0.29], [0, 0.31], [-0.71, 0]])[:, None]
    assert maze.crosses_wall(paths).tolist() == [False, False, True, True]
    assert maze.crosses_wall(paths[None]).shape == (1, 4)
    assert not maze.crosses_wall(path)


def test_reward_is_within_half_a_cell_of_the_goal():
    maze = Maze.named("medium")
    xy = maze.goal + np.array([[0, 0], [0.5, 0], [0, -0.5], [0.501, 0], [0.36, 0.36], [-3, 0]])
    assert maze.reward(xy).tolist() == [1, 1, 1, 0, 0, 0]


def test_free_motion_is_the_euler_step_by_hand():
    maze = Maze.named("large")
    rng = np.random.default_rng(0)
    states = np.concatenate([maze.free.repeat(9, axis=0), rng.uniform(-5, 5, (9 * 46, 2))], axis=1)
    actions = rng.uniform(-1, 1, (9 * 46, 2))
    after = one_step(maze, states, actions)
    np.testing.assert_allclose(after, euler(states, actions), rtol=1e-12, atol=1e-13)


def test_velocity_and_action_are_clipped_before_the_step():
    maze = Maze.named("umaze")
    states = np.array([[3, 2, 0, 8.0], [3, 2, -7, 0], [3, 2, 0, 0], [3, 2, 0, 5]])
    actions = np.array([[0, 0], [0, 0], [2.5, -9], [0, 1.0]])
    expected = euler(np.clip(states, -5, 5), np.clip(actions, -1, 1))
    after = one_step(maze, states, actions)
    np.testing.assert_allclose(after, expected, rtol=1e-12)
    assert np.float32(after[3, 3]) == np.float32(5.2262554)  # the top speed in D4RL's published files


def test_every_wall_stops_the_ball_and_every_opening_lets_it_pass(maze):
    cells = maze.free.repeat(4, axis=0)
    moves = np.tile(MOVES, (len(maze.free), 1))
    env = PointMaze(maze, len(cells))
    env.set_state(np.concatenate([cells, np.zeros(cells.shape)], axis=1))
    xy = []
    for _ in range(200):
        xy.append(env.step(moves)[:, :2])
        assert not maze.inside_wall(xy[-1]).any()
    progress = ((np.array(xy) - cells) * moves).sum(-1)  # [200, 4F] along the push
    # the next cell begins 0.3 ahead of the coordinate, or 0.7 behind it
    border = np.where(moves.sum(-1) > 0, 0.3, 0.7)
    blocked = maze.walls[tuple((cells + moves).T)]
    gap = (border - 0.1 - progress[-50:])[:, blocked]
    assert gap.min() > -0.001
    assert gap.max() < 0.0025  # a contact starts at 0.002
    assert (progress.max(0) > border)[~blocked].all()


def test_walls_have_no_friction():
    env = PointMaze(Maze.named("umaze"), 2)
    env.set_state(np.array([[0.41, 1, 0, 0], [1, 1, 0, 0]]))
    for _ in range(30):
        env.step(np.array([[-1, 1], [0, 1]]))
    pressed, free = env.state
    assert pressed[0] < 0.41
    assert pressed[[1, 3]] == pytest.approx(free[[1, 3]], rel=1e-12)


def test_a_ball_moves_the_same_alone_and_in_any_batch():
    maze = Maze.named("medium")
    states = random_states(maze, 40)
    actions = np.random.default_rng(1).uniform(-1, 1, (60, 40, 2))
    order = np.random.default_rng(2).permutation(40)
    together, shuffled = PointMaze(maze, 40), PointMaze(maze, 40)
    alone = [PointMaze(maze, 1) for _ in range(6)]
    together.set_state(states)
    shuffled.set_state(states[order])
    for i, env in enumerate(alone):
        env.set_state(states[[i]])
    for action in actions:
        together.step(action)
        shuffled.step(action[order])
        for i, env in enumerate(alone):
            env.step(action[[i]])
    assert np.array_equal(shuffled.state, together.state[order])
    assert np.array_equal(np.concatenate([env.state for env in alone]), together.state[:6])


@pytest.mark.parametrize("nthread", [1, 2])
def test_one_step_is_what_the_environment_does(nthread):
    maze = Maze.named("large")
    env = PointMaze(maze, 500)
    env.set_state(random_states(maze, 500))
    for seed in range(5):
        before, actions = env.state, np.random.default_rng(seed).uniform(-1, 1, (500, 2))
        # the environment's simulator has just stepped, the oracle's is fresh: nothing may be carried over
        assert np.array_equal(env.step(actions), one_step(maze, before, actions, nthread=nthread))


def test_random_play_stays_out_of_the_walls(maze):
    env = PointMaze(maze, 200)
    env.reset(np.arange(200))
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1.5, 1.5, (200, 2))
        for _ in range(15):
            assert not maze.inside_wall(env.step(action)[:, :2]).any()


def test_reset_draws_each_ball_from_its_own_seed(maze):
    env = PointMaze(maze, 500)
    states = env.reset(range(500))
    assert np.array_equal(PointMaze(maze, 2).reset([7, 3]), states[[7, 3]])
    cells = np.rint(states[:, :2]).astype(int)
    assert np.abs(states[:, :2] - cells).max() <= 0.1
    assert {tuple(c) for c in cells} == {tuple(c) for c in maze.free}
    assert states[:, 2:].std() == pytest.approx(0.1, rel=0.1)


def test_states_handed_out_are_not_the_environments_own():
    env = PointMaze(Maze.named("umaze"), 1)
    given = np.array([[1.0, 1, 0, 0]])
    env.set_state(given)
    env.state[:] = given[:] = 99
    env.step(np.zeros((1, 2)))[:] = 99
    assert env.state.tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("states", "actions"),
    [
        ([[1, np.nan, 0, 0]], [[0, 0]]),
        ([[1, 1, np.inf, 0]], [[0, 0]]),
        ([[1e11, 1, 0, 0]], [[0, 0]]),
        ([[1, 1, 0, 0]], [[np.nan, 0]]),
        ([[1, 1, 0, 0]], [[0, 0], [0, 0]]),
        ([[1, 1, 0]], [[0, 0]]),
    ],
)
def test_states_that_mujoco_would_mishandle_are_refused(states, actions):
    with pytest.raises(DataError):
        one_step(Maze.named("umaze"), np.array(states), np.array(actions))


def test_without_mujoco_layouts_work_and_physics_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    maze = Maze.named("umaze")
    assert not maze.inside_wall(maze.goal)
    with pytest.raises(MissingExtraError, match=r"Maze2D needs mujoco: pip install 'sageplan\[tasks\]'"):
        PointMaze(maze, 1)
