"""Maze2D files made here: D4RL's layout, and each quirk alone."""

import h5py
import numpy as np
import pytest

from sageplan.data import build as module
from sageplan.data import maze2d
from sageplan.data.build import build
from sageplan.data.maze2d import collect, record
from sageplan.data.official import FACTS, Facts
from sageplan.data.readers import load
from sageplan.errors import ConfigError, DataError
from sageplan.tasks.catalogue import TASKS
from sageplan.tasks.maze2d import Maze, one_step

pytest.importorskip("mujoco")

ROWS = 6_000


def columns(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if hasattr(item, "shape") else None)
    return found


def make(tmp_path, name="made.hdf5", **options):
    return columns(build("maze2d-umaze", tmp_path / name, rows=ROWS, runs=4, seed=5, progress=False, **options))


def test_a_built_file_is_what_the_collector_collects(tmp_path):
    built, collected = make(tmp_path), collect("umaze", ROWS, seed=5, num_envs=4)
    assert sorted(built) == [
        "actions", "infos/goal", "infos/qpos", "infos/qvel", "observations", "rewards", "terminals", "timeouts",
    ]  # fmt: skip
    np.testing.assert_array_equal(built["observations"], collected.states)
    np.testing.assert_array_equal(built["actions"], collected.actions)
    np.testing.assert_array_equal(built["rewards"], collected.rewards)
    np.testing.assert_array_equal(np.flatnonzero(built["timeouts"]) + 1, collected.offsets[1:])
    assert not built["terminals"].any()
    np.testing.assert_array_equal(np.concatenate([built["infos/qpos"], built["infos/qvel"]], 1), built["observations"])
    kinds = {name: array.dtype.name for name, array in built.items()}
    assert kinds == {name: "bool" if name in ("terminals", "timeouts") else "float32" for name in built}
    loaded = load(tmp_path / "made.hdf5")
    np.testing.assert_array_equal(loaded.offsets, collected.offsets)


def test_goals_are_those_that_are_reached(tmp_path):
    built = make(tmp_path)
    ends = np.flatnonzero(built["timeouts"])
    changes = np.flatnonzero((np.diff(built["infos/goal"], axis=0) != 0).any(1))
    assert np.isin(changes, ends).all()
    distance = np.linalg.norm(built["observations"][ends, :2] - built["infos/goal"][ends], axis=1)
    assert (distance < 0.1).sum() >= len(ends) - 4, "all but the ends of the four runs"


def test_stale_rows_are_those_of_d4rls_script(tmp_path):
    """Replayed by hand: after a goal the environment moves on, the observation does not."""
    built = make(tmp_path, stale_rows=True)
    states = np.concatenate([built["infos/qpos"], built["infos/qvel"]], 1)
    run_starts = [0, 1500, 3000, 4500]
    after = np.setdiff1d(np.flatnonzero(built["timeouts"]) + 1, [*run_starts, ROWS])
    assert len(after) > 30
    stale = (built["observations"] != states).any(1)
    np.testing.assert_array_equal(np.flatnonzero(stale), after)
    np.testing.assert_array_equal(built["observations"][after], built["observations"][after - 1])
    moved = one_step(Maze.named("umaze"), states, built["actions"]).astype(np.float32)
    inside = np.setdiff1d(np.arange(ROWS - 1), np.array(run_starts[1:]) - 1)
    np.testing.assert_array_equal(moved[inside], states[inside + 1])
    # the reader knows them and drops them, by what the file says of itself or by its name
    assert len(load(tmp_path / "made.hdf5")) == ROWS - len(after)
    with h5py.File(tmp_path / "made.hdf5", "r+") as file:
        del file.attrs["task"]
    assert len(load(tmp_path / "made.hdf5")) == ROWS
    (tmp_path / "made.hdf5").rename(tmp_path / "maze2d-umaze-v1.hdf5")
    assert len(load(tmp_path / "maze2d-umaze-v1.hdf5")) == ROWS - len(after)


def test_the_controller_answers_what_it_saw(monkeypatch):
    asked, act = [], maze2d.WaypointController.act

    def listen(controller, states):
        asked.append(states[0].copy())
        return act(controller, states)

    monkeypatch.setattr(maze2d.WaypointController, "act", listen)
    recorded = record("umaze", 3_000, num_envs=1, stale_rows=True)
    np.testing.assert_array_equal(asked, recorded.observations)
    assert (recorded.observations != recorded.states).any(1).sum() > 20


def test_ends_as_terminals(tmp_path):
    plain, built = make(tmp_path), make(tmp_path, "other.hdf5", ends_as_terminals=True)
    assert "timeouts" not in built
    np.testing.assert_array_equal(built["terminals"], plain["timeouts"])
    np.testing.assert_array_equal(built["observations"], plain["observations"])


def test_rewards_of_the_state_or_of_the_next(tmp_path):
    plain, built = make(tmp_path), make(tmp_path, "other.hdf5", rewards_of_state=False)
    run_ends = np.array([1500, 3000, 4500, 6000]) - 1
    inside = np.setdiff1d(np.arange(ROWS), run_ends)
    np.testing.assert_array_equal(built["rewards"][inside], plain["rewards"][inside + 1])
    assert (built["rewards"] != plain["rewards"]).any()


def test_the_file_says_how_it_was_made(tmp_path):
    make(tmp_path, stale_rows=True)
    with h5py.File(tmp_path / "made.hdf5") as file:
        told = dict(file.attrs)
    assert "not D4RL's official file" in told.pop("description")
    assert told == {
        "task": "maze2d-umaze-v1", "seed": 5, "noise": 0.5, "runs": 4,
        "stale_rows": True, "ends_as_terminals": False, "rewards_of_state": True,
    }  # fmt: skip


def test_by_default_the_tasks_name_and_the_official_size_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGEPLAN_DATA", str(tmp_path / "cache"))
    assert [FACTS[f"maze2d-{size}-v1"].rows for size in ("umaze", "medium", "large")] == [
        1_000_000,
        2_000_000,
        4_000_000,
    ]
    monkeypatch.setitem(module.FACTS, "maze2d-medium-v1", Facts(2_000))
    path = build("maze2d-medium-v1", progress=False)
    assert path == tmp_path / "cache" / "maze2d-medium-v1.hdf5"  # the official name is for the official file
    assert len(columns(path)["actions"]) == 2_000
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "mine.hdf5"
    path.write_bytes(b"precious")
    with pytest.raises(DataError, match=r"mine.hdf5 is there already; choose another file with --out, or delete it"):
        build("maze2d-umaze", path, rows=10, progress=False)
    assert path.read_bytes() == b"precious"


def test_an_interrupted_build_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_columns", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build("maze2d-umaze", tmp_path / "a.hdf5", rows=100, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_found_first(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "record", lambda *_, **__: pytest.fail("collected before looking"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        build("maze2d-umaze", tmp_path / "file" / "a.hdf5", rows=100, progress=False)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.domain != "maze2d"])
def test_other_tasks_say_which_can_be_built(name, tmp_path):
    with pytest.raises(ConfigError, match=rf"{name} cannot be built here; maze2d-large-v1, .*maze2d-umaze-v1 can"):
        build(name, tmp_path / "a.hdf5")


def test_no_rows(tmp_path):
    with pytest.raises(ConfigError, match="cannot collect 0 steps"):
        build("maze2d-umaze", tmp_path / "a.hdf5", rows=0, progress=False)
