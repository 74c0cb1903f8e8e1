import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sageplan.tasks import antmaze, bodies, locomotion
from sageplan.tasks.bodies import Bodies, Simulator
from sageplan.tasks.maze2d import Maze

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

WALKER = locomotion.load_model("walker2d", legacy=True)
ANT = antmaze.load_model(Maze.named("umaze"), legacy=True)


def random_batch(model, count, seed):
    rng = np.random.default_rng(seed)
    qpos = model.qpos0 + 0.2 * rng.standard_normal((count, model.nq))
    states = np.concatenate([qpos, rng.standard_normal((count, model.nv))], 1)
    return states, rng.uniform(-1, 1, (count, model.nu))


@settings(max_examples=15)
@given(
    model=st.sampled_from([WALKER, ANT]),
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 40),
    threads=st.integers(1, 3),
    data=st.data(),
)
def test_a_step_does_not_depend_on_batch_order_or_threads(model, seed, count, threads, data):
    states, controls = random_batch(model, 40, seed)
    chosen = data.draw(st.permutations(range(40)))[:count]
    together = Simulator(model, 4, nthread=2).advance(states, controls)
    assert np.array_equal(
        Simulator(model, 4, nthread=threads).advance(states[chosen], controls[chosen]), together[chosen]
    )


def test_nothing_is_carried_over_from_call_to_call():
    states, controls = random_batch(ANT, 30, 0)
    used = Simulator(ANT, 5, nthread=1)
    first = used.advance(states, controls)
    used.advance(*random_batch(ANT, 30, 1))
    assert np.array_equal(used.advance(states, controls), first)


def test_large_batches_are_advanced_in_chunks_to_the_same_end(monkeypatch):
    states, controls = random_batch(WALKER, 50, 0)
    whole = Simulator(WALKER, 4, nthread=1).advance(states, controls)
    monkeypatch.setattr(bodies, "_CHUNK_ROWS", 7)
    assert np.array_equal(Simulator(WALKER, 4, nthread=1).advance(states, controls), whole)


def test_a_step_is_frame_skip_steps_of_mujoco_under_one_control():
    import mujoco

    states, controls = random_batch(WALKER, 3, 0)
    after = Simulator(WALKER, 4, nthread=1).advance(states, controls)
    for state, control, expected in zip(states, controls, after, strict=True):
        data = mujoco.MjData(WALKER)
        data.qpos[:], data.qvel[:], data.ctrl[:] = state[: WALKER.nq], state[WALKER.nq :], control
        mujoco.mj_step(WALKER, data, 4)
        assert np.array_equal(np.concatenate([data.qpos, data.qvel]), expected)
    assert Simulator(WALKER, 4, nthread=1).step_time == pytest.approx(0.008)


@pytest.mark.parametrize("frame_skip", [1, 4])
def test_what_mujoco_gives_up_on_is_nan_and_harms_no_other(monkeypatch, tmp_path, frame_skip):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log there
    states, controls = random_batch(WALKER, 4, 0)
    expected = Simulator(WALKER, frame_skip, nthread=1).advance(states, controls)
    states[1, 3], states[2, 4] = np.nan, 1e11
    after = Simulator(WALKER, frame_skip, nthread=1).advance(states, controls)
    assert np.isnan(after[1:3]).all()
    assert np.array_equal(after[[0, 3]], expected[[0, 3]])


def test_bodies_that_are_not_live_or_lost_stay_where_they_were(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    batch = Bodies(WALKER, 4, 4)
    batch.states[:], controls = random_batch(WALKER, 4, 0)
    batch.states[2, 4] = 1e11
    before = batch.states.copy()
    lost = batch.step(controls, np.array([True, False, True, True]))
    assert lost.tolist() == [False, False, True, False]
    assert np.array_equal(batch.states[1:3], before[1:3])
    alone = Simulator(WALKER, 4, nthread=1).advance(before[[0, 3]], controls[[0, 3]])
    assert np.array_equal(batch.states[[0, 3]], alone)
