"""The README's code runs as written, on small data and a preset cut to a few steps."""

import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import sageplan
from sageplan.cli import main
from sageplan.data.official import FACTS, Facts
from sageplan.tasks.catalogue import TASKS, get

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


def test_planning_and_evaluating(reader_folder, tiny_config, monkeypatch):
    """The README's planner, gate and evaluation, cut to a few updates and steps."""
    pytest.importorskip("mujoco")
    import sageplan.evaluation
    import sageplan.planners
    from sageplan.planners.config import HorizonCritic, PartialCosine

    training = PartialCosine(steps=10, batch=16, rate=1e-3, final_rate=0.0, warmup=2)
    small = replace(
        sageplan.planners.preset("cpu", get("hopper-medium-v2")),
        optimiser=training,
        critic=HorizonCritic(width=16, optimiser=training),
    )
    monkeypatch.setattr(sageplan.planners, "preset", lambda name, task: small)
    task, evaluate = replace(get("hopper-medium-v2"), step_limit=3), sageplan.evaluation.evaluate

    def short(planner, critic, gate, name, arms, episodes, **more):
        return evaluate(planner, critic, gate, task, arms, 1, **more)

    monkeypatch.setattr(sageplan.evaluation, "evaluate", short)
    data = sageplan.Trajectories.load("hopper-medium-v2.hdf5")
    names = {
        "data": data,
        "gate": sageplan.Gate.fit(data, tiny_config, progress=False),
        "observations": torch.from_numpy(data.states[:2]),
        "generator": torch.Generator().manual_seed(0),
    }
    exec(compile(block_with("Veteran.fit"), "README.md", "exec"), names)
    assert names["plans"].states.shape == (2, 50, 32, S)
    assert names["values"].shape == (2, 50)
    assert names["choice"].action.shape == (2, A)
    assert [episode.arm for episode in names["found"].episodes] == ["mcss", "sage"]
    assert (reader_folder / "mine.jsonl").exists()


def test_the_run_commands(reader_folder, tiny_config, monkeypatch, capsys):
    """A run of one short episode, on data that are built small."""
    pytest.importorskip("mujoco")
    from sageplan import cli_run
    from sageplan.planners.config import HorizonCritic, PartialCosine
    from sageplan.runs import diagnosis
    from sageplan.runs.config import preset

    monkeypatch.setenv("SAGEPLAN_DATA", str(reader_folder / "cache"))
    monkeypatch.setitem(FACTS, "maze2d-umaze-v1", Facts(6_000))
    task = replace(get("maze2d-umaze-v1"), step_limit=3)
    monkeypatch.setitem(TASKS, task.name, task)
    training = PartialCosine(steps=10, batch=16, rate=1e-3, final_rate=0.0, warmup=2)
    config = preset("cpu", task)
    planner = replace(config.planner, optimiser=training, critic=HorizonCritic(width=16, optimiser=training))
    monkeypatch.setattr(cli_run, "preset", lambda name, task: replace(config, gate=tiny_config, planner=planner))
    monkeypatch.setattr(diagnosis, "STARTS", 1)
    monkeypatch.setattr(diagnosis, "CANDIDATES", 4)
    lines = [line for line in command_lines() if line[0] in ("run", "evaluate", "compare")]
    assert [line[0] for line in lines] == ["run", "evaluate", "compare"]
    for line in lines:
        main([*line, "--episodes", "2"] if line[0] != "compare" else line)
    assert (reader_folder / "runs" / "maze2d-umaze-v1-cpu-0" / "report.html").exists()
    assert "stratified bootstrap" in capsys.readouterr().out


def test_the_command_lines(reader_folder, capsys):
    lines = [line for line in command_lines() if line[0] not in ("data", "run", "evaluate", "compare")]
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
