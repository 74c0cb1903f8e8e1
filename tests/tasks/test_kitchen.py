"""Kitchen: D4RL's rules by hand, gymnasium-robotics' physics to the last bit."""

import sys

import numpy as np
import pytest

from sageplan.errors import ConfigError, MissingExtraError

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("gymnasium_robotics")

from sageplan.tasks import kitchen  # noqa: E402
from sageplan.tasks.kitchen import ELEMENTS, HIGHEST, LOWEST, NOISE, START, VARIANTS, Kitchen  # noqa: E402

LIVE = np.array([True])
STILL = np.zeros((1, 9))


def make(variant="partial", count=1, seed=0, **options):
    world = Kitchen(variant, count, **options)
    for index in range(count):
        world.reset(index, np.random.default_rng([seed, index]))
    return world


def at_goal(*names):
    positions = START.copy()
    for name in names:
        positions[ELEMENTS[name].where] = ELEMENTS[name].goal
    return positions


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(kitchen, "NOISE", np.zeros(30))


# ---- observations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "wanted"),
    [
        ("partial", {17: -0.69, 18: -0.05, 19: 0.37, 22: -0.75}),
        ("mixed", {11: -0.88, 12: -0.01, 17: -0.69, 18: -0.05, 22: -0.75}),
    ],
)
def test_an_observation_is_30_positions_and_30_goals(variant, wanted):
    observed = make(variant).observe()
    assert observed.shape == (1, 60)
    goal = np.zeros(30)
    goal[23:] = [-0.23, 0.75, 1.62, 0.99, 0, 0, -0.06]
    goal[list(wanted)] = list(wanted.values())
    np.testing.assert_array_equal(observed[0, 30:], goal)
    np.testing.assert_allclose(observed[0, :30], START, atol=0.011)


def test_the_noise_has_d4rls_amplitudes():
    world = make()
    rows = []
    for seed in range(400):
        world.reset(0, np.random.default_rng(seed))
        rows.append(world.observe()[0, :30] - START)
    largest = np.abs(rows).max(0)
    amplitude = [0.01] * 9 + [5e-4] * 2 + [5e-5] * 6 + [5e-4] * 3 + [0.01] * 3 + [5e-4] * 3 + [0.01] * 3 + [5e-4]
    assert (largest <= np.array(amplitude) * (1 + 1e-9)).all()
    assert (largest > 0.95 * np.array(amplitude)).all()
    assert np.abs(np.mean(rows, 0) / amplitude).max() < 0.15


def test_info_is_free_of_noise_and_a_copy():
    world = make()
    told = world.info(0)
    np.testing.assert_array_equal(told["qpos"], START)
    assert not told["qvel"].any()
    assert told["completed"] == []
    told["qpos"][:] = told["goal"][:] = 9
    world.observe()[:] = 9
    np.testing.assert_array_equal(world.info(0)["qpos"], START)
    assert world.observe()[0, 59] == -0.06


# ---- physics ---------------------------------------------------------------------------------------


def test_physics_are_those_of_gymnasium_robotics(quiet, monkeypatch):
    """Without the restored margins, to the last bit, over an episode that moves things."""
    from gymnasium_robotics.envs.franka_kitchen import KitchenEnv, franka_env

    # what 1.4.2 has here does not run on recent MuJoCo; of the arm's readings only these are used
    monkeypatch.setattr(franka_env, "robot_get_obs", lambda model, data, names: (data.qpos[:9] + 0, data.qvel[:9] + 0))
    other = KitchenEnv(tasks_to_complete=list(VARIANTS["partial"]), robot_noise_ratio=0.0, object_noise_ratio=0.0)
    other.reset(seed=0)
    world = make(legacy=False)
    rng, action, completed = np.random.default_rng(0), np.zeros(9), 0.0
    for _ in range(150):
        action = 0.9 * action + 0.4 * rng.standard_normal(9)
        _, reward, *_ = other.step(action)
        assert world.step(action[None], LIVE).rewards[0] == reward
        completed += reward
        told = world.info(0)
        np.testing.assert_array_equal(told["qpos"], other.data.qpos)
        np.testing.assert_array_equal(told["qvel"], other.data.qvel)
    assert completed == 1


