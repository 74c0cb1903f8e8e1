import dataclasses
import errno
import json
import os

import pytest

from sageplan.errors import ConfigError, EvaluationError, FormatError
from sageplan.evaluation.records import Cell, Episode, Records, read_records

IDENTITY = {"task": "maze2d-umaze-v1", "candidates": 50, "widths": (1, 2)}


def episode(seed, arm="mcss", **fields):
    """A record of every kind of field."""
    settings = {"selector": arm, "keep": 0.8}
    standard = Episode(
        task="maze2d-umaze-v1", arm=arm, seed=seed, episode_return=1 / 3 + seed, score=-0.1, length=300,
        terminated=False, success=True, occupancy=2.0, sticky_return=5.0, sticky_score=None, decisions=30,
        filter_changed=3, penalty_changed=2, gate_changed=4, prefix_energy=0.1234567890123456, executed_energy=None,
        gap=1e-300, settings=settings, sampler_seed=0,
    )  # fmt: skip
    return dataclasses.replace(standard, **fields)


def finish(path, wanted, identity=IDENTITY):
    """What a restarted evaluation does: add what is missing."""
    with Records(path, identity) as file:
        file.append(one for one in wanted if one.cell not in file.episodes)
        return dict(file.episodes)


def test_what_was_appended_is_read_back_exactly(tmp_path):
    wanted = [episode(0), episode(0, "sage"), episode(1, prefix_energy=None, success=None)]
    path = tmp_path / "new" / "folder" / "episodes.jsonl"
    assert finish(path, wanted) == {one.cell: one for one in wanted}
    assert read_records(path) == wanted
    assert wanted[1].cell == Cell("maze2d-umaze-v1", "sage", 0)
    before = path.read_bytes()
    finish(path, wanted)
    assert path.read_bytes() == before


def test_cut_at_any_byte_it_is_finished_with_nothing_lost_and_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of them take half a minute
    wanted = [episode(0), episode(0, "sage")]
    path = tmp_path / "episodes.jsonl"
    finish(path, wanted)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        lines_left = max(0, whole[:cut].count(b"\n") - 1)
        assert len(read_records(path)) == lines_left
        with Records(path, IDENTITY) as file:
            assert [*file.episodes.values()] == wanted[:lines_left]
        finish(path, wanted)
        assert path.read_bytes() == whole


def test_no_episode_is_recorded_twice(tmp_path):
    with Records(tmp_path / "episodes.jsonl", IDENTITY) as file:
        file.append([episode(0)])
        with pytest.raises(ConfigError, match=r"already holds episode 0 of mcss on maze2d-umaze-v1"):
            file.append([episode(1), episode(0)])
        assert [*file.episodes.values()] == [episode(0)]
        assert read_records(file.path) == [episode(0)]


def test_a_full_disk_keeps_all_that_was_finished(tmp_path, monkeypatch):
    path = tmp_path / "episodes.jsonl"
    file = Records(path, IDENTITY)
    file.append([episode(0)])
    write = os.write

    def half_then_full(number, data):
        if len(data) > 100:
            return write(number, data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_then_full)
        with pytest.raises(EvaluationError, match=r"No space left on device\); the episodes in it are kept"):
            file.append([episode(1), episode(2)])
    assert read_records(path) == [episode(0)]
    file.append([episode(1)])  # there is room again
    file.close()
    assert read_records(path) == [episode(0), episode(1)]


def test_one_evaluation_at_a_time_writes(tmp_path):
    pytest.importorskip("fcntl")
    path = tmp_path / "episodes.jsonl"
    with Records(path, IDENTITY) as file:
        file.append([episode(0)])
        with pytest.raises(ConfigError, match="is being written by another evaluation"):
            Records(path, IDENTITY)
        assert read_records(path) == [episode(0)]  # reading is free
    Records(path, IDENTITY).close()


def test_numbers_of_other_settings_are_not_mixed(tmp_path):
    path = tmp_path / "episodes.jsonl"
    finish(path, [episode(0)])
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"other settings \(candidates 50 instead of 20, stride None instead of 1\)"):
        Records(path, IDENTITY | {"candidates": 20, "stride": 1})
    assert path.read_bytes() == before
    Records(path, IDENTITY).close()  # the refusal let go of the file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\n", "holds no records of episodes"),
        (b"somebody's only copy of a letter", "holds no records of episodes"),
        (b'{"format": "sageplan-gate", "version": 1, "identity": {}}\n', "its format is 'sageplan-gate'"),
        (b'{"format": "sageplan-episodes", "version": 9, "identity": {}}\n', "records of version 9"),
        (b"[1]\n{}\n", "holds no records of episodes"),
    ],
)
def test_foreign_files_are_refused_and_left_alone(tmp_path, content, message):
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        Records(path, IDENTITY)
    assert path.read_bytes() == content


def test_damage_before_the_end_is_named_and_nothing_is_thrown_away(tmp_path):
    path = tmp_path / "episodes.jsonl"
    finish(path, [episode(0), episode(1), episode(2)])
    lines = path.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[2])
    for broken, message in (
        (b"\x00\xff\n", "line 3 is no record"),
        (lines[2][: len(lines[2]) // 2] + b"\n", "line 3 is no record"),
        (json.dumps({**record, "extra": 1}).encode() + b"\n", "line 3 is no record .*extra"),
        (json.dumps({**record, "seed": 0}).encode() + b"\n", "line 3: episode 0 of mcss .* is recorded twice"),
    ):
        content = b"".join([*lines[:2], broken, *lines[3:], b'{"cut'])
        path.write_bytes(content)
        for read in (read_records, lambda path: Records(path, IDENTITY)):
            with pytest.raises(FormatError, match=message):
                read(path)
        assert path.read_bytes() == content


def test_files_that_cannot_be_opened_are_named(tmp_path):
    with pytest.raises(FormatError, match=r"missing.jsonl cannot be read \(No such file"):
        read_records(tmp_path / "missing.jsonl")
    with pytest.raises(ConfigError, match=r"cannot write .*: Is a directory"):
        Records(tmp_path, IDENTITY)


def test_a_number_that_json_cannot_hold_is_not_half_written(tmp_path):
    with Records(tmp_path / "episodes.jsonl", IDENTITY) as file:
        with pytest.raises(ValueError, match="not JSON compliant"):
            file.append([episode(0), dataclasses.replace(episode(1), gap=float("inf"))])
        assert read_records(file.path) == []
