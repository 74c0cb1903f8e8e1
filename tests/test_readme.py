"""The README's code runs as written, on small data and a preset cut to a few steps."""

import re
import shlex
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import sageplan
from sageplan.cli import main
from sageplan.data.official import FACTS, Facts

README = (Path(__file__).parents[1] / "README.md").read_text()
B, C, H, S, A = 3, 7, 12, 11, 3


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def block_with(text: str) -> str:
    (code,) = (code for code in blocks("python") if text in code)
    return code


def command_lines() -> list[list[str]]:
    """What follows `sageplan` on the lines of the shell blocks."""
    lines = "".join(blocks("sh")).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("sageplan ")]


@pytest.fixture
def reader_folder(tmp_path, monkeypatch, tiny_config):
    """A folder with a small file of the official Hopper layout, where the preset `cpu` takes seconds."""
    rng = np.random.default_rng(0)
    rows = 4_000
    actions = rng.uniform(-1, 1, (rows, A)).astype(np.float32)
    states = np.zeros((rows, S), np.float32)
    mix, push = 0.95 * np.linalg.qr(rng.standard_normal((S, S)))[0], rng.standard_normal((A, S))
    for t in range(rows - 1):
        states[t + 1] = states[t] @ mix + actions[t] @ push
    timeouts = np.zeros(rows, bool)
    timeouts[199::200] = True
    with h5py.File(tmp_path / "hopper-medium-v2.hdf5", "w") as file:
        file.update({"observations": states, "actions": actions, "rewards": np.zeros(rows, np.float32)})
        file.update({"terminals": np.zeros(rows, bool), "timeouts": timeouts})
    monkeypatch.setitem(sageplan.PRESETS, "cpu", tiny_config)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_ten_lines(reader_folder):
    code = block_with("Gate.fit")
    rng = np.random.default_rng(1)
    names = {
        "states": rng.standard_normal((B, C, H + 1, S)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (B, C, H, A)).astype(np.float32),
        "values": rng.standard_normal((B, C)),
    }
    exec(compile(code, "README.md", "exec"), names)
    assert names["energy"].shape == (B, C)
    assert names["steps"].shape == (B, C, H)
    np.testing.assert_allclose(names["steps"][..., :10].mean(-1), names["energy"], rtol=1e-5)
    assert names["choice"].kept.sum(1).tolist() == [6] * B
    assert names["choice"].index.shape == (B,)


def test_the_command_lines(reader_folder, capsys):
    lines = [line for line in command_lines() if line[0] != "data"]
    assert [line[0] for line in lines] == ["fit", "score", "diagnose", "info"]
    for line in lines:
        main(line)
    assert (reader_folder / "hopper-gate" / "gate.json").exists()
    assert (reader_folder / "scores.png").read_bytes().startswith(b"\x89PNG")
    energy = np.load("scores.npz")["energy"]
    assert np.isnan(energy).sum() == 20  # the last row of each of the 20 episodes
    assert (reader_folder / "diagnosis" / "localisation.png").exists()
    assert "Gate fitted to hopper-medium-v2.hdf5" in capsys.readouterr().out


def test_the_tasks():
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    names = {}
    exec(compile(block_with("make_vector"), "README.md", "exec"), names)
    assert names["env"].unwrapped.task.name == names["envs"].task.name == "hopper-medium-v2"
    assert names["observation"].shape == (S,)
    assert names["observations"].shape == (50, S)
    assert round(names["score"]) == 44
    names["envs"].close()


def test_the_data_commands(reader_folder, monkeypatch, capsys):
    """`get` finds its file in the cache; `build` makes a short one."""
    pytest.importorskip("mujoco")
    cache = reader_folder / "cache"
    cache.mkdir()
    monkeypatch.setenv("SAGEPLAN_DATA", str(cache))
    monkeypatch.setitem(FACTS, "maze2d-umaze-v1", Facts(3_000))
    shutil.copy(reader_folder / "hopper-medium-v2.hdf5", cache / "hopper_medium-v2.hdf5")
    lines = [line for line in command_lines() if line[0] == "data"]
    assert [line[1] for line in lines] == ["list", "get", "build", "check"]
    said = []
    for line in lines:
        main(line)
        said.append(capsys.readouterr().out)
    assert said[0].count("\n") == 20
    assert said[1].startswith(str(cache / "hopper_medium-v2.hdf5"))
    assert h5py.File(said[2].strip())["observations"].shape == (3_000, 4)
    assert "one-step replay" in said[3]


def test_links_point_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (Path(__file__).parents[1] / target).exists(), target
