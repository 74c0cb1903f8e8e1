import numpy as np
import pytest

from sageplan.errors import ConfigError, DataError
from sageplan.tasks import TASKS, get, simulator
from sageplan.tasks.episodes import create_world
from sageplan.tasks.replay import one_step, simulated_states

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

ANT_EPISODE = 1001  # rows between the resets of real AntMaze data, whose version 0 flags them wrongly
WORLDS = ("hopper-medium-v2", "halfcheetah-medium-v2", "walker2d-medium-v2", "antmaze-large-play-v2", "maze2d-large-v1")


def replayed(name, rows, legacy=True):
    """Errors of observations (the largest entry) and of rewards, per row."""
    limit = 10 if name.startswith("hopper") else np.inf
    known = (np.abs(rows["infos/qvel"]) < limit - 1e-4).all(1)
    known_rows = {key: array[known] for key, array in rows.items()}
    after = one_step(
        get(name), known_rows["infos/qpos"], known_rows["infos/qvel"], known_rows["actions"], legacy=legacy
    )
    assert len(after.observations) == known.sum() > 500
    error = np.abs(after.observations - known_rows["next_observations"]).max(1)
    return error, np.abs(after.rewards - known_rows["rewards"])


@pytest.mark.parametrize(
    ("name", "file"),
    [("hopper-medium-v2", "hopper_medium-v2.hdf5"), ("halfcheetah-medium-v2", "halfcheetah_medium-v2.hdf5")],
)
def test_real_runs_are_replayed_to_float32(d4rl_rows, name, file):
    rows = d4rl_rows(file)
    errors, reward_errors = replayed(name, rows)
    assert np.median(errors) <= 1e-6
    assert np.quantile(errors, 0.95) <= 5e-6
    assert reward_errors.max() <= 1e-5
    modern, modern_rewards = replayed(name, rows, legacy=False)
    assert np.median(modern) > 1000 * np.median(errors)
    assert np.median(modern_rewards) > 1000 * np.median(reward_errors)


def test_real_antmaze_is_replayed_to_float32(d4rl_rows):
    task, rows = get("antmaze-medium-play-v2"), d4rl_rows("antmaze-medium-play-v0.hdf5")
    within = np.arange(1, len(rows["observations"])) % ANT_EPISODE != 0
    before, after = rows["observations"][:-1][within], rows["observations"][1:][within]
    actions = rows["actions"][:-1][within]

    def errors(legacy):
        result = one_step(task, *simulated_states(task, before), actions, legacy=legacy)
        return np.abs(result.observations - after).max(1)

    assert np.median(errors(True)) <= 1e-6
    assert (errors(True) > 1e-4).sum() <= 4  # contacts, most of them with walls
    assert np.median(errors(False)) > 1000 * np.median(errors(True))
    # the recorded qpos and qvel are those after the step
    later = np.concatenate([rows["infos/qpos"], rows["infos/qvel"]], 1)[:-1][within]
    assert np.array_equal(later.astype(np.float32), after.astype(np.float32))


@pytest.mark.parametrize("name", WORLDS)
def test_a_replayed_step_is_the_environments(name):
    task = get(name)
    world = create_world(task, 6)
    for index in range(6):
        world.reset(index, np.random.default_rng(index))
    rng = np.random.default_rng(0)
    for _ in range(3):
        infos = [world.info(index) for index in range(6)]
        qpos, qvel = (np.stack([info[key] for info in infos]) for key in ("qpos", "qvel"))
        actions = rng.uniform(-1.5, 1.5, (6, task.action_dim))
        goals = np.stack([info["goal"] for info in infos]) if task.domain == "antmaze" else None
        result = one_step(task, qpos, qvel, actions, goals=goals)
        outcome = world.step(actions, np.ones(6, bool))
        assert np.array_equal(result.observations, world.observe())
        assert np.array_equal(result.rewards, outcome.rewards)


def test_antmaze_rewards_need_a_goal():
    task = get("antmaze-medium-play-v2")
    qpos = np.tile([20.0, 20, 0.6, 1, 0, 0, 0, 0, 1, 0, -1, 0, -1, 0, 1], (3, 1))
    qvel, actions = np.zeros((3, 14)), np.zeros((3, 8))
    assert np.isnan(one_step(task, qpos, qvel, actions).rewards).all()
    assert one_step(task, qpos, qvel, actions, goals=np.array([20, 20.3])).rewards.tolist() == [1, 1, 1]
    goals = np.array([[20, 20], [20, 21], [19.8, 20]])
    assert one_step(task, qpos, qvel, actions, goals=goals).rewards.tolist() == [1, 0, 1]


@pytest.mark.parametrize("name", WORLDS)
def test_observations_tell_the_state_but_for_a_runners_x(name):
    task = get(name)
    world = create_world(task, 1)
    world.reset(0, np.random.default_rng(0))
    qpos, qvel = simulated_states(task, world.observe())
    info = world.info(0)
    if task.domain == "locomotion":
        assert qpos[0, 0] == 0
        info["qpos"][0] = 0
    assert np.array_equal(qpos[0], info["qpos"])
    assert np.array_equal(qvel[0], info["qvel"])


@pytest.mark.parametrize("name", WORLDS)
def test_the_simulator_behind_a_data_set_gives_next_observations(name):
    task = get(name)
    world = create_world(task, 5)
    for index in range(5):
        world.reset(index, np.random.default_rng(index))
    states, actions = world.observe(), np.random.default_rng(0).uniform(-1, 1, (5, task.action_dim))
    world.step(actions, np.ones(5, bool))
    for data_name in (name, f"{name}.hdf5", task.file_name):
        after = simulator(data_name)(states, actions)
        assert after == pytest.approx(world.observe(), abs=1e-9)  # x is 0 in one and not in the other
    single = simulator(name)(states.astype(np.float32), actions.astype(np.float32))
    assert single == pytest.approx(world.observe(), rel=1e-2, abs=1e-2)


def test_nobody_knows_what_follows_a_clipped_velocity():
    states = np.tile(np.concatenate([[1.25], np.zeros(16)]), (4, 1))
    states[1, 12], states[2, 15], states[3, 15] = 10, -10, 9.99
    for world, hidden in (("walker2d", [False, True, True, False]), ("halfcheetah", [False] * 4)):
        after = simulator(f"{world}-medium-v2")(states, np.zeros((4, 6)))
        assert np.isnan(after).all(1).tolist() == hidden
        assert np.isfinite(after).all(1).tolist() == [not h for h in hidden]


def test_there_is_no_simulator_for_kitchen_or_foreign_data():
    for name in ("kitchen-mixed-v0", TASKS["kitchen-partial-v0"].file_name, "hopper-expert-v2.hdf5", "my-robot.npz"):
        assert simulator(name) is None


def test_what_does_not_fit_is_refused():
    hopper = get("hopper-medium-v2")
    good = np.zeros((4, 6)), np.zeros((4, 6)), np.zeros((4, 3))
    with pytest.raises(DataError, match=r"hopper-medium-v2: qpos has shape \(4, 7\), expected \(4, 6\)"):
        one_step(hopper, np.zeros((4, 7)), *good[1:])
    with pytest.raises(DataError, match=r"actions has shape \(5, 3\), expected \(4, 3\)"):
        one_step(hopper, *good[:2], np.zeros((5, 3)))
    with pytest.raises(DataError, match=r"states have shape \(4, 12\), expected \[N, 11\]"):
        simulated_states(hopper, np.zeros((4, 12)))
    with pytest.raises(ConfigError, match=r"kitchen-mixed-v0.*cannot be replayed"):
        one_step(get("kitchen-mixed-v0"), *good)
