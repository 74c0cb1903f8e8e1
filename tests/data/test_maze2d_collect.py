import numpy as np
import pytest

from sageplan.data.maze2d import collect, shortest_paths
from sageplan.errors import ConfigError
from sageplan.tasks.maze2d import MAPS, Maze, one_step

pytest.importorskip("mujoco")


@pytest.fixture(scope="module", params=MAPS)
def collected(request):
    maze = Maze.named(request.param)
    return maze, collect(request.param, 60_001, seed=3, num_envs=8)


def test_rows_are_complete_and_labelled_as_in_d4rl(collected):
    maze, data = collected
    assert data.name == f"maze2d-{maze.name}"
    assert len(data) == len(data.actions) == len(data.rewards) == len(data.terminals) == 60_001
    assert data.states.dtype == data.actions.dtype == data.rewards.dtype == np.float32
    assert not data.terminals.any()
    assert np.abs(data.actions).max() == 1
    at_goal = np.linalg.norm(data.states[:, :2] - maze.goal, axis=1) <= 0.5
    assert np.array_equal(data.rewards, at_goal)
    assert 0 < at_goal.mean() < 0.6
    assert not maze.inside_wall(data.states[:, :2]).any()


def test_every_row_leads_to_the_next_one_of_its_run(collected):
    maze, data = collected
    after = one_step(maze, data.states, data.actions)[:-1].astype(np.float32)
    broken = np.flatnonzero((after != data.states[1:]).any(1)) + 1
    starts = np.cumsum([7501] + [7500] * 6)  # 60,001 rows in 8 runs
    assert broken.tolist() == starts.tolist()
    assert set(starts) <= set(data.offsets)


def test_episodes_end_at_goals_all_over_the_maze(collected):
    maze, data = collected
    run_ends = np.cumsum([7501] + [7500] * 7)
    ends = data.offsets[1:]
    ended_by_itself = ~np.isin(ends, run_ends)
    last = data.states[ends - 1, :2]
    cells = np.rint(last)
    reached = np.linalg.norm(last - cells, axis=1) < 0.1
    timed_out = data.lengths == maze.step_limit + 1
    assert data.lengths.max() <= maze.step_limit + 1
    assert (reached | timed_out)[ended_by_itself].all()
    assert timed_out.mean() < 0.05
    visits = (cells[ended_by_itself & reached][:, None] == maze.free).all(-1).sum(0)
    assert visits.sum() > 150
    assert visits.max() < 3 * visits.mean() + 3
    assert (visits > 0).mean() > 0.9


def test_noise_is_added_to_the_controllers_actions():
    quiet, noisy = (collect("umaze", 20_000, noise=noise) for noise in (0.0, 0.5))
    change = [np.abs(np.diff(data.actions, axis=0)).mean() for data in (quiet, noisy)]
    assert change[0] < 0.1 < 0.3 < change[1]
    assert quiet.lengths.max() < 301


def test_corners_are_cut_by_displaced_waypoints():
    states = collect("umaze", 20_000, noise=0).states
    halfway = states[np.abs(states[:, 0] - 2) < 0.05]  # through the passage of column 3
    assert 2.9 < halfway[:, 1].mean() < 2.97  # 3.0 without displacement
    assert 2.75 < halfway[:, 1].min() < 2.85


def test_a_goal_that_is_not_reached_is_given_up_at_the_step_limit():
    data = collect("umaze", 20_000, noise=20, num_envs=8)  # hardly controlled
    assert data.lengths.max() == 301
    assert np.bincount(data.lengths)[301] > 5


def test_same_arguments_same_data():
    first, again = (collect("medium", 5_000, seed=1) for _ in range(2))
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != collect("medium", 5_000, seed=2).fingerprint()


@pytest.mark.parametrize(("steps", "runs"), [(1, 1), (299, 1), (700, 2), (1_000, 3), (4_003, 5)])
def test_the_number_of_rows_is_exact_and_no_run_is_shorter_than_an_episode(steps, runs):
    told = []
    data = collect("umaze", steps, num_envs=5, progress=told.append)
    assert len(data) == steps
    after = one_step(Maze.named("umaze"), data.states, data.actions)[:-1].astype(np.float32)
    assert (after != data.states[1:]).any(1).sum() == runs - 1
    assert told[-1] == steps
    assert told == sorted(set(told))


def test_unusable_arguments_are_refused():
    with pytest.raises(ConfigError, match="'tiny'"):
        collect("tiny", 100)
    with pytest.raises(ConfigError, match="0 steps"):
        collect("umaze", 0)


@pytest.mark.parametrize("size", MAPS)
def test_paths_are_those_of_d4rls_value_iteration(size):
    """50 sweeps of Q-iteration with discount 0.99, then the first of the best actions: ties included."""
    maze = Maze.named(size)
    free = [tuple(cell) for cell in maze.free]
    successors = np.array([
        [free.index(cell) if (cell := (row + r, col + c)) in free else i
         for r, c in ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0))]
        for i, (row, col) in enumerate(free)
    ])  # fmt: skip
    paths = shortest_paths(maze)
    for goal in range(len(free)):
        reward = np.zeros((len(free), 1))
        reward[goal] = 1
        q = np.zeros(successors.shape)
        for _ in range(50):
            q = reward + 0.99 * q.max(1)[successors]
        for start in range(len(free)):
            path, cell = [], start
            while not path or cell != goal:
                cell = successors[cell, q[cell].argmax()]
                path.append(cell)
            padded = path + [goal] * (paths.shape[2] - len(path))
            assert paths[start, goal].tolist() == padded
