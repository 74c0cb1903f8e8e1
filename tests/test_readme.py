"""The README's code runs as written, on small data and a preset cut to a few steps."""

import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

import sageplan
from sageplan.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()
B, C, H, S, A = 3, 7, 12, 11, 3


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


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
    (code,) = blocks("python")
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
    lines = [line.split("  #")[0] for line in "".join(blocks("sh")).splitlines() if line.startswith("sageplan ")]
    assert [shlex.split(line)[1] for line in lines] == ["fit", "score", "diagnose", "info"]
    for line in lines:
        main(shlex.split(line)[1:])
    assert (reader_folder / "hopper-gate" / "gate.json").exists()
    assert (reader_folder / "scores.png").read_bytes().startswith(b"\x89PNG")
    energy = np.load("scores.npz")["energy"]
    assert np.isnan(energy).sum() == 20  # the last row of each of the 20 episodes
    assert (reader_folder / "diagnosis" / "localisation.png").exists()
    assert "Gate fitted to hopper-medium-v2.hdf5" in capsys.readouterr().out


def test_links_point_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (Path(__file__).parents[1] / target).exists(), target
