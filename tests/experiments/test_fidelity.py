"""The fidelity report on files and policies made here, so small that the numbers mean nothing and the rules show."""

import json

import h5py
import numpy as np
import pytest

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

from sageplan.errors import ConfigError, DataError, FormatError
from sageplan.experiments import differences, fidelity
from sageplan.experiments.behaviour import StoredPolicy, roll_out, towards, waypoint_returns
from sageplan.experiments.fidelity import Run, error_summary, replay_record, spread
from sageplan.tasks import get, make_vector
from sageplan.tasks.antmaze import AntMaze, cell_centre
from sageplan.tasks.locomotion import KINDS, load_model, observation
from sageplan.tasks.maze2d import Maze
from sageplan.tasks.replay import one_step

SIZES = {"hopper_medium": (11, 3), "halfcheetah_medium": (17, 6), "walker2d_medium": (17, 6), "ant_goal": (29, 8)}


def policy_file(path, inputs, outputs, log_std=-20.0, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"fc0": (16, inputs), "fc1": (16, 16), "last_fc": (outputs, 16), "last_fc_log_std": (outputs, 16)}
    arrays = {}
    for name, shape in shapes.items():
        arrays[f"{name}/weight"] = rng.normal(0, 0.3, shape).astype(np.float32)
        arrays[f"{name}/bias"] = rng.normal(0, 0.3, shape[0]).astype(np.float32)
    arrays["last_fc_log_std/weight"][:] = 0
    arrays["last_fc_log_std/bias"][:] = log_std
    np.savez(path, **arrays)
    return arrays


def write(path, columns, **attributes):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        file.update(columns)
    return path


def hopper_rows(count=60, seed=0):
    """Steps from scattered states; the last five end an episode, and the first three have clipped velocities."""
    rng, task = np.random.default_rng(seed), get("hopper-medium-v2")
    qpos = load_model("hopper", legacy=True).qpos0 + rng.uniform(-0.05, 0.05, (count, 6))
    qvel = rng.uniform(-1, 1, (count, 6))
    qvel[:3, 4] = 10
    actions = rng.uniform(-1, 1, (count, 3))
    after = one_step(task, qpos, qvel, actions)
    columns = {
        "observations": observation(KINDS["hopper"], qpos, qvel), "next_observations": after.observations,
        "actions": actions, "rewards": after.rewards, "infos/qpos": qpos, "infos/qvel": qvel,
    }  # fmt: skip
    terminals = np.arange(count) >= count - 5
    return columns | {"terminals": terminals, "timeouts": np.zeros(count, bool)}


def ant_rows(count=1005):
    """An ant under random actions that is reset after 1001 rows, though the file says two rows earlier."""
    world, rng = AntMaze("medium", 1), np.random.default_rng(0)
    rows = []
    for step in range(count):
        if step % 1001 == 0:
            world.reset(0, np.random.default_rng(step))
        actions = rng.uniform(-1, 1, (1, 8))
        rows.append((world.observe()[0].astype(np.float32), actions[0].astype(np.float32)))
        world.step(actions.astype(np.float32).astype(float), np.ones(1, bool))
        world._bodies.states[:] = world._bodies.states.astype(np.float32)
    observations, actions = (np.stack(part) for part in zip(*rows, strict=True))
    timeouts = np.arange(count) == 998
    never = np.zeros(count)
    return {"observations": observations, "actions": actions, "rewards": never, "terminals": never > 0} | {
        "timeouts": timeouts
    }


@pytest.fixture
def folders(tmp_path):
    """Samples, policies and regenerated data."""
    write(tmp_path / "samples" / "hopper_medium-v2.hdf5", hopper_rows())
    write(tmp_path / "samples" / "antmaze-medium-play-v0.hdf5", ant_rows(1003))
    write(tmp_path / "made" / "hopper-medium-v2.hdf5", hopper_rows(seed=1), description="made by hand")
    (tmp_path / "policies").mkdir()
    for name, (inputs, outputs) in SIZES.items():
        policy_file(tmp_path / "policies" / f"{name}.npz", inputs, outputs)
    return tmp_path


# ---- what acts ------------------------------------------------------------------------------------


