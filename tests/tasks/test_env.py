import importlib
import subprocess
import sys
import warnings

import numpy as np
import pytest

import sageplan.tasks
from sageplan.errors import ConfigError, DataError, MissingExtraError
from sageplan.tasks import TASKS, get, make

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

WORLDS = ("hopper-medium-v2", "halfcheetah-medium-v2", "walker2d-medium-v2", "antmaze-medium-play-v2",
          "maze2d-umaze-v1")  # fmt: skip


def needs(task):
    if task.domain == "kitchen":
        pytest.importorskip("gymnasium_robotics")


def episode(env, seed=None, steps=20):
    """Observations, rewards and ends under actions that depend on nothing but the step."""
    rng = np.random.default_rng(99)
    rows = [(*env.reset(seed=seed)[0], 0.0, False, False)]
    for _ in range(steps):
        observation, *outcome, _ = env.step(rng.uniform(-1, 1, env.action_space.shape))
        rows.append((*observation, *outcome))
        if outcome[1] or outcome[2]:
            break
    return np.array(rows, np.float64)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_resets_steps_and_renders(name):
    task = get(name)
    needs(task)
    env = gymnasium.make(f"sageplan/{name}", render_mode="rgb_array")
    assert env.observation_space.shape == (task.state_dim,)
    assert env.action_space == gymnasium.spaces.Box(-1, 1, (task.action_dim,), np.float32)
    assert env.spec.max_episode_steps == task.step_limit
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert isinstance(info, dict)
    for _ in range(3):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert np.isfinite(observation).all()
        assert isinstance(reward, float)
        assert (terminated, truncated) == (False, False)
    picture = env.render()
    assert picture.shape == (480, 480, 3)
    assert picture.dtype == np.uint8
    assert picture.std() > 10
    env.close()


@pytest.mark.parametrize("name", [*WORLDS, "kitchen-mixed-v0"])
def test_gymnasiums_own_checks_pass(name):
    from gymnasium.utils.env_checker import check_env

    needs(get(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unbounded observations
        check_env(make(name, render_mode="rgb_array"))


@pytest.mark.parametrize("name", WORLDS)
def test_the_same_seed_gives_the_same_episodes(name):
    a, b, c = make(name), gymnasium.make(f"sageplan/{name}"), make(name)
    first = episode(a, seed=7)
    second = episode(a)
    assert not np.array_equal(second[0], first[0])
    assert np.array_equal(episode(b, seed=7), first)
    c.reset(seed=3)
    c.step(np.zeros(get(name).action_dim))
    assert np.array_equal(episode(c, seed=7), first)  # whatever went before
    assert np.array_equal(episode(c), second)
    assert not np.array_equal(episode(c, seed=8)[0], first[0])


def test_without_a_seed_every_environment_is_another_and_can_be_repeated():
    env = make("hopper-medium-v2")
    observation, _ = env.reset()
    assert not np.array_equal(make("hopper-medium-v2").reset()[0], observation)
    assert np.array_equal(make("hopper-medium-v2").reset(seed=env.np_random_seed)[0], observation)


def test_an_episode_is_cut_at_the_step_limit():
    for name in ("halfcheetah-medium-v2", "maze2d-umaze-v1"):
        for env in (make(name), gymnasium.make(f"sageplan/{name}")):
            env.reset(seed=0)
            ends = []
            for _ in range(get(name).step_limit):
                *_, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape))
                assert not terminated
                ends.append(truncated)
            assert ends == [False] * (len(ends) - 1) + [True]


def test_falling_ends_an_episode_and_steps_without_one_are_refused():
    env = make("walker2d-medium-v2")
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"walker2d-medium-v2.*call reset\(\) first"):
        env.step(np.zeros(6))
    rows = episode(env, seed=0, steps=999)
    assert 2 < len(rows) < 999
    assert rows[-1, -2:].tolist() == [True, False]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(6))
    env.reset()
    env.step(np.zeros(6))


def test_maze2d_reports_both_returns():
    env = make("maze2d-umaze-v1")
    env.reset(seed=0)
    place, goal = env.unwrapped._episodes.world._balls.set_state, np.array([1.0, 1.0])
    path = [0.0, 2.0, 0.0, 0.0, 1.0, 0.1]  # distances from the goal
    rewards, infos = [], []
    for distance in path:
        place(np.array([[goal[0], goal[1] + distance, 0, 0]]))
        _, reward, _, _, info = env.step(np.zeros(2))
        rewards.append(reward)
        infos.append((info["occupancy"], info["sticky_return"]))
    assert rewards == [1, 0, 1, 1, 0, 1]
    assert infos == [(1, 1), (1, 2), (2, 3), (3, 4), (3, 5), (4, 6)]
    _, info = env.reset()
    assert (info["occupancy"], info["sticky_return"]) == (0, 0)
    assert info["goal"].tolist() == [1, 1]
    place(np.array([[3.0, 1.0, 0, 0]]))
    _, _, _, _, info = env.step(np.zeros(2))
    assert (info["occupancy"], info["sticky_return"]) == (0, 0)


