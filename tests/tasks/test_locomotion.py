import numpy as np
import pytest

import sageplan.tasks
from sageplan.errors import ConfigError
from sageplan.tasks.locomotion import KINDS, Locomotion, fallen, observation, reward

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

SIZES = {"hopper": (6, 3, 0.008), "halfcheetah": (9, 6, 0.05), "walker2d": (9, 6, 0.008)}  # nq = nv, actions, seconds


def started(name, count=1, seed=0):
    world = Locomotion(name, count)
    for index in range(count):
        world.reset(index, np.random.default_rng([seed, index]))
    return world


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


def test_observations_are_all_but_x_with_clipped_velocities(name):
    qpos, qvel = np.arange(6.0)[None], np.array([[-30, -10, -9, 5, 10.5, 12]])
    expected = [-30, -10, -9, 5, 10.5, 12] if name == "halfcheetah" else [-10, -10, -9, 5, 10, 10]
    assert observation(KINDS[name], qpos, qvel)[0].tolist() == [1, 2, 3, 4, 5, *expected]


def test_rewards_by_hand():
    speed, actions = np.array([2.0, -1.0]), np.array([[1.0, -0.5], [0, 0]])
    assert reward(KINDS["halfcheetah"], speed, actions) == pytest.approx([2 - 0.1 * 1.25, -1])
    for name in ("hopper", "walker2d"):
        assert reward(KINDS[name], speed, actions) == pytest.approx([2 + 1 - 0.001 * 1.25, -1 + 1])


def test_a_steps_reward_is_the_way_covered_in_it(name):
    world = started(name, 5)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x = [world.info(index)["qpos"][0] for index in range(5)]
        actions = rng.uniform(-1, 1, (5, SIZES[name][1]))
        rewards, _ = world.step(actions, np.ones(5, bool))
        speed = (np.array([world.info(index)["qpos"][0] for index in range(5)]) - x) / SIZES[name][2]
        assert rewards == pytest.approx(reward(KINDS[name], speed, actions), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "position", "velocity", "ends"),
    [
        ("hopper", {1: 0.701, 2: 0.199}, {}, False),
        ("hopper", {1: 0.7}, {}, True),
        ("hopper", {1: 9.0}, {}, False),
        ("hopper", {2: 0.2}, {}, True),
        ("hopper", {2: -0.2}, {}, True),
        ("hopper", {4: 99.9}, {3: -99.9}, False),
        ("hopper", {4: -100}, {}, True),
        ("hopper", {}, {0: 100}, True),
        ("hopper", {0: 1e6, 1: 200}, {}, False),  # x and height are not among the bounded entries
        ("hopper", {3: np.nan}, {}, True),
        ("walker2d", {1: 0.801, 2: 0.999}, {}, False),
        ("walker2d", {1: 0.8}, {}, True),
        ("walker2d", {1: 2.0}, {}, True),
        ("walker2d", {2: 1.0}, {}, True),
        ("walker2d", {2: -1.0}, {}, True),
        ("walker2d", {}, {4: 500}, False),
        ("walker2d", {2: np.nan}, {}, True),
        ("halfcheetah", {1: -5, 2: 7}, {3: 500}, False),
    ],
)
def test_ends(name, position, velocity, ends):
    size = SIZES[name][0]
    qpos, qvel = np.zeros((2, size)), np.zeros((2, size))
    qpos[:, 1] = 1.25
    for index, value in position.items():
        qpos[1, index] = value
    for index, value in velocity.items():
        qvel[1, index] = value
    assert fallen(name, qpos, qvel).tolist() == [False, ends]


def test_falling_over_terminates_on_the_very_step_with_its_reward():
    world = started("hopper")
    rewards = []
    for _ in range(200):
        reward_, terminated = world.step(np.ones((1, 3)), np.ones(1, bool))
        rewards.append(reward_[0])
        qpos, qvel = world.info(0)["qpos"][None], world.info(0)["qvel"][None]
        assert terminated[0] == fallen("hopper", qpos, qvel)[0]
        if terminated[0]:
            break
    assert terminated[0]
    assert rewards[-1] != 0


def test_starts_spread_as_gyms_do(name):
    world = started(name, 400)
    model = world._bodies.simulator.model
    infos = [world.info(index) for index in range(400)]
    off, qvel = np.stack([i["qpos"] for i in infos]) - model.qpos0, np.stack([i["qvel"] for i in infos])
    spread = 0.1 if name == "halfcheetah" else 0.005
    assert np.abs(off).max() <= spread
    assert off.std() == pytest.approx(spread / np.sqrt(3), rel=0.05)
    if name == "halfcheetah":
        assert np.abs(qvel).max() > 0.2
        assert qvel.std() == pytest.approx(0.1, rel=0.05)
    else:
        assert np.abs(qvel).max() <= spread
        assert qvel.std() == pytest.approx(spread / np.sqrt(3), rel=0.05)


def test_actions_are_clipped_before_they_act_and_cost(name):
    actions = np.linspace(-3, 3, SIZES[name][1])[None]
    wild, tame = started(name), started(name)
    for _ in range(5):
        a = wild.step(actions, np.ones(1, bool))
        b = tame.step(np.clip(actions, -1, 1), np.ones(1, bool))
        assert np.array_equal(a.rewards, b.rewards)
        assert np.array_equal(wild.observe(), tame.observe())


def test_what_is_not_live_does_not_move_and_earns_nothing(name):
    world = started(name, 3)
    before = world.observe()
    rewards, terminated = world.step(np.ones((3, SIZES[name][1])), np.array([True, False, True]))
    after = world.observe()
    assert np.array_equal(after[1], before[1])
    assert (after[[0, 2]] != before[[0, 2]]).any(1).all()
    assert rewards[1] == 0
    assert not terminated[1]


def test_a_simulation_that_breaks_down_ends_and_the_others_go_on(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log there
    world, intact = started(name, 3), started(name, 3)
    world._bodies.states[1, 4] = 1e11
    actions = np.zeros((3, SIZES[name][1]))
    rewards, terminated = world.step(actions, np.ones(3, bool))
    expected = intact.step(actions, np.ones(3, bool))
    assert terminated.tolist() == [False, True, False]
    assert rewards[1] == 0
    assert np.array_equal(rewards[[0, 2]], expected.rewards[[0, 2]])
    assert np.isfinite(world.observe()).all()


def test_unknown_runner():
    with pytest.raises(ConfigError, match=r"'biped'.*halfcheetah, hopper, walker2d"):
        Locomotion("biped", 1)


def test_d4rls_own_hopper_policy_earns_what_it_did_in_d4rl(d4rl_policy):
    """The official hopper-medium file: 1M rows in 2187 episodes, and a return of 1422 (σ 379) per episode.

    The return is what Decision Transformer's loader prints of that file, as several public copies of it record.
    """
    act, rng = d4rl_policy("hopper_medium"), np.random.default_rng(0)
    envs = sageplan.tasks.make_vector("hopper-medium-v2", 100, seeds=0)
    observations, _ = envs.reset()
    returns, lengths, done = np.zeros(100), np.zeros(100), np.zeros(100, bool)
    while not done.all():
        lengths += ~done
        observations, rewards, terminated, truncated, _ = envs.step(act(observations, rng))
        returns += rewards
        done = terminated | truncated
    assert returns.mean() == pytest.approx(1422, abs=3 * 379 / 10)
    assert lengths.mean() == pytest.approx(457, abs=40)
