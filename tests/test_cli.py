"""The command line: exit codes, one-line errors, presets and overrides, interruption."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import sageplan
from sageplan import cli
from sageplan.data.readers import save_npz


@pytest.fixture
def files(tmp_path, monkeypatch, maze_data, tiny_gate):
    monkeypatch.chdir(tmp_path)
    save_npz(maze_data, tmp_path / "data.npz")
    tiny_gate.save("gate")
    return tmp_path


def run(*arguments: str) -> int:
    """The exit code of a command."""
    try:
        cli.main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["score", "--help"], ["diagnose", "--help"]])
def test_help_exits_with_zero_and_says_what_for(arguments, capsys):
    assert run(*arguments) == 0
    text = capsys.readouterr().out
    assert "usage: sageplan" in text.lower()
    assert "Fit a gate to recorded trajectories" in text or arguments[0] != "--help"


def test_the_fit_help_shows_the_defaults_of_the_chosen_preset(capsys):
    run("fit", "--preset", "paper", "--help")
    assert "200000" in capsys.readouterr().out


def test_version(capsys):
    assert run("--version") == 0
    assert sageplan.__version__ in capsys.readouterr().out


def test_wrong_usage_exits_with_two():
    assert run("fit") == 2
    assert run("nonsense") == 2


def test_an_error_is_one_line_without_a_traceback(files, capsys):
    assert run("info", "nowhere") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: nowhere/gate.json does not exist")
    assert error.count("\n") == 1
    assert run("info", "nowhere", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_brackets_in_messages_survive(files, capsys):
    np.savez("bad.npz", states=np.zeros(5), actions=np.zeros((5, 2)))
    assert run("score", "bad.npz", "--gate", "gate") == 1
    assert "[rows, size]" in capsys.readouterr().err


def test_fit_overrides_a_preset_field_and_resumes(files, monkeypatch, tiny_config, capsys):
    monkeypatch.setitem(sageplan.PRESETS, "cpu", tiny_config)
    arguments = ["fit", "data.npz", "--out", "mine", "--stage2.width", "16", "--seed", "3"]
    assert run(*arguments) == 0
    gate = sageplan.Gate.load("mine")
    assert gate.config.stage2.width == 16
    assert gate.info["seed"] == 3
    assert run(*arguments) == 0
    assert run(*arguments[:-1], "4") == 1
    assert "another seed" in capsys.readouterr().err


def test_score_lists_the_tampered_stretch_first(files, maze_data, tiny_gate, capsys):
    states = maze_data.states.copy()
    episode = int(maze_data.lengths.argmax())
    start = int(maze_data.offsets[episode])
    states[start + 20 : start + 30] += np.random.default_rng(0).normal(0, 1, (10, 4)).astype(np.float32)
    save_npz(sageplan.Trajectories(states, maze_data.actions, maze_data.offsets, name="tampered"), files / "t.npz")
    assert run("score", "t.npz", "--gate", "gate", "--out", "found.npz", "--worst", "1") == 0
    found = np.load("found.npz")
    worst = np.nanargmax(found["energy"])
    assert start + 19 <= worst < start + 30
    assert found["quantile"][worst] > 0.99
    table = capsys.readouterr().out
    assert f" {episode} " in table
    assert (files / "found.png").exists()


def test_score_refuses_data_of_another_size(files, capsys):
    np.savez("other.npz", states=np.zeros((50, 3)), actions=np.zeros((50, 2)))
    assert run("score", "other.npz", "--gate", "gate") == 1
    assert "this gate was fitted to 4 and 2" in capsys.readouterr().err


def test_info_and_diagnose(files, capsys):
    assert run("info", "gate") == 0
    assert run("diagnose", "data.npz", "--gate", "gate", "--no-baselines") == 0
    text = capsys.readouterr().out
    assert "Corruption localisation" in text
    assert "AUROC" in text


def test_ctrl_c_leaves_a_run_that_goes_on(files):
    """A real process, a real signal, and the same command again."""
    program = (
        "import sys, sageplan\n"
        "from dataclasses import replace\n"
        "from sageplan import cli, training\n"
        "import sageplan.training.loop as loop\n"
        "loop.CHECKPOINT_SECONDS = 0\n"
        "P = sageplan.PRESETS['cpu']\n"
        "def cut(part, steps): return replace(part, optimiser=replace(part.optimiser, steps=steps, batch=8))\n"
        "sageplan.PRESETS['cpu'] = replace(P, stage1=cut(P.stage1, int(sys.argv.pop(1))), stage2=cut(P.stage2, 100),\n"
        "    inverse_dynamics=None)\n"
        "cli.main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, "3000", "fit", "data.npz", "--out", "slow"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )  # fmt: skip
    checkpoint = files / "slow.run" / "stage1" / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on from slow.run" in error
    assert "Traceback" not in error
    assert checkpoint.exists()