def test_a_stored_policy_by_hand(tmp_path):
    arrays = policy_file(tmp_path / "p.npz", 5, 2)
    x = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    hidden = x
    for name in ("fc0", "fc1"):
        hidden = np.maximum(hidden @ arrays[f"{name}/weight"].T + arrays[f"{name}/bias"], 0)
    mean = np.tanh(hidden @ arrays["last_fc/weight"].T + arrays["last_fc/bias"])
    policy = StoredPolicy(tmp_path / "p.npz")
    assert policy(x, np.random.default_rng(0)) == pytest.approx(mean, abs=1e-6)
    policy_file(tmp_path / "q.npz", 5, 2, log_std=50.0)  # clipped to 2
    drawn = StoredPolicy(tmp_path / "q.npz")(x.repeat(2000, 0), np.random.default_rng(0)).astype(float)
    before_tanh = np.arctanh(np.clip(drawn, -1 + 1e-9, 1 - 1e-9))
    assert np.median(np.abs(before_tanh)) == pytest.approx(0.6745 * np.exp(2), rel=0.1)


def test_what_is_no_policy(tmp_path):
    np.savez(tmp_path / "p.npz", a=np.zeros(3))
    (tmp_path / "q.npz").write_text("nothing")
    for name in ("p", "q", "missing"):
        with pytest.raises(FormatError, match=rf"{name}.npz is not a stored policy"):
            StoredPolicy(tmp_path / f"{name}.npz")


def test_rolled_out_episodes_are_the_environments():
    task = get("hopper-medium-v2")
    found = roll_out(task, 3, 7, lambda *_: lambda observations: np.ones((len(observations), 3)))
    envs = make_vector(task, 3, seeds=7)
    envs.reset()
    returns, lengths, done = np.zeros(3), np.zeros(3), np.zeros(3, bool)
    while not done.all():
        lengths += ~done
        _, rewards, terminated, truncated, _ = envs.step(np.ones((3, 3)))
        returns += rewards
        done = terminated | truncated
    assert np.array_equal(found.returns, returns)
    assert np.array_equal(found.lengths, lengths)
    assert found.terminated.all()


def test_ants_are_sent_along_the_path_and_in_its_last_cell_to_the_goal():
    maze = Maze.named("medium")
    seen = []
    goals = np.array([[21.0, 20.5]]).repeat(3, 0)
    act = towards(maze, goals, lambda inputs, _: seen.append(inputs), np.random.default_rng(0))
    observations = np.zeros((3, 29))
    observations[:, 2] = 0.75
    observations[1, :2] = cell_centre(maze.goal) - 1
    observations[2, :2] = cell_centre([0, 0])  # in a wall: it goes where it was going
    act(observations)
    assert seen[0].shape == (3, 29)
    assert np.array_equal(seen[0][:, :27], observations[:, 2:])
    directions = seen[0][:, 27:]
    assert np.linalg.norm(directions, axis=1) == pytest.approx(10)
    assert sorted(np.abs(directions[0]).round(6)) == [0, 10]  # to a neighbour of the first cell
    for row in (1, 2):
        way = goals[row] - observations[row, :2]
        assert directions[row] == pytest.approx(10 * way / np.linalg.norm(way))


def test_a_path_per_episode_earns_more_than_one_that_is_kept():
    task = get("maze2d-umaze-v1")
    own, kept = waypoint_returns(task, 40, 0)
    assert own.min() > 100
    assert own.max() <= task.step_limit
    assert kept.mean() < own.mean() - 20
    assert np.array_equal(own, waypoint_returns(task, 40, 0)[0])


# ---- what is measured -----------------------------------------------------------------------------


def test_rows_are_replayed_with_both_physics_and_terminal_ones_too(tmp_path):
    record = replay_record(write(tmp_path / "hopper_medium-v2.hdf5", hopper_rows()))
    assert (record["rows"], record["rows_in_file"]) == (57, 60)
    assert record["legacy"]["max"] < 1e-9
    assert record["legacy"]["reward_max"] < 1e-9
    assert record["modern"]["median"] > 1e-4
    assert record["terminal"]["rows"] == 5
    assert record["notes"] == ["3 rows with velocities clipped at 10 are not replayed"]


def test_antmaze_version_0_is_cut_where_it_was_reset(tmp_path):
    record = replay_record(write(tmp_path / "antmaze-medium-play-v0.hdf5", ant_rows()))
    assert record["rows"] == 1003  # all but the rows before the reset and the end
    assert record["legacy"]["median"] < 1e-6
    assert record["legacy"]["max"] < 0.5  # no row leads from one episode into the next
    assert record["legacy"]["reward_median"] is None