def test_the_kettle_rests_where_d4rl_recorded_it(quiet):
    """Its start is a noisy reading of the settled scene: within the noise of ±0.0005 of the true height."""
    heights = {}
    for legacy in (True, False):
        world = make(legacy=legacy)
        for _ in range(25):
            world.step(STILL, LIVE)
        heights[legacy] = world.info(0)["qpos"][25]
    assert heights[True] == pytest.approx(START[25], abs=5e-4)
    added = tuple(int(part) for part in mujoco.__version__.split(".")[:2]) >= (3, 5)
    assert heights[False] == pytest.approx(
        START[25] if not added else heights[True] + 0.001, abs=5e-6 if added else 5e-4
    )


def test_restored_margins_are_the_larger_of_two():
    """Checked on every contact of a scene where the arm and things have been pushed about."""
    plain, world = kitchen._kitchen_model(False), make(count=4)
    rng, seen = np.random.default_rng(0), set()
    for _ in range(60):
        world.step(rng.choice([-1.0, 1.0], (4, 9)), np.ones(4, bool))
        for data in world._data:
            for contact in data.contact:
                wanted = plain.geom_margin[[contact.geom1, contact.geom2]].max()
                assert contact.includemargin == pytest.approx(wanted, abs=1e-12)
                seen.add((contact.geom1, contact.geom2))
    assert len(seen) > 5


def test_listed_pairs_are_those_without_a_margin_that_can_touch():
    """Of the arm's links, its stand and the floor: all but neighbours of the arm and what stands still."""
    model, plain = kitchen._kitchen_model(True), kitchen._kitchen_model(False)
    if not model.npair:
        pytest.skip("this MuJoCo takes the larger margin by itself")
    bodies = {plain.body(name).id: name for name in (f"panda0_link{number}" for number in range(8))}
    names = {g: bodies.get(plain.geom_bodyid[g], "still") for g in range(plain.ngeom)}
    fixed = ("still", "panda0_link0")
    listed = []
    for one, other in zip(model.pair_geom1, model.pair_geom2, strict=True):
        assert not plain.geom_margin[[one, other]].any()
        listed.append(tuple(sorted((names[one], names[other]))))
    moving = [f"panda0_link{number}" for number in range(1, 8)]
    wanted = [(a, b) for a in moving for b in moving if int(b[-1]) > int(a[-1]) + 1]
    wanted += [tuple(sorted((a, b))) for a in fixed for b in moving]
    assert set(listed) == set(wanted)
    # the floor and the stand both stand still; link 7 carries the hand, a second geom
    count = sum((2 if "still" in pair else 1) * (2 if "panda0_link7" in pair else 1) for pair in wanted)
    assert len(listed) == len(set(zip(model.pair_geom1.tolist(), model.pair_geom2.tolist(), strict=True))) == count
    link = next(g for g, name in names.items() if name == "panda0_link3" and plain.geom_contype[g])
    assert (model.pair_dim == plain.geom_condim[link]).all()
    assert not model.pair_margin.any()
    np.testing.assert_allclose(model.pair_friction, np.tile([1, 1, 0.005, 1e-4, 1e-4], (model.npair, 1)))
    np.testing.assert_array_equal(model.pair_solref, np.tile(plain.geom_solref[link], (model.npair, 1)))
    np.testing.assert_array_equal(model.pair_solimp, np.tile(plain.geom_solimp[link], (model.npair, 1)))


