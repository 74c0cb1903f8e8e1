"""Readers of D4RL HDF5, npz and Minari. Every file is made here, in the layout of the official ones."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest

from sageplan.data.readers import load, save_npz
from sageplan.errors import DataError, FormatError, MissingExtraError
from sageplan.types import Trajectories

KITCHEN = "kitchen_microwave_kettle_light_slider-v0.hdf5"
ANTMAZE = "Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5"


def flags(rows, *true):
    array = np.zeros(rows, np.bool_)
    array[list(true)] = True
    return array


def arrays(rows=10, seed=0, **replaced):
    rng = np.random.default_rng(seed)
    full = {
        "observations": rng.standard_normal((rows, 4), dtype=np.float32),
        "actions": rng.standard_normal((rows, 2), dtype=np.float32),
        "rewards": rng.standard_normal(rows, dtype=np.float32),
        "terminals": flags(rows),
        "timeouts": flags(rows),
    }
    full.update(replaced)
    return {key: array for key, array in full.items() if array is not None}


def write(path, content):
    with h5py.File(path, "w") as file:
        for key, array in content.items():
            file.create_dataset(key, data=array, compression="gzip")
    return path


# ---- D4RL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hopper_medium-v2.hdf5", "walker2d-medium-replay-v2.hdf5", "mine.h5", KITCHEN])
def test_terminals_and_timeouts_end_episodes(tmp_path, name):
    content = arrays(terminals=flags(10, 2), timeouts=flags(10, 6))
    extra = {
        "infos/qpos": np.zeros((10, 3)),
        "next_observations": np.zeros((10, 4)),
        "metadata/algorithm": [b"x"],
    }
    data = load(write(tmp_path / name, content | extra))
    assert data.offsets.tolist() == [0, 3, 7, 10]
    assert data.name == name
    np.testing.assert_array_equal(data.states, content["observations"])
    np.testing.assert_array_equal(data.actions, content["actions"])
    np.testing.assert_array_equal(data.rewards, content["rewards"])
    np.testing.assert_array_equal(data.terminals, content["terminals"])


def test_kitchen_without_timeouts(tmp_path):
    data = load(write(tmp_path / KITCHEN, arrays(terminals=flags(10, 4, 9), timeouts=None)))
    assert data.offsets.tolist() == [0, 5, 10]


@pytest.mark.parametrize("name", [ANTMAZE, "antmaze-medium-play-v2.hdf5"])
def test_antmaze_terminals_do_not_end_episodes(tmp_path, name):
    data = load(write(tmp_path / name, arrays(terminals=flags(10, 2, 3), timeouts=flags(10, 6))))
    assert data.offsets.tolist() == [0, 7, 10]
    assert data.terminals.sum() == 2


def test_antmaze_needs_timeouts(tmp_path):
    with pytest.raises(DataError, match="no timeouts, which alone say"):
        load(write(tmp_path / ANTMAZE, arrays(timeouts=None)))


def test_rewards_are_optional(tmp_path):
    assert load(write(tmp_path / "robot.hdf5", arrays(rewards=None))).rewards is None


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32])
def test_numbers_become_float32_and_bool(tmp_path, kind):
    content = arrays(terminals=flags(10, 4).astype(kind), observations=np.arange(40).reshape(10, 4).astype(kind))
    data = load(write(tmp_path / "a.hdf5", content))
    assert (data.states.dtype, data.terminals.dtype) == (np.float32, np.bool_)
    assert data.offsets.tolist() == [0, 5, 10]
    np.testing.assert_array_equal(data.states, np.arange(40).reshape(10, 4))


def maze2d_collector(done, rows=40):
    """What D4RL's script records: after `done` it steps, but keeps the observation for one more row.

    The true state at time t is [t, t, t, t]; the action is the time at which it was taken.
    """
    observations, state = [], 0.0
    for time in range(rows):
        observations.append([state] * 4)
        if not done[time]:
            state = time + 1.0
    times = np.arange(rows, dtype=np.float32)
    return arrays(
        rows,
        observations=np.array(observations, np.float32),
        actions=np.stack([times, times], 1),
        rewards=times,
        timeouts=done,
    )


def test_maze2d_stale_rows_are_dropped(tmp_path):
    """9: an ordinary switch. 19 and 20: the new goal is reached at once, so two stale rows follow.
    38: the stale row is the last of the file."""
    content = maze2d_collector(flags(40, 9, 19, 20, 38))
    assert (content["observations"][10] == 9).all()
    data = load(write(tmp_path / "maze2d-medium-sparse-v1.hdf5", content))
    kept = [time for time in range(40) if time not in (10, 20, 21, 39)]
    np.testing.assert_array_equal(data.actions[:, 0], kept)
    np.testing.assert_array_equal(data.rewards, kept)
    np.testing.assert_array_equal(data.states[:, 0], data.actions[:, 0])
    assert len(data.terminals) == len(kept)
    assert data.offsets.tolist() == [0, 10, 19, 36]
    inside = np.delete(np.diff(data.states[:, 0]), data.offsets[1:-1] - 1)
    assert (inside == 1).all()


def test_maze2d_stale_rows_across_chunks(tmp_path):
    rows = 200_000
    done = np.arange(rows) % 100 == 99
    data = load(write(tmp_path / "maze2d-large-sparse-v1.hdf5", maze2d_collector(done, rows)))
    kept = np.flatnonzero(~np.roll(done, 1) | (np.arange(rows) == 0))
    np.testing.assert_array_equal(data.states[:, 3], kept)
    np.testing.assert_array_equal(data.actions[:, 1], kept)


def test_maze2d_of_the_local_script_has_only_terminals(tmp_path):
    content = maze2d_collector(flags(40, 9))
    content["terminals"] = content.pop("timeouts")
    assert load(write(tmp_path / "maze2d-umaze-v1.hdf5", content)).offsets.tolist() == [0, 10, 39]


def test_maze2d_without_stale_rows_is_untouched(tmp_path):
    content = arrays(timeouts=flags(10, 3))
    content["observations"][7] = content["observations"][6]  # at rest, but inside an episode
    data = load(write(tmp_path / "maze2d-umaze-v1.hdf5", content))
    np.testing.assert_array_equal(data.states, content["observations"])
    assert data.offsets.tolist() == [0, 4, 10]


def test_other_domains_keep_repeated_states(tmp_path):
    content = arrays(timeouts=flags(10, 3))
    content["observations"][4] = content["observations"][3]
    assert len(load(write(tmp_path / "hopper-medium-v2.hdf5", content))) == 10


# ---- what is wrong with a file ---------------------------------------------------------------------


def test_no_such_file(tmp_path):
    with pytest.raises(DataError, match=r"missing\.hdf5: no such file or folder"):
        load(tmp_path / "missing.hdf5")


@pytest.mark.parametrize("suffix", [".hdf5", ".npz"])
def test_empty_file(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.touch()
    with pytest.raises(FormatError, match=r"a\.(hdf5|npz): the file is empty \(0 bytes\)"):
        load(path)


def test_truncated_hdf5(tmp_path):
    path = write(tmp_path / "a.hdf5", arrays())
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(FormatError, match="truncated or damaged"):
        load(path)


def test_damaged_hdf5(tmp_path):
    path = write(tmp_path / "a.hdf5", arrays(5000))
    with h5py.File(path) as file:
        place = file["observations"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(FormatError, match="truncated or damaged"):
        load(path)


def test_foreign_file(tmp_path):
    path = tmp_path / "a.hdf5"
    path.write_text("<html>404</html>")
    with pytest.raises(FormatError, match="it is not an HDF5 file"):
        load(path)


def test_unknown_suffix(tmp_path):
    path = tmp_path / "a.pkl"
    path.write_bytes(b"x")
    with pytest.raises(DataError, match=r"known are \.hdf5, \.h5, \.npz, the folder .* and minari:ID"):
        load(path)


def test_missing_keys_are_named(tmp_path):
    content = arrays()
    del content["actions"], content["terminals"]
    with pytest.raises(DataError, match="no actions, terminals in this file, only observations, rewards, timeouts"):
        load(write(tmp_path / "a.hdf5", content))


def test_many_other_keys_are_shortened(tmp_path):
    with pytest.raises(DataError, match=r"only episode_0, .*episode_15 and 12 more$"):
        load(write(tmp_path / "a.hdf5", {f"episode_{number}": [0] for number in range(20)}))


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"observations": np.zeros(10)}, r"observations has shape \(10,\), expected 2 dimensions"),
        ({"actions": np.zeros((10, 2, 1))}, r"actions has shape \(10, 2, 1\), expected 2 dimensions"),
        ({"actions": np.zeros((9, 2))}, "actions has 9 rows, expected 10 like the states"),
        ({"terminals": flags(9)}, r"terminals has shape \(9,\), expected \(10,\) like the observations"),
        ({"timeouts": flags(1)}, r"timeouts has shape \(1,\), expected \(10,\)"),
        ({"rewards": np.zeros((10, 1))}, r"rewards has shape \(10, 1\), expected \(10,\)"),
        ({"actions": np.array([b"left"] * 10)}, r"actions has type \|S4, expected numbers"),
        (
            {"observations": np.full((10, 4), np.nan)},
            "states holds 40 NaN or infinite values, the first at row 0",
        ),
        ({"observations": np.full((10, 4), 1e300)}, "states holds 40 NaN or infinite values"),
    ],
)
def test_wrong_contents(tmp_path, replaced, message):
    with pytest.raises(DataError, match=message):
        load(write(tmp_path / "hopper-medium-v2.hdf5", arrays(**replaced)))


def test_no_rows(tmp_path):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for key, array in arrays(0).items():
            file[key] = array
    with pytest.raises(DataError, match="no rows"):
        load(path)


def test_group_instead_of_array(tmp_path):
    content = arrays(observations=None) | {"observations/position": np.zeros((10, 2))}
    with pytest.raises(DataError, match="observations is a group of position, expected an array"):
        load(write(tmp_path / "a.hdf5", content))


# ---- npz -------------------------------------------------------------------------------------------


def test_npz_round_trip(tmp_path):
    content = arrays(terminals=flags(10, 2), timeouts=flags(10, 6))
    data = load(write(tmp_path / "a.hdf5", content))
    save_npz(data, tmp_path / "b.npz")
    again = load(tmp_path / "b.npz")
    assert again.fingerprint() == data.fingerprint()
    np.testing.assert_array_equal(again.rewards, data.rewards)
    np.testing.assert_array_equal(again.terminals, data.terminals)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_npz_without_optional_arrays(tmp_path):
    data = Trajectories.from_arrays(np.ones((3, 2)), np.ones((3, 1)))
    save_npz(data, tmp_path / "a.npz")
    again = load(tmp_path / "a.npz")
    assert again.rewards is None
    assert again.terminals is None


@pytest.mark.parametrize(
    ("marks", "offsets"),
    [
        ({}, [0, 10]),
        ({"terminals": flags(10, 2), "timeouts": flags(10, 6)}, [0, 3, 7, 10]),
        ({"terminals": flags(10, 2), "ends": flags(10, 4)}, [0, 5, 10]),
        ({"terminals": flags(10, 2), "offsets": np.array([0, 8, 10], np.int32)}, [0, 8, 10]),
    ],
)
def test_npz_episodes(tmp_path, marks, offsets):
    np.savez_compressed(tmp_path / "a.npz", observations=np.ones((10, 2)), actions=np.ones((10, 1)), **marks)
    data = load(tmp_path / "a.npz")
    assert data.offsets.tolist() == offsets
    assert data.states.dtype == np.float32


def test_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    data = Trajectories.from_arrays(np.ones((3, 2)), np.ones((3, 1)))
    save_npz(data, tmp_path / "a.npz")
    before = (tmp_path / "a.npz").read_bytes()

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_npz(data, tmp_path / "a.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert (tmp_path / "a.npz").read_bytes() == before


def test_save_refuses_a_name_that_load_would_refuse(tmp_path):
    with pytest.raises(DataError, match=r"saved as \.npz"):
        save_npz(Trajectories.from_arrays(np.ones((3, 2)), np.ones((3, 1))), tmp_path / "a.dat")


def test_npz_with_pickled_objects(tmp_path):
    np.savez(tmp_path / "a.npz", states=np.array([{}, {}], object), actions=np.ones((2, 1)))
    with pytest.raises(FormatError, match=r"states cannot be read .*allow_pickle=False"):
        load(tmp_path / "a.npz")


def test_truncated_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, states=np.ones((100, 2)), actions=np.ones((100, 1)))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"truncated or not an \.npz"):
        load(path)


def test_damaged_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, states=np.ones((100, 2)), actions=np.ones((100, 1)))
    content = bytearray(path.read_bytes())
    content[300] ^= 255
    path.write_bytes(content)
    with pytest.raises(FormatError, match="states cannot be read"):
        load(path)


def test_npz_missing_keys(tmp_path):
    np.savez(tmp_path / "a.npz", states=np.ones((2, 2)), action=np.ones((2, 1)))
    with pytest.raises(DataError, match="no actions in this file, only states, action"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (np.array([0.0, 10.0]), "offsets are not integers"),
        (np.array([0, 9]), "must rise from 0 to 10"),
    ],
)
def test_npz_wrong_offsets(tmp_path, offsets, message):
    np.savez(tmp_path / "a.npz", states=np.ones((10, 2)), actions=np.ones((10, 1)), offsets=offsets)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "a.npz")


# ---- Minari ----------------------------------------------------------------------------------------


@pytest.fixture
def minari_set(tmp_path, monkeypatch):
    """A function that records episodes of observations [T+1, ·] under an id, as Minari does."""
    minari = pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def space(values):
        if isinstance(values, dict):
            return spaces.Dict({key: space(value) for key, value in values.items()})
        return spaces.Box(-np.inf, np.inf, values.shape[1:], np.float64)

    def record(episodes, lengths, actions=2):
        buffers = [
            EpisodeBuffer(
                id=number,
                observations=observations,
                actions=np.full((steps, actions), number + 1, np.float32),
                rewards=[1.0] * steps,
                terminations=[False] * (steps - 1) + [True],
                truncations=[False] * steps,
            )
            for number, (observations, steps) in enumerate(zip(episodes, lengths, strict=True))
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            minari.create_dataset_from_buffers(
                "sageplan/tiny-v0",
                buffer=buffers,
                observation_space=space(episodes[0]),
                action_space=spaces.Box(-9, 9, (actions,), np.float32),
            )
        return tmp_path / "sageplan" / "tiny-v0"

    return record


def random_rows(steps, size):
    return np.random.default_rng(steps).standard_normal((steps + 1, size))


@pytest.mark.parametrize("by", ["id", "folder", "data folder"])
def test_minari_plain_observations(minari_set, by):
    episodes = [random_rows(4, 3), random_rows(2, 3)]
    folder = minari_set(episodes, [4, 2])
    data = load({"id": "minari:sageplan/tiny-v0", "folder": folder, "data folder": folder / "data"}[by])
    assert data.name == "sageplan/tiny-v0"
    assert data.offsets.tolist() == [0, 5, 8]
    np.testing.assert_array_equal(data.states, np.concatenate(episodes).astype(np.float32))
    np.testing.assert_array_equal(data.actions[:, 0], [1, 1, 1, 1, 0, 2, 2, 0])
    np.testing.assert_array_equal(data.rewards, [1, 1, 1, 1, 0, 1, 1, 0])
    assert np.flatnonzero(data.terminals).tolist() == [3, 6]


def test_minari_achieved_goal_completes_the_observation(minari_set):
    """AntMaze: the observation lacks the position."""
    position, body = random_rows(4, 2), random_rows(5, 3)[:5]
    minari_set([{"observation": body, "achieved_goal": position, "desired_goal": position + 1}], [4])
    data = load("minari:sageplan/tiny-v0")
    np.testing.assert_array_equal(data.states, np.hstack([position, body]).astype(np.float32))


def test_minari_achieved_goal_inside_the_observation(minari_set):
    """PointMaze: the position is part of the observation."""
    body = random_rows(4, 4)
    minari_set([{"observation": body, "achieved_goal": body[:, :2], "desired_goal": body[:, 2:]}], [4])
    assert load("minari:sageplan/tiny-v0").state_dim == 4


def test_minari_nested_goals(minari_set):
    """Kitchen: goals are dictionaries of readings of the observation."""
    body = random_rows(4, 4)
    minari_set([{"observation": body, "achieved_goal": {"kettle": body[:, :2]}}], [4])
    assert load("minari:sageplan/tiny-v0").state_dim == 4


def test_minari_other_dictionaries_are_refused(minari_set):
    minari_set([{"camera": random_rows(4, 4), "joints": random_rows(4, 4)}], [4])
    with pytest.raises(DataError, match="dictionary of camera, joints; expected an array"):
        load("minari:sageplan/tiny-v0")


def test_minari_wrong_shapes(minari_set):
    minari_set([random_rows(4, 3).reshape(5, 3, 1)], [4])
    with pytest.raises(DataError, match=r"episode 0 has observations \(5, 3, 1\) and actions \(4, 2\)"):
        load("minari:sageplan/tiny-v0")


@pytest.mark.parametrize("steps", [3, 9])
def test_minari_wrong_step_count(minari_set, steps):
    folder = minari_set([random_rows(4, 3)], [4])
    path = folder / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_steps": steps}))
    with pytest.raises(FormatError, match=f"do not add up to the {steps} steps announced"):
        load(folder)


def test_minari_not_on_this_machine(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(DataError, match="get it with: minari download D4RL/pointmaze/umaze-v2"):
        load("minari:D4RL/pointmaze/umaze-v2")


def test_folder_that_is_no_minari_set(tmp_path):
    pytest.importorskip("minari")
    with pytest.raises(FormatError, match="not a Minari data set"):
        load(tmp_path)


def test_damaged_minari_set(minari_set):
    folder = minari_set([random_rows(4, 3)], [4])
    (folder / "data" / "main_data.hdf5").write_bytes(b"x")
    with pytest.raises(FormatError, match="not a Minari data set that can be read"):
        load(folder)


def test_minari_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"reading a Minari data set needs minari.*sageplan\[minari\]"):
        load("minari:D4RL/pointmaze/umaze-v2")


# ---- memory ----------------------------------------------------------------------------------------

# VmHWM, because ru_maxrss of a child starts at what its parent held, which would hide any growth.
MEASURE = """
import sys
from sageplan.data.readers import load