def test_files_that_tell_no_task_are_refused(tmp_path):
    path = write(tmp_path / "kitchen-mixed-v0.hdf5", hopper_rows())
    with pytest.raises(
        ConfigError, match=r"kitchen-mixed-v0\.hdf5: its name does not tell a task that can be replayed"
    ):
        replay_record(path)


def test_errors_are_summed_up_with_infinite_ones():
    record = error_summary(np.array([1e-7, 1e-7, 2e-7, 2e-4, np.inf]), np.array([0, 1, np.nan, 2, np.nan]))
    assert record == {
        "median": 2e-7, "p95": np.inf, "max": np.inf, "large": 2, "broken_down": 1,
        "reward_median": 1, "reward_max": 2,
    }  # fmt: skip
    assert error_summary(np.ones(3), None)["reward_median"] is None


def test_spread():
    assert spread(np.array([1.0, 3.0])) == {"mean": 2, "std": 2**0.5, "standard_error": 1, "episodes": 2}


def test_touching_a_wall():
    states = np.zeros((2, 29))
    states[:] = [0, 0, 0.75, 1, 0, 0, 0, 0, 1, 0, -1, 0, -1, 0, 1] + [0] * 14
    states[1, 0] = -1.6  # a wall begins at −2
    touching = differences.touches_wall(get("antmaze-medium-play-v2"), states, np.zeros((2, 8)))
    assert touching.tolist() == [False, True]


# ---- the whole ------------------------------------------------------------------------------------


def test_the_report(folders, monkeypatch):
    for name, value in (("_STEPS", 20), ("_KITCHENS", 2), ("_KITCHEN_STEPS", 2)):
        monkeypatch.setattr(differences, name, value)
    out = folders / "docs" / "fidelity.md"
    run = Run(folders / "samples", folders / "policies", out, folders / "made", episodes=2, ant_episodes=2)
    run()
    page, record = out.read_text(), json.loads(out.with_suffix(".json").read_text())
    assert str(folders) not in page
    assert str(folders) not in json.dumps(record)
    assert "--samples samples --policies policies --data made --out fidelity.md" in page
    assert [entry["file"] for entry in record["replay_real"]] == [
        "antmaze-medium-play-v0.hdf5", "hopper_medium-v2.hdf5",
    ]  # fmt: skip
    (made,) = record["replay_regenerated"]
    assert made["origin"] == "made by hand"
    median = record["replay_real"][1]["legacy"]["median"]
    assert f"| hopper_medium-v2 | 57 of 60 | **{median:.1e}** |" in page
    hopper = record["returns"][0]
    assert f"| hopper-medium-v2 | 2 | **{hopper['return']['mean']:,.0f} ± " in page
    assert hopper["published"]["length"]["mean"] == pytest.approx(457.2, abs=0.1)
    assert record["top_speed"]["simulated"] == pytest.approx(record["top_speed"]["published"], abs=1e-7)
    assert len(record["maze2d"]) == 3
    for heading in ("One step from recorded states", "Returns of D4RL's own policies", "What is known to differ"):
        assert f"## {heading}\n" in page
    for known in ("AntMaze's contacts", "Warm start", "Kitchen's contacts", "Maze2D reference maxima", "Terminal"):
        assert f"- **{known}" in page
    assert abs(hopper["standard_errors_apart"]) > 2
    assert f"hopper-medium-v2 is {100 * (hopper['return']['mean'] / 1422.06 - 1):+.1f} % off" in page


def test_regenerated_files_do_not_pass_for_real_ones(folders):
    with pytest.raises(DataError, match=r"is not from D4RL: it says of itself 'made by hand'; put it among --data"):
        Run(folders / "made", folders / "policies", folders / "out.md")()


def test_what_is_missing_is_named(folders):
    (folders / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty holds no \.hdf5 file"):
        Run(folders / "empty", folders / "policies", folders / "out.md")()
    with pytest.raises(ConfigError, match="at least 2 episodes"):
        Run(folders / "samples", folders / "policies", folders / "out.md", episodes=1)()
    assert fidelity.PUBLISHED_RETURNS.keys() == {f"{name}-medium-v2" for name in fidelity.RUNNERS}
