import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sageplan.errors import ConfigError, DataError
from sageplan.tasks import get, make, make_vector

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

WORLDS = ("hopper-medium-v2", "halfcheetah-medium-v2", "walker2d-medium-v2", "antmaze-medium-play-v2",
          "maze2d-umaze-v1")  # fmt: skip


def actions_of(task, seed, number, steps):
    """What environment `seed` does in its episode `number`."""
    return np.random.default_rng([seed, number]).uniform(-1, 1, (steps, task.action_dim))


def alone(task, seed, number, steps):
    """Observations [≤ steps + 1, S] and rewards of one episode in an environment of its own."""
    env = make(task)
    observation, _ = env.reset(seed=seed)
    for _ in range(number):
        observation, _ = env.reset()
    observations, rewards = [observation], []
    for action in actions_of(task, seed, number, steps):
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            break
    return np.array(observations), np.array(rewards)


@settings(max_examples=12)
@given(
    name=st.sampled_from(WORLDS),
    seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=6, unique=True),
    lengths=st.lists(st.integers(1, 12), min_size=6, max_size=6),
)
def test_an_episode_is_the_same_alone_and_in_any_vector_at_any_time(name, seeds, lengths):
    """Every environment goes through episodes of its own length, so that others are always at other places."""
    task, count, steps = get(name), len(seeds), 30
    envs = make_vector(task, count, seeds)
    observations, _ = envs.reset()
    number, at = np.zeros(count, int), np.zeros(count, int)
    seen = [([row], []) for row in observations]

    def check(index):
        expected, earned = alone(task, seeds[index], int(number[index]), at[index])
        assert np.array_equal(np.array(seen[index][0]), expected)
        assert np.array_equal(seen[index][1], earned)

    for _ in range(steps):
        actions = np.stack([actions_of(task, seeds[i], number[i], at[i] + 1)[-1] for i in range(count)])
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        at += 1
        for index in range(count):
            seen[index][0].append(observations[index])
            seen[index][1].append(rewards[index])
        over = terminated | truncated | (at >= lengths[:count])
        if over.any():
            for index in np.flatnonzero(over):
                check(index)
            observations, _ = envs.reset(options={"reset_mask": over})
            number[over] += 1
            at[over] = 0
            for index in np.flatnonzero(over):
                seen[index] = ([observations[index]], [])
    for index in range(count):
        check(index)


@pytest.mark.parametrize("name", WORLDS)
def test_one_number_seeds_like_gymnasiums_vectors_and_a_reset_can_seed_anew(name):
    first, _ = make_vector(name, 4, 10).reset()
    assert np.array_equal(make_vector(name, 4, [10, 11, 12, 13]).reset()[0], first)
    assert np.array_equal(make_vector(name, 2, [13, 10]).reset()[0], first[[3, 0]])
    other = make_vector(name, 4)
    assert not np.array_equal(other.reset()[0], first)
    assert np.array_equal(other.reset(seed=10)[0], first)
    second, _ = other.reset()
    assert (second != first).any(1).all()
    mask = np.array([False, True, False, True])
    mixed, _ = other.reset(seed=10, options={"reset_mask": mask})
    assert np.array_equal(mixed, np.where(mask[:, None], first, second))
    spaced = gymnasium.vector.SyncVectorEnv([lambda: make(name)] * 4)
    assert np.array_equal(spaced.reset(seed=10)[0], first)


@pytest.mark.parametrize("name", [*WORLDS, "kitchen-partial-v0"])
def test_it_steps_like_gymnasiums_own_vector_of_the_same_task(name):
    task = get(name)
    if task.domain == "kitchen":
        pytest.importorskip("gymnasium_robotics")
    ours = make_vector(name, 3, 0)
    theirs = gymnasium.vector.SyncVectorEnv([lambda: make(name)] * 3)
    ours.reset()
    theirs.reset(seed=0)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    for action in np.random.default_rng(0).uniform(-0.3, 0.3, (8, 3, task.action_dim)):
        a, b = ours.step(action), theirs.step(action)
        for mine, other in zip(a[:4], b[:4], strict=True):
            assert np.array_equal(mine, other)
            assert mine.dtype == other.dtype
        assert set(a[4]) <= set(b[4])
        for key, values in a[4].items():
            assert np.array_equal(values, b[4][key])


def test_what_has_ended_is_frozen_until_it_is_reset():
    envs = make_vector("walker2d-medium-v2", 6, 0)
    envs.reset()
    rng = np.random.default_rng(0)
    frozen = {}
    for _ in range(300):
        observations, rewards, terminated, truncated, infos = envs.step(rng.uniform(-1, 1, (6, 6)))
        assert not truncated.any()
        for index, (observation, at) in frozen.items():
            assert np.array_equal(observations[index], observation)
            assert rewards[index] == 0
            assert terminated[index]
            assert np.array_equal(envs.info(index)["qpos"], at)
        new = [i for i in np.flatnonzero(terminated) if i not in frozen]
        for index in new:
            assert infos["_qpos"][index]
            frozen[index] = observations[index], infos["qpos"][index]
        assert ("qpos" in infos) == bool(new)
        if terminated.all():
            break
    assert terminated.all()
    mask = np.arange(6) % 2 == 0
    again, infos = envs.reset(options={"reset_mask": mask})
    assert infos["_qpos"].tolist() == mask.tolist()
    assert np.array_equal(again[~mask], observations[~mask])
    assert (again[mask] != observations[mask]).any(1).all()
    _, rewards, terminated, _, _ = envs.step(np.zeros((6, 6)))
    assert terminated.tolist() == (~mask).tolist()
    assert (rewards != 0).tolist() == mask.tolist()


