"""What `check` says about files made here, about real rows where they are at hand, and about files that are broken."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import h5py
import numpy as np
import pytest

import sageplan.data
from sageplan.data import agreement, examine
from sageplan.data.examine import check, origin
from sageplan.data.official import FACTS, Facts
from sageplan.errors import ConfigError, DataError, FormatError, MissingExtraError
from sageplan.tasks.catalogue import TASKS

SAMPLES = Path(__file__).parents[2].parent / "shared" / "d4rl" / "samples"
SIZES = {"hopper": (11, 3, 6, 6), "halfcheetah": (17, 6, 9, 9), "antmaze": (29, 8, 15, 14), "maze2d": (4, 2, 2, 2)}


def flags(rows, *true):
    array = np.zeros(rows, np.bool_)
    array[list(true)] = True
    return array


def content(kind="hopper", rows=40, seed=0, **replaced):
    """Rows of an invented world: the state drifts, and what one step makes of it is `invented`."""
    state_dim, action_dim, nq, nv = SIZES[kind]
    rng = np.random.default_rng(seed)
    qpos = np.cumsum(0.01 * rng.standard_normal((rows, nq)), 0)
    qvel = 0.1 * rng.standard_normal((rows, nv))
    observations = np.concatenate([qpos, qvel], 1)[:, -state_dim:]
    actions = rng.uniform(-1, 1, (rows, action_dim))
    full = {
        "observations": observations,
        "actions": actions,
        "rewards": invented_reward(actions),
        "terminals": flags(rows),
        "timeouts": flags(rows, rows - 1),
        "infos/qpos": qpos,
        "infos/qvel": qvel,
    }
    return {key: array for key, array in (full | replaced).items() if array is not None}


def invented_reward(actions):
    return 2 + 0.5 * actions.sum(1)


def chain(columns):
    """Let every row follow from the one before in the invented world."""
    size = columns["observations"].shape[1]
    for row in range(1, len(columns["actions"])):
        state = columns["qpos+qvel"][row - 1]
        columns["qpos+qvel"][row] = state + 0.01 * columns["actions"][row - 1].sum()
    columns["observations"][:] = columns["qpos+qvel"][:, -size:]


def coherent(kind="hopper", rows=40, **replaced):
    columns = content(kind, rows)
    nq = columns["infos/qpos"].shape[1]
    columns["qpos+qvel"] = np.concatenate([columns["infos/qpos"], columns["infos/qvel"]], 1)
    chain(columns)
    joined = columns.pop("qpos+qvel")
    columns["infos/qpos"], columns["infos/qvel"] = joined[:, :nq], joined[:, nq:]
    return {key: array for key, array in (columns | replaced).items() if array is not None}


def write(path, columns, **attributes):
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        for key, array in columns.items():
            file.create_dataset(key, data=array)
    return path


@pytest.fixture
def world(monkeypatch):
    """The invented world in the place of the simulator; remembers what it was asked."""
    asked = SimpleNamespace(calls=[])

    def one_step(task, qpos, qvel, actions, *, legacy=True):
        asked.calls.append((task, qpos, qvel, actions))
        after = np.concatenate([qpos, qvel], 1).astype(float) + 0.01 * actions.sum(1, keepdims=True)
        return SimpleNamespace(observations=after[:, -task.state_dim :], rewards=invented_reward(actions))

    module = ModuleType("sageplan.tasks.replay")
    module.one_step = one_step
    monkeypatch.setitem(sys.modules, "sageplan.tasks.replay", module)
    return asked


# ---- counts ----------------------------------------------------------------------------------------


def test_a_report_of_a_small_file(tmp_path, world):
    columns = coherent(rows=40, terminals=flags(40, 9), timeouts=flags(40, 29))
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns))
    assert (report.file, report.task, report.rows, report.episodes) == (
        "hopper-medium-v2.hdf5",
        "hopper-medium-v2",
        40,
        3,
    )
    assert report.shapes["observations"] == [40, 11]
    assert report.shapes["infos/qpos"] == [40, 6]
    assert (report.lengths.min, report.lengths.median, report.lengths.max) == (10, 10, 20)
    sums = [columns["rewards"][a:b].sum() for a, b in ((0, 10), (10, 30), (30, 40))]
    assert report.returns.mean == pytest.approx(np.mean(sums))
    assert report.returns.std == pytest.approx(np.std(sums))
    assert report.scores.max == pytest.approx(TASKS["hopper-medium-v2"].normalise(max(sums)))
    flagged = report.boundaries
    assert (flagged.terminals, flagged.timeouts, flagged.both, flagged.across) == (1, 1, 0, 2)
    assert not flagged.last_row_flagged
    assert report.nan == report.constant == {}
    assert report.bytes == (tmp_path / "hopper-medium-v2.hdf5").stat().st_size
    assert sageplan.data.check(tmp_path / "hopper-medium-v2.hdf5") == report


def test_json_holds_everything_and_no_nan(tmp_path, world):
    columns = coherent()
    columns["rewards"][:] = np.nan
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns))
    record = report.to_json()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert sorted(record) == sorted(report.__dataclass_fields__)
    assert sorted(record["replay"]) == ["median", "p95", "reward_median", "rows"]
    assert record["replay"]["reward_median"] is None
    assert record["nan"] == {"rewards": 40}


def test_an_infinite_error_is_null_in_json(tmp_path, world, monkeypatch):
    broken = lambda task, qpos, *_, **__: SimpleNamespace(observations=np.full((len(qpos), 11), np.nan), rewards=np.ones(len(qpos)))  # fmt: skip  # noqa: E501, E731
    monkeypatch.setattr(sys.modules["sageplan.tasks.replay"], "one_step", broken)
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", coherent()))
    assert report.replay.median == np.inf
    assert report.to_json()["replay"]["median"] is None
    assert any("broke down in 39 of 39" in note for note in report.notes)


def test_nan_is_reported_and_left_out_not_an_error(tmp_path, world):
    columns = coherent()
    columns["observations"][7, 3] = np.nan
    columns["observations"][8] = np.inf
    columns["actions"][20, 0] = np.nan
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns))
    assert report.nan == {"observations": 12, "actions": 1}
    # rows 6 and 7 lead to them, and row 20 has no action
    assert report.replay.rows == 39 - 3
    assert report.replay.p95 < 1e-12


def test_constant_columns(tmp_path, world):
    columns = coherent()
    columns["observations"][:, [2, 5, 6]] = 0.5
    columns["actions"][:, 1] = 0
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns))
    assert report.constant == {"observations": [2, 5, 6], "actions": [1]}


def test_the_description_of_a_file_that_was_made_elsewhere(tmp_path, world):
    path = write(tmp_path / "hopper-medium-v2.hdf5", coherent(), description="made by hand")
    assert "the file says of itself: made by hand" in check(path).notes


def test_a_missing_end_shows_as_a_jump(tmp_path, world):
    columns = coherent(rows=3_000, timeouts=flags(3_000, 999, 2_999))
    for start in (1_000, 2_000):
        columns["observations"][start:, 0] += 5
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns))
    assert (report.boundaries.jumps_inside, report.boundaries.jumps_across, report.boundaries.across) == (1, 1, 1)
    assert any("positions jump on 1 step within episodes" in text for text in report.differences)


# ---- conventions of the domains --------------------------------------------------------------------


def test_antmaze_terminals_lie_inside_and_a_success_counts_once(tmp_path, world):
    rewards = np.zeros(40)
    rewards[[3, 4, 5]] = 1
    columns = coherent("antmaze", terminals=flags(40, 3, 4, 5), timeouts=flags(40, 19, 39), rewards=rewards)
    report = check(write(tmp_path / "any.hdf5", columns), "antmaze-medium-play-v2")
    assert report.boundaries.terminals_inside == 3
    assert (report.returns.max, report.scores.max, report.scores.mean) == (3, 100, 50)
    assert any("once it was rewarded" in note for note in report.notes)


def test_kitchen_counts_the_most_elements_done_at_once(tmp_path):
    rng = np.random.default_rng(0)
    rewards = np.array([0, 1, 2, 2, 1.0] * 4)
    columns = {
        "observations": rng.standard_normal((20, 60)), "actions": rng.standard_normal((20, 9)),
        "rewards": rewards, "terminals": flags(20, 4, 19).astype(np.float32),
    }  # fmt: skip
    report = check(write(tmp_path / "kitchen-mixed-v0.hdf5", columns))
    assert report.boundaries.timeouts is None
    assert (report.episodes, report.scores.mean, report.returns.min) == (2, 50, 6)
    assert report.replay is None
    assert any("no replay: kitchen" in note for note in report.notes)
    assert any("SHA-256" in text for text in report.differences)
    assert any("bytes, the official file has 19,560,760" in text for text in report.differences)


def test_maze2d_stale_rows_are_counted(tmp_path, world):
    columns = coherent("maze2d", rows=40, timeouts=flags(40, 9, 19))
    columns["observations"][10] = columns["observations"][9]
    report = check(write(tmp_path / "maze2d-umaze-v1.hdf5", columns))
    assert report.boundaries.stale_rows == 1
    assert check(write(tmp_path / "hopper-medium-v2.hdf5", coherent())).boundaries.stale_rows is None


def test_stale_rows_are_not_taken_for_jumps(tmp_path, world):
    """Ten steps are missing after each, as if goal after goal had been reached at once."""
    columns = coherent("maze2d", rows=2_000, timeouts=np.arange(2_000) % 100 == 99)
    columns["observations"][:, 0] = 0.01 * np.arange(2_000)
    first = np.arange(100, 2_000, 100)
    columns["observations"][first] = columns["observations"][first - 1]
    columns["observations"][:, 0] += 0.1 * np.cumsum(np.isin(np.arange(2_000), first + 1))
    report = check(write(tmp_path / "maze2d-umaze-v1.hdf5", columns))
    assert (report.boundaries.stale_rows, report.boundaries.jumps_inside) == (19, 0)
    columns["observations"][1_050:, 0] += 1
    assert check(write(tmp_path / "maze2d-umaze-v1.hdf5", columns)).boundaries.jumps_inside == 1


def test_differences_to_the_official_file(tmp_path, world, monkeypatch):
    path = write(tmp_path / "hopper-medium-v2.hdf5", coherent(rows=1_200))
    found = check(path).differences
    assert "1,200 rows, the official file has 1,000,000" in found
    assert "1 episodes, the official file has 2,187" in found
    assert "an episode has 1,200 rows, the task's limit makes 1,000" in found
    monkeypatch.setitem(FACTS, "hopper-medium-v2", Facts(40, 2))
    assert check(write(path, coherent(rows=40))).differences == [], "catalogues may not count an unfinished episode"


def test_flagged_rows_are_compared(tmp_path, world, monkeypatch):
    monkeypatch.setitem(FACTS, "antmaze-large-play-v2", Facts(40, flagged=4))
    columns = coherent("antmaze", terminals=flags(40, 3, 4, 19), timeouts=flags(40, 19, 39))
    assert check(write(tmp_path / "antmaze-large-play-v2.hdf5", columns)).differences == []
    columns["terminals"][5] = True
    found = check(write(tmp_path / "antmaze-large-play-v2.hdf5", columns)).differences
    assert found == ["5 flagged rows, the official file has 4"]


# ---- replay ----------------------------------------------------------------------------------------


def test_replay_of_coherent_rows_is_exact_and_of_others_is_not(tmp_path, world):
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", coherent(timeouts=flags(40, 19))))
    assert report.replay.rows == 38, "what follows the two ends is not recorded"
    assert report.replay.median < 1e-12
    assert report.replay.reward_median < 1e-12
    spoilt = coherent()
    spoilt["observations"][::2, 4] += 0.25
    spoilt["rewards"] += 0.125
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", spoilt))
    assert report.replay.p95 == pytest.approx(0.25)
    assert report.replay.reward_median == pytest.approx(0.125)


def test_next_observations_are_the_target_where_recorded(tmp_path, world):
    columns = coherent()
    following = np.roll(columns["observations"], -1, 0)
    following[:-1, 0] += 0.5
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns | {"next_observations": following}))
    assert report.replay.median == pytest.approx(0.5)


def test_rows_with_clipped_velocities_are_left_out(tmp_path, world):
    columns = coherent()
    columns["infos/qvel"][[4, 5, 6], 2] = [10, -10, 9.9]
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns))
    assert report.replay.rows == 37
    assert "2 rows with velocities clipped at 10 are not replayed" in report.notes
    fast = coherent("halfcheetah")
    fast["infos/qvel"][4, 2] = 15
    assert check(write(tmp_path / "halfcheetah-medium-v2.hdf5", fast)).replay.rows == 39, "there nothing is clipped"


def test_without_infos_the_observations_are_replayed(tmp_path, world):
    columns = coherent(**{"infos/qpos": None, "infos/qvel": None})
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns))
    assert report.replay.median < 1e-12
    assert "replayed from observations: no infos/qpos and infos/qvel" in report.notes
    _, qpos, qvel, _ = world.calls[-1]
    assert (qpos.shape, qvel.shape) == ((39, 6), (39, 6))
    assert not qpos[:, 0].any(), "the missing x"


def test_antmaze_is_replayed_from_observations_because_its_infos_are_a_row_late(tmp_path, world):
    columns = coherent("antmaze")
    columns["infos/qpos"] = np.roll(columns["infos/qpos"], -1, 0)
    report = check(write(tmp_path / "antmaze-medium-play-v2.hdf5", columns))
    assert report.replay.median < 1e-12
    _, qpos, qvel, _ = world.calls[-1]
    np.testing.assert_array_equal(np.concatenate([qpos, qvel], 1), columns["observations"][:39])


def test_rewards_that_cannot_be_replayed_are_not_claimed(tmp_path, world, monkeypatch):
    one_step = sys.modules["sageplan.tasks.replay"].one_step
    blind = lambda *a, **k: SimpleNamespace(observations=one_step(*a).observations, rewards=np.full(39, np.nan))  # noqa: E731
    monkeypatch.setattr(sys.modules["sageplan.tasks.replay"], "one_step", blind)
    report = check(write(tmp_path / "antmaze-medium-play-v2.hdf5", coherent("antmaze")))
    assert report.replay.reward_median is None
    assert any("the goal that was rewarded" in note for note in report.notes)


def test_large_files_are_sampled_evenly(tmp_path, world, monkeypatch):
    monkeypatch.setattr(agreement, "MOST_ROWS", 10)
    columns = coherent(rows=400)
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", columns))
    assert report.replay.rows == 10
    _, qpos, _, _ = world.calls[-1]
    rows = [int(np.flatnonzero((columns["infos/qpos"] == row).all(1))[0]) for row in qpos]
    assert (rows[0], rows[-1]) == (0, 398)
    assert set(np.diff(rows)) <= {44, 45}


@pytest.mark.parametrize("after", [False, True])
def test_maze2d_rewards_of_either_convention(tmp_path, world, monkeypatch, after):
    from sageplan.tasks.maze2d import Maze

    maze = Maze.named("umaze")
    columns = coherent("maze2d", rows=200)
    columns["observations"][:, :2] += maze.goal + np.array([0.45, 0])  # about the border of what is rewarded
    columns["infos/qpos"] = columns["observations"][:, :2]
    rewards = maze.reward(columns["observations"][:, :2])
    columns["rewards"] = np.append(rewards[1:], 0) if after else rewards
    assert 10 < rewards.sum() < 190
    one_step = sys.modules["sageplan.tasks.replay"].one_step

    def rewarded(*arguments, **_):
        moved = one_step(*arguments).observations
        return SimpleNamespace(observations=moved, rewards=maze.reward(moved[:, :2]))

    monkeypatch.setattr(sys.modules["sageplan.tasks.replay"], "one_step", rewarded)
    report = check(write(tmp_path / "maze2d-umaze-v1.hdf5", columns))
    assert report.replay.reward_median == 0
    note = next(note for note in report.notes if note.startswith("rewards differ"))
    zero = "in 0 from those of the state after it" if after else "in 0 rows from those of the state before"
    assert zero in note


def test_without_the_simulator_the_rest_is_still_said(tmp_path, world, monkeypatch):
    def missing(*_, **__):
        raise MissingExtraError("mujoco", "tasks", "hopper")

    monkeypatch.setattr(sys.modules["sageplan.tasks.replay"], "one_step", missing)
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", coherent()))
    assert report.replay is None
    assert report.rows == 40
    assert any("no replay: hopper needs mujoco: pip install 'sageplan[tasks]'" in note for note in report.notes)


def test_nothing_to_replay(tmp_path, world):
    report = check(write(tmp_path / "hopper-medium-v2.hdf5", coherent(timeouts=np.ones(40, np.bool_))))
    assert report.replay is None
    assert any("no row has a whole state" in note for note in report.notes)


# ---- other data and broken files -------------------------------------------------------------------


def test_files_of_no_task_and_other_formats(tmp_path, world):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "robot.npz", states=rng.standard_normal((30, 5)), actions=rng.standard_normal((30, 2)),
             ends=flags(30, 9))  # fmt: skip
    report = check(tmp_path / "robot.npz")
    assert (report.task, report.rows, report.episodes, report.scores, report.replay) == (None, 30, 2, None, None)
    assert report.differences == []
    assert "no rewards in this file" in report.notes
    assert any("--task" in note for note in report.notes)
    assert check(write(tmp_path / "mine.h5", content())).task is None


def test_a_task_given_rules_over_the_name(tmp_path, world):
    path = write(tmp_path / "hopper-medium-v2.hdf5", coherent())
    assert check(path, "hopper-medium-replay").task == "hopper-medium-replay-v2"
    with pytest.raises(
        DataError, match=r"observations have 11 and actions 3 columns, those of maze2d-umaze-v1 4 and 2"
    ):
        check(path, "maze2d-umaze")
    with pytest.raises(ConfigError, match="no task 'hoper-medium'; did you mean 'hopper-medium-v2'"):
        check(path, "hoper-medium")


def test_broken_files_are_one_clear_error(tmp_path):
    path = write(tmp_path / "hopper-medium-v2.hdf5", content(rows=5_000))
    whole = path.read_bytes()
    for damaged, message in (
        (whole[: len(whole) // 2], "cannot be read, it is truncated or damaged|cannot be read, it is not a whole HDF5"),
        (b"", r"the file is empty \(0 bytes\)"),
        (b"no HDF5 at all", "cannot be read, it is not a whole HDF5 file"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=message):
            check(path)
    with pytest.raises(DataError, match="no such file"):
        check(tmp_path / "nowhere.hdf5")


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"actions": None}, "no actions in this file"),
        ({"actions": np.zeros((9, 3))}, "actions has 9 rows, observations 40"),
        ({"observations": np.zeros(40)}, "expected 2 dimensions"),
        ({"observations": np.zeros((0, 11)), "actions": np.zeros((0, 3)), "rewards": None, "terminals": flags(0),
          "timeouts": None}, "no rows"),
    ],
)  # fmt: skip
def test_files_without_what_is_needed(tmp_path, replaced, message):
    with pytest.raises(DataError, match=message):
        check(write(tmp_path / "hopper-medium-v2.hdf5", content(**replaced)))


def test_every_task_has_facts():
    assert FACTS.keys() == TASKS.keys()


# ---- real rows -------------------------------------------------------------------------------------


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples of real rows are not here")
@pytest.mark.parametrize(
    ("name", "rows", "rewarded"),
    [
        ("hopper_medium-v2.hdf5", 759, True),
        ("halfcheetah_medium-v2.hdf5", 1998, True),
        ("antmaze-medium-play-v0.hdf5", 1996, False),
    ],
)
def test_real_rows_agree_with_the_physics(name, rows, rewarded):
    pytest.importorskip("mujoco")
    pytest.importorskip("sageplan.tasks.replay")
    report = check(SAMPLES / name)
    assert report.replay.rows == rows
    assert report.replay.median <= 1e-6
    assert report.replay.p95 <= 1e-5
    assert (report.replay.reward_median is not None) == rewarded
    assert not rewarded or report.replay.reward_median <= 1e-5
    # version 0 of AntMaze flags its ends two rows early, so that the jump lies inside an episode
    assert report.boundaries.jumps_inside == (1 if "v0" in name else 0)


def test_spread_of_nothing():
    assert examine.Spread.of(np.array([np.nan, np.inf])) is None


def test_where_a_file_comes_from(tmp_path):
    plain, made = tmp_path / "a.hdf5", tmp_path / "b.hdf5"
    for path, marks in ((plain, {}), (made, {"description": "built", "seed": 3})):
        with h5py.File(path, "w") as file:
            file.attrs.update(marks)
    assert origin(plain) == "official layout"
    assert origin(made) == "regenerated, seed 3"
    assert origin(tmp_path / "c.npz") == "own"