@pytest.mark.parametrize("name", WORLDS)
def test_info_tells_the_state_and_is_the_callers_own(name):
    env = make(name)
    _, info = env.reset(seed=0)
    assert np.isfinite(info["qpos"]).all()
    for value in info.values():
        if isinstance(value, np.ndarray):
            value[:] = 99
    fresh = make(name)
    fresh.reset(seed=0)
    action = np.zeros(get(name).action_dim)
    observation = env.step(action)[0]
    assert np.array_equal(observation, fresh.step(action)[0])
    observation[:] = 99
    assert np.array_equal(env.step(action)[0], fresh.step(action)[0])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(4), r"hopper-medium-v2: the action has shape \(4,\), expected \(3,\)"),
        (np.zeros((1, 3)), r"the action has shape \(1, 3\)"),
        (0.5, r"the action has shape \(\)"),
        ([0, np.nan, 0], r"the action of environment 0 is nan in entry 1"),
        ([0, 0, -np.inf], r"is -inf in entry 2"),
        (["a", "b", "c"], "actions cannot be read as an array of numbers"),
    ],
)
def test_actions_that_make_no_sense_are_refused_and_change_nothing(action, message):
    env, twin = make("hopper-medium-v2"), make("hopper-medium-v2")
    env.reset(seed=0)
    twin.reset(seed=0)
    with pytest.raises(DataError, match=message):
        env.step(action)
    assert np.array_equal(env.step(np.zeros(3))[0], twin.step(np.zeros(3))[0])


def test_actions_beyond_the_bounds_are_clipped():
    env, twin = make("hopper-medium-v2"), make("hopper-medium-v2")
    env.reset(seed=0)
    twin.reset(seed=0)
    a, b = env.step([5, -5, 0]), twin.step([1, -1, 0])
    assert np.array_equal(a[0], b[0])
    assert a[1] == b[1]


def test_names():
    assert sageplan.tasks.list() == list(TASKS)
    assert len(TASKS) == 18
    assert make("hopper-medium").task is get("hopper-medium-v2")
    with pytest.raises(ConfigError, match="there is no task 'hoper-medium-v2'; did you mean 'hopper-medium-v2'"):
        make("hoper-medium-v2")


def test_pictures_must_be_asked_for():
    with pytest.raises(ConfigError, match=r"no render_mode 'human'; choose 'rgb_array'"):
        make("maze2d-umaze-v1", render_mode="human")
    env = make("maze2d-umaze-v1")
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"made without render_mode='rgb_array'"):
        env.render()
    with pytest.raises(gymnasium.error.ResetNeeded):
        make("maze2d-umaze-v1", render_mode="rgb_array").render()
    env = make("maze2d-umaze-v1", render_mode="rgb_array", width=64, height=48)
    env.reset(seed=0)
    assert env.render().shape == (48, 64, 3)


@pytest.mark.parametrize(("name", "steps"), [("hopper-medium-v2", 1), ("kitchen-mixed-v0", 5)])
def test_modern_physics_can_be_asked_for(name, steps):
    needs(get(name))
    legacy, modern = episode(make(name), 0, steps), episode(make(name, legacy=False), 0, steps)
    assert np.array_equal(legacy[0], modern[0])
    assert 1e-4 < np.abs(legacy[-1] - modern[-1]).max() < 1


def test_without_gymnasium_the_package_works_and_tasks_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    fresh = importlib.reload(sageplan.tasks)
    assert len(fresh.list()) == 18
    for build in (fresh.make, lambda name: fresh.make_vector(name, 2)):
        with pytest.raises(MissingExtraError, match=r"needs gymnasium: pip install 'sageplan\[tasks\]'"):
            build("hopper-medium-v2")


def test_gymnasium_finds_tasks_by_their_module_alone():
    program = (
        'import gymnasium; print(gymnasium.make("sageplan.tasks:sageplan/maze2d-umaze-v1").reset(seed=0)[0].shape)'
    )
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "(4,)"