def test_actions_are_speeds_from_the_last_noisy_reading():
    world = make()
    reading = world.observe()[0, :9]
    actions = np.array([[0.5, -0.25, 0, 9, -9, 0, 0, -1, 1.0]])
    world.step(actions, LIVE)
    aim = reading + 0.08 * 2 * np.clip(actions[0], -1, 1)
    np.testing.assert_array_equal(world._data[0].ctrl, np.clip(aim, LOWEST, HIGHEST))
    assert world._data[0].ctrl[8] == 0.04
    assert world._data[0].time == pytest.approx(0.08)


# ---- rewards and ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_element_is_rewarded_once_and_the_last_one_ends_the_episode(variant, quiet):
    world = make(variant)
    wanted = VARIANTS[variant]
    for number, name in enumerate(wanted, 1):
        world.set_positions(0, at_goal(*wanted[:number]))
        assert world.info(0)["completed"] == list(wanted[: number - 1])
        outcome = world.step(STILL, LIVE)
        assert outcome.rewards.tolist() == [1.0], name
        assert outcome.terminated.tolist() == [number == 4]
        assert world.info(0)["completed"] == list(wanted[:number])
        assert world.step(STILL, LIVE).rewards.tolist() == [0.0]
    world.set_positions(0, START)
    assert len(world.info(0)["completed"]) == 4, "what was completed stays so when it is undone"
    world.reset(0, np.random.default_rng(0))
    assert world.info(0)["completed"] == []
    assert world.step(STILL, LIVE) == (0.0, False)


def test_several_at_once_and_elements_of_other_tasks(quiet):
    world = make("partial")
    world.set_positions(0, at_goal("bottom burner", "top burner", "hinge cabinet"))
    assert world.step(STILL, LIVE).rewards[0] == 0
    world.set_positions(0, at_goal("microwave", "light switch", "slide cabinet"))
    outcome = world.step(STILL, LIVE)
    assert (outcome.rewards[0], outcome.terminated[0]) == (3, False)


@pytest.mark.parametrize(("offset", "done"), [(0.29, True), (0.31, False)])
def test_nearer_than_three_tenths_counts_over_all_coordinates(offset, done, monkeypatch, quiet):
    world = make("partial")
    monkeypatch.setattr(world._mujoco, "mj_step", lambda *_: None)  # nothing moves between setting and judging
    for name, direction in (("microwave", [1.0]), ("kettle", np.array([0.6, 0, 0, 0, 0.8, 0, 0]))):
        positions = START.copy()
        positions[ELEMENTS[name].where] = ELEMENTS[name].goal + offset * np.array(direction)
        world.reset(0, np.random.default_rng(0))
        world.set_positions(0, positions)
        assert world.step(STILL, LIVE).rewards[0] == done


def test_completion_is_judged_by_what_is_observed(monkeypatch):
    """D4RL's rule: a microwave 0.305 from its goal counts when the noise (±0.01) makes it look nearer than 0.3."""
    world = make("partial")
    monkeypatch.setattr(world._mujoco, "mj_step", lambda *_: None)
    rewards, seen = [], []
    for seed in range(60):
        world.reset(0, np.random.default_rng(seed))
        positions = START.copy()
        positions[22] = -0.75 + 0.305
        world.set_positions(0, positions)
        rewards.append(world.step(STILL, LIVE).rewards[0])
        seen.append(world.observe()[0, 22] + 0.75 < 0.3)
    assert rewards == [float(near) for near in seen]
    assert 5 < sum(rewards) < 30


# ---- batches ---------------------------------------------------------------------------------------


