"""`sageplan data` on the command line: what is printed where, exit codes, errors of one line."""

import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np
import pytest

from sageplan import cli
from sageplan.data import fetch
from sageplan.tasks.catalogue import TASKS


def run(*arguments: str) -> int:
    """The exit code of a command."""
    try:
        cli.main(["data", *arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SAGEPLAN_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(cli.err, "_width", 160)
    return tmp_path / "cache"


def write(path, rows=30, state_dim=7, **more):
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    ends = np.arange(rows) % 10 == 9
    columns = {
        "observations": rng.standard_normal((rows, state_dim)), "actions": rng.standard_normal((rows, 2)),
        "rewards": np.ones(rows), "terminals": ends, **more,
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for key, array in columns.items():
            file[key] = array
    return path


@pytest.mark.parametrize("command", [[], ["list"], ["get"], ["build"], ["check"]])
def test_help_reads_well(command, capsys):
    assert run(*command, "--help") == 0
    text = capsys.readouterr().out
    assert f"usage: sageplan data{' ' if command else ''}{''.join(command)}" in text
    said = {
        (): "list, get, build and check",
        ("list",): "D4RL's 18 tasks",
        ("get",): "official file",
        ("build",): "Maze2D only",
        ("check",): "for machines",
    }
    assert said[tuple(command)] in text


@pytest.mark.parametrize("command", [[], ["nonsense"], ["get"], ["check"], ["build"], ["check", "a", "--unknown"]])
def test_wrong_usage_exits_with_two(command):
    assert run(*command) == 2


def test_list_shows_every_task_and_what_is_here(cache, capsys):
    write(cache / "hopper_medium-v2.hdf5", rows=30_000)
    write(cache / "walker2d-medium-v2.hdf5", rows=60_000)
    assert run("list") == 0
    text = capsys.readouterr().out
    lines = {name: next(line for line in text.splitlines() if line.startswith(f"{name} ")) for name in TASKS}
    assert len(lines) == 18
    assert lines["hopper-medium-v2"].split()[1:] == ["11", "3", "1000", "2.4", "MB", "hopper_medium-v2.hdf5"]
    assert all(line.endswith(TASKS[name].file_name) for name, line in lines.items())
    assert " 4.9 MB " in lines["walker2d-medium-v2"]
    assert sum(" no " in line for line in lines.values()) == 16
    assert f"in the cache, {cache} (set SAGEPLAN_DATA" in text


def test_get_prints_the_path_and_the_hash_it_could_not_compare(cache, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "server"
    source = write(folder / "maze2d-umaze-sparse-v1.hdf5", state_dim=4)

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        assert run("get", "maze2d-umaze", "--mirror", address) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == str(cache / source.name)
        assert lines[1].endswith(fetch.sha256(source))
        with h5py.File(cache / source.name, "a") as file:
            file.attrs["description"] = "made by hand"
        assert run("get", "maze2d-umaze") == 0
        assert "not the official file, which had no such note: made by hand" in capsys.readouterr().out
        assert run("get", "maze2d-umaze", "--mirror", address, "--out", str(tmp_path / "other")) == 0
        assert (tmp_path / "other" / source.name).read_bytes() == source.read_bytes()
    finally:
        server.shutdown()
        server.server_close()


def test_an_interrupted_get_says_how_to_go_on(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "get", interrupted)
    assert run("get", "hopper-medium") == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on where this one was\n"


def test_errors_are_one_line(cache, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "BACK_OFF_SECONDS", 0)
    (tmp_path / "empty.hdf5").write_bytes(b"")
    for command, message in (
        (["get", "hoper-medium"], "there is no task 'hoper-medium'; did you mean 'hopper-medium-v2'?"),
        (["get", "hopper-medium", "--mirror", "http://127.0.0.1:9"], f"put it here as {cache}/hopper_medium-v2.hdf5"),
        (["build", "kitchen-mixed"], "maze2d-umaze-v1 can"),
        (["check", str(tmp_path / "nowhere.hdf5")], "no such file"),
        (["check", str(tmp_path / "empty.hdf5")], "empty (0 bytes)"),
    ):
        assert run(*command) == 1
        printed = capsys.readouterr()
        assert printed.err.startswith("error: ")
        assert message in printed.err
        assert printed.err.count("\n") == 1
        assert printed.out == ""


def test_build_then_check(cache, capsys):
    pytest.importorskip("mujoco")
    assert (
        run("build", "maze2d-umaze-v1", "--rows", "3000", "--stale-rows", "--seed", "3", "--no-rewards-of-state") == 0
    )
    path = capsys.readouterr().out.strip()
    assert path == str(cache / "maze2d-umaze-v1.hdf5")
    with h5py.File(path) as file:
        assert (len(file["actions"]), file.attrs["seed"], file.attrs["stale_rows"]) == (3000, 3, True)
        assert not file.attrs["rewards_of_state"]
    assert run("build", "maze2d-umaze-v1", "--rows", "3000") == 1
    assert "is there already" in capsys.readouterr().err


def test_what_is_built_here_is_known_under_any_name(tmp_path, capsys):
    pytest.importorskip("mujoco")
    assert run("build", "maze2d-umaze-v1", "--rows", "3000", "--out", str(tmp_path / "mine.hdf5")) == 0
    capsys.readouterr()
    assert run("check", str(tmp_path / "mine.hdf5"), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["task"] == "maze2d-umaze-v1"
    assert record["replay"]["median"] < 1e-6
    assert record["boundaries"]["jumps_inside"] == 0


def test_check_shows_differences_and_exits_with_zero(tmp_path, capsys):
    path = write(tmp_path / "kitchen-mixed-v0.hdf5", state_dim=60, actions=np.zeros((30, 9)))
    assert run("check", str(path)) == 0
    text = capsys.readouterr().out
    assert "30 in 3 episodes" in text
    assert "differs: 30 rows, the official file has 136,950" in text
    assert "note: no replay: kitchen" in text
    assert "actions: column 0–8" in text
    assert "no array of timeouts" in text


def test_check_for_machines(tmp_path, capsys):
    path = write(tmp_path / "robot.hdf5", state_dim=3)
    assert run("check", str(path), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["rows"], record["episodes"], record["task"], record["replay"]) == (30, 3, None, None)
    assert run("check", str(path), "--task", "hopper-medium-v2") == 1
    assert "those of hopper-medium-v2 11 and 3" in capsys.readouterr().err
