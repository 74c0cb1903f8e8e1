"""`sageplan run`, `evaluate` and `compare` as one types them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sageplan import cli, cli_run
from sageplan.runs.config import preset
from sageplan.runs.folder import Run
from sageplan.tasks import catalogue


def run(*arguments) -> int:
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def tiny_preset(monkeypatch, tiny_run_config):
    monkeypatch.setattr(cli_run, "preset", lambda name, task: tiny_run_config)


def test_a_run_and_what_comes_after_it(tiny_preset, maze_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["run", "maze2d-umaze", "--data", maze_file, "--episodes", 2, "--device", "cpu", "--planner.ema", 0.8]
    assert run(*command) == 0
    said = capsys.readouterr()
    assert [line.split(":")[0] for line in said.err.splitlines() if line.startswith("▸")] == [
        "▸ gate", "▸ planner", "▸ diagnosis", "▸ episodes",
    ]  # fmt: skip
    folder = Path("runs/maze2d-umaze-v1-cpu-0")
    assert {"report.html", "summary.json"} <= {path.name for path in folder.iterdir()}
    assert Run.open(folder).config.planner.ema == 0.8
    assert "--planner.ema 0.8" in Run.open(folder).command
    assert "Δ to mcss" in said.out

    assert run("evaluate", folder, "--episodes", 3, "--selectors", "mcss,sage:keep=0.5", "--device", "cpu") == 0
    assert len(Run.open(folder).episodes()) == 4 + 1 + 3
    assert "sage:keep=0.5" in (folder / "report.html").read_text()

    assert run("compare", folder, "--out", "found") == 0
    assert "stratified bootstrap" in capsys.readouterr().out
    assert json.loads(Path("found.json").read_text())["runs"][0]["episodes"] == 2
    assert "| maze2d-umaze-v1 cpu 0 | sticky score | 2 |" in Path("found.md").read_text()
    assert run("compare", folder, "--arm", "random") == 1
    assert "no episode seed that both random and mcss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "chess"], "there is no task 'chess'"),
        (["run", "maze2d-umaze", "--selectors", "best"], "there is no selector 'best'"),
        (["run", "maze2d-umaze", "--episodes", "0"], "a positive number"),
        (["run", "maze2d-umaze", "--gate.stride", "2"], "differ"),
        (
            ["run", "maze2d-umaze", "--selectors", "oracle", "--gate.stride", "3", "--planner.stride", "3"],
            "use replan_ev",
        ),
        (["run", "maze2d-umaze", "--planner.paths.kind", "to terminal"], "leads to terminal"),
        (["run", "maze2d-umaze", "--rollout.candidates", "0"], "candidates must be at least 1"),
        (["evaluate", "nowhere"], "nowhere/run.json does not exist; expected a run folder"),
        (["compare", "nowhere"], "nowhere/run.json does not exist"),
    ],
)
def test_mistakes_are_said_in_one_line_before_anything_is_trained(
    tiny_preset, maze_file, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    more = ["--data", str(maze_file), "--device", "cpu"] if arguments[0] == "run" else []
    assert run(*arguments, *more) in (1, 2)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


def test_the_preset_is_that_of_the_task(capsys):
    veteran = preset("veteran", catalogue.get("antmaze-large-play-v2"))
    assert cli_run.chosen_config(["run", "antmaze-large-play", "--preset", "veteran"]) == veteran
    assert cli_run.chosen_config(["run", "--preset=veteran", "antmaze-large-play-v2"]) == veteran
    assert cli_run.chosen_config(
        ["run", "hopper-medium-v2", "--out", "maze2d-umaze", "--data", "antmaze-large-play"]
    ) == (preset("cpu", catalogue.get("hopper-medium-v2")))
    assert cli_run.chosen_config(["run", "hopper-medium-v2"]) == preset("cpu", catalogue.get("hopper-medium-v2"))


@pytest.mark.parametrize("task", catalogue.TASKS)
@pytest.mark.parametrize("name", ["cpu", "paper", "veteran"])
def test_presets_survive_json(name, task):
    from sageplan.runs.config import RunConfig

    config = preset(name, catalogue.get(task))
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_kitchen_has_dvs_candidates_and_mazes_its_relative_actions():
    kitchen, maze = (preset("veteran", catalogue.get(task)) for task in ("kitchen-mixed-v0", "maze2d-large-v1"))
    assert (kitchen.rollout.candidates, maze.rollout.candidates) == (150, 50)
    assert (kitchen.gate.inverse_dynamics.relative, maze.gate.inverse_dynamics.relative) == (0, 2)
    assert (kitchen.gate.stride, maze.gate.stride) == (4, 15)


def test_ctrl_c_leaves_a_run_that_goes_on(maze_file, tmp_path):
    """A real process and a real signal, in the middle of a training."""
    program = (
        "import sys\nimport sageplan.training.loop as loop\nloop.CHECKPOINT_SECONDS = 0\n"
        "from sageplan import cli\ncli.main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, "run", "maze2d-umaze", "--data", str(maze_file), "--out", "slow"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command goes on from slow" in error
    assert "Traceback" not in error
    assert (tmp_path / "slow" / "run.json").exists()