def test_time_limits_count_for_each_environment_from_its_own_start():
    envs = make_vector("maze2d-umaze-v1", 2, 0, max_episode_steps=5)
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros((2, 2)))
    envs.reset(options={"reset_mask": np.array([False, True])})
    ends = [envs.step(np.zeros((2, 2)))[3].tolist() for _ in range(6)]
    assert ends == [[False, False], [True, False], [True, False], [True, False], [True, True], [True, True]]


def test_maze2d_counts_both_returns_and_stops_counting_at_the_end():
    envs = make_vector("maze2d-umaze-v1", 3, 0, max_episode_steps=4)
    envs.reset()
    at_goal, away = [1.0, 1, 0, 0], [3.0, 1, 0, 0]
    rows = [(at_goal, away, away), (away, away, at_goal), (away, away, at_goal), (away, at_goal, away), (at_goal,) * 3]
    for states in rows:
        envs._episodes.world._balls.set_state(np.array(states))
        *_, infos = envs.step(np.zeros((3, 2)))
    assert infos["occupancy"].tolist() == [1, 1, 2]
    assert infos["sticky_return"].tolist() == [4, 1, 3]
    assert infos["_occupancy"].all()


def test_every_environment_has_a_goal_of_its_own():
    envs = make_vector("antmaze-large-diverse-v2", 5, 0)
    _, infos = envs.reset()
    assert infos["goal"].shape == (5, 2)
    assert len({tuple(goal) for goal in infos["goal"]}) == 5
    _, again = envs.reset(options={"reset_mask": np.array([True, False, False, False, True])})
    assert again["_goal"].tolist() == [True, False, False, False, True]
    assert (again["goal"][[0, 4]] != infos["goal"][[0, 4]]).all()


def test_gymnasiums_make_vec_makes_it_and_knows_that_nothing_resets_by_itself():
    envs = gymnasium.make_vec("sageplan/hopper-medium-v2", 3, vectorization_mode="vector_entry_point")
    assert type(envs).__name__ == "D4RLVectorEnv"
    assert envs.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.DISABLED
    assert np.array_equal(envs.reset(seed=4)[0], make_vector("hopper-medium-v2", 3, 4).reset()[0])
    envs.close()


def test_pictures_of_all():
    envs = make_vector("maze2d-umaze-v1", 2, 0, render_mode="rgb_array")
    envs.reset()
    first, second = envs.render()
    assert first.shape == (480, 480, 3)
    assert (first != second).any()
    with pytest.raises(ConfigError, match=r"made without render_mode='rgb_array'"):
        make_vector("maze2d-umaze-v1", 2).render()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match=r"hopper-medium-v2: 0 environments were asked for"):
        make_vector("hopper-medium-v2", 0)
    with pytest.raises(ConfigError, match=r"2 seeds were given for 3 environments"):
        make_vector("hopper-medium-v2", 3, [1, 2])
    with pytest.raises(ConfigError, match=r"seed -1 is negative"):
        make_vector("hopper-medium-v2", 3, -1)
    with pytest.raises(ConfigError, match=r"did you mean 'hopper-medium-v2'"):
        make_vector("hoper-medium-v2", 3)
    envs = make_vector("hopper-medium-v2", 3, 0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(np.zeros((3, 3)))
    envs.reset()
    before = envs._episodes.world.observe()
    with pytest.raises(DataError, match=r"actions have shape \(2, 3\), expected \(3, 3\)"):
        envs.step(np.zeros((2, 3)))
    actions = np.zeros((3, 3))
    actions[2, 1] = np.nan
    with pytest.raises(DataError, match=r"the action of environment 2 is nan in entry 1"):
        envs.step(actions)
    for mask in (np.ones(2, bool), np.ones(3), [0, 1]):
        with pytest.raises(DataError, match=r"reset_mask is an array .* expected \(3,\) of bool"):
            envs.reset(options={"reset_mask": mask})
    assert np.array_equal(envs._episodes.world.observe(), before)


def test_a_seed_of_none_goes_on_with_the_one_there_is():
    first, second = (
        make_vector("maze2d-umaze-v1", 3, seeds=[5, 6, 7]),
        make_vector("maze2d-umaze-v1", 3, seeds=[1, 6, 2]),
    )
    first.reset(), second.reset()
    a, _ = first.reset(seed=[1, None, 2])
    assert np.array_equal(a[1], second.reset()[0][1])  # the second episode of seed 6
    again = make_vector("maze2d-umaze-v1", 3, seeds=[1, 6, 2]).reset()[0]
    assert np.array_equal(a[[0, 2]], again[[0, 2]])