def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

load(sys.argv[1])
before = status("VmRSS")
data = load(sys.argv[2])
kept = sum(getattr(data, f).nbytes for f in ("states", "actions", "rewards", "terminals", "offsets"))
print(kept, status("VmHWM") - before, len(data))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("name", "kind"), [("hopper-medium-v2.hdf5", "float32"), ("maze2d-large-sparse-v1.hdf5", "float64")]
)
def test_memory_of_four_million_rows(tmp_path, name, kind):
    """The Maze2D file has a stale row after each episode end, so it is also compacted."""
    rows, block = 4_000_000, 100_000
    content = arrays(block, observations=np.arange(4 * block, dtype=kind).reshape(-1, 4))
    content |= {"timeouts": np.arange(block) % 200 == 199, "actions": content["actions"].astype(kind)}
    content["observations"][200::200] = content["observations"][199:-1:200]
    with h5py.File(tmp_path / name, "w") as file:
        for key, array in content.items():
            whole = file.create_dataset(
                key, (rows, *array.shape[1:]), array.dtype, compression="gzip", compression_opts=1
            )
            for start in range(0, rows, block):
                whole[start : start + block] = array
    small = write(tmp_path / "small.hdf5", arrays())
    source = Path(__file__).parents[2] / "src"
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, small, tmp_path / name],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, growth, length = map(int, run.stdout.split())
    assert (length < rows) == name.startswith("maze2d")
    assert 0.9 * kept < growth <= 1.3 * kept + 16 * 2**20