def test_a_kitchen_is_the_same_alone_and_in_any_batch_order_and_number_of_threads():
    rng = np.random.default_rng(5)
    actions = rng.uniform(-1.2, 1.2, (25, 5, 9))
    order = np.array([3, 0, 4, 2, 1])
    together, shuffled = Kitchen("mixed", 5, threads=2), Kitchen("mixed", 5, threads=3)
    alone = [Kitchen("mixed", 1) for _ in range(5)]
    for index in (2, 0, 1, 4, 3):
        together.reset(index, np.random.default_rng(index))
        alone[index].reset(0, np.random.default_rng(index))
    for place, index in enumerate(order):
        shuffled.reset(place, np.random.default_rng(index))
    for step, action in enumerate(actions):
        if step == 12:  # a new episode knows nothing of the one before
            for world, place in ((together, 3), (shuffled, 0), (alone[3], 0)):
                world.reset(place, np.random.default_rng(99))
        outcome = together.step(action, np.ones(5, bool))
        again = shuffled.step(action[order], np.ones(5, bool))
        single = [world.step(action[[i]], LIVE) for i, world in enumerate(alone)]
        np.testing.assert_array_equal(outcome.rewards[order], again.rewards)
        np.testing.assert_array_equal(outcome.rewards, [s.rewards[0] for s in single])
        np.testing.assert_array_equal(together.observe()[order], shuffled.observe())
        np.testing.assert_array_equal(together.observe(), np.concatenate([world.observe() for world in alone]))
    for world in (together, shuffled, *alone):
        world.close()


def test_an_episode_after_another_is_as_if_it_were_the_first():
    used, new = make(seed=1), make(seed=1)
    for action in np.random.default_rng(0).uniform(-1, 1, (30, 1, 9)):
        used.step(action, LIVE)
    for world in (used, new):
        world.reset(0, np.random.default_rng(7))
    for action in np.random.default_rng(1).uniform(-1, 1, (30, 1, 9)):
        used.step(action, LIVE)
        new.step(action, LIVE)
    np.testing.assert_array_equal(used.observe(), new.observe())


def test_what_is_not_live_does_not_change():
    world = make(count=3)
    before = world.observe()
    outcome = world.step(np.ones((3, 9)), np.array([True, False, True]))
    assert np.array_equal(world.observe()[1], before[1])
    assert not np.array_equal(world.observe()[0], before[0])
    assert (outcome.rewards[1], outcome.terminated[1]) == (0, False)
    assert outcome.rewards.shape == outcome.terminated.shape == (3,)


def test_a_whole_episode_of_random_actions_is_finite():
    world = make("mixed", 2)
    for action in np.random.default_rng(0).uniform(-1, 1, (280, 2, 9)):
        world.step(action, np.ones(2, bool))
    assert np.isfinite(world.observe()).all()
    assert np.abs(world.observe()[:, :9] - START[:9]).max() > 0.1


# ---- pictures and bad input ------------------------------------------------------------------------


def test_a_picture_shows_what_moved_and_changes_nothing():
    world, twin = make(), make()
    first = world.render(0, 96, 64)
    assert (first.shape, first.dtype) == ((64, 96, 3), np.uint8)
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 100
    world.set_positions(0, at_goal("microwave"))
    changed = (world.render(0, 96, 64) != first).any(-1)
    assert changed[:, :48].sum() > 10 * changed[:, 48:].sum()  # the microwave stands on the left
    assert 0.01 < changed.mean() < 0.3
    for w in (world, twin):
        w.reset(0, np.random.default_rng(3))
    world.render(0, 32, 32)
    world.step(STILL, LIVE)
    twin.step(STILL, LIVE)
    np.testing.assert_array_equal(world.observe(), twin.observe())


def test_unknown_variant():
    with pytest.raises(ConfigError, match="no kitchen task 'complete'; choose one of partial, mixed"):
        Kitchen("complete", 1)


@pytest.mark.parametrize(("module", "package"), [("mujoco", "mujoco"), ("gymnasium_robotics", "gymnasium-robotics")])
def test_missing_packages_are_named(module, package, monkeypatch):
    kitchen._kitchen_model.cache_clear()
    if module == "mujoco":
        monkeypatch.setitem(sys.modules, module, None)
    else:
        monkeypatch.setattr(kitchen.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"Kitchen needs {package}: pip install 'sageplan\[tasks\]'"):
        Kitchen("partial", 1)


def test_noise_covers_every_position():
    assert NOISE.shape == START.shape == (30,)
