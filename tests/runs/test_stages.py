"""A run does it all, goes on where it was killed, at every stage, and comes out the same."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sageplan.training.loop as loop
from sageplan.cli_run import finish
from sageplan.errors import ConfigError, DataError, EvaluationError, FormatError
from sageplan.evaluation.records import Records, read_records
from sageplan.runs import stages
from sageplan.runs.config import preset as settings_of
from sageplan.runs.folder import Run
from sageplan.runs.stages import evaluate_run, task_file
from sageplan.tasks import catalogue


def weights(run):
    return [path.read_bytes() for part in ("gate", "planner") for path in (run.path / part).glob("*.safetensors")]


def test_a_run_leaves_everything_and_a_second_call_changes_nothing(start):
    run = start()
    parts = {path.name for path in run.path.iterdir()}
    assert {"run.json", "gate", "planner", "episodes.jsonl", "effort.json", "diagnosis.json"} <= parts
    assert len(run.episodes()) == 4
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    start()
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert len(start(episodes=3).episodes()) == 6


class KilledError(BaseException):
    pass


STAGES = ("stage1", "stage2", "inverse_dynamics", "planner", "critic", "diagnosis", "episodes")


@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_any_stage_it_goes_on_to_the_same_end(start, monkeypatch, stage):
    """The process is taken away in the middle of the stage; what comes out of the second call is compared with a
    run that was left alone."""
    whole = start("whole")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(loop, "LOG_EVERY", 20)
    with monkeypatch.context() as patch:
        if stage == "diagnosis":
            patch.setattr(stages, "diagnose_run", lambda *args: (_ for _ in ()).throw(KilledError))
        elif stage == "episodes":
            append = Records.append

            def once(self, episodes):
                append(self, episodes)
                raise KilledError

            patch.setattr(Records, "append", once)
        else:
            save = loop.Checkpoint.save

            def die(self, step, *rest):
                save(self, step, *rest)
                if self.path.parent.name == stage and step == 40:
                    raise KilledError

            patch.setattr(loop.Checkpoint, "save", die)
        with pytest.raises(KilledError):
            start("killed")
    finished = start("killed")
    assert weights(finished) == weights(whole)
    assert sorted(finished.episodes(), key=lambda e: e.cell) == sorted(whole.episodes(), key=lambda e: e.cell)
    assert finished.diagnosis() == whole.diagnosis()


PROGRAM = """
import pathlib, sys
import sageplan.training.loop as loop
from sageplan.runs import diagnosis
from sageplan.runs.config import RunConfig
from sageplan.runs.stages import run
from sageplan.tasks import catalogue
import dataclasses, json, torch

torch.set_num_threads(1)
loop.CHECKPOINT_SECONDS, loop.LOG_EVERY = 0, 20
diagnosis.STARTS, diagnosis.CANDIDATES = 3, 8
config = RunConfig.from_json(json.loads(pathlib.Path(sys.argv[1]).read_text()))
task = dataclasses.replace(catalogue.get("maze2d-umaze-v1"), step_limit=12)
catalogue.TASKS[task.name] = task
print("begun", flush=True)
run(task, "cpu", config, out=sys.argv[2], data=sys.argv[3], episodes=6, device="cpu", progress=False)
"""


@pytest.mark.slow
def test_killed_for_good_again_and_again_it_goes_on_to_the_same_end(start, tiny_run_config, maze_file, tmp_path):
    """A real process and SIGKILL, a little later every time, until it gets to its end."""
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(tiny_run_config.to_json()))
    command = [sys.executable, "-c", PROGRAM, str(settings), str(tmp_path / "killed"), str(maze_file)]
    kills, patience = 0, 0.05
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "begun\n", process.stderr.read()
        try:
            process.wait(timeout=patience)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills, patience = kills + 1, 1.25 * patience + 0.1
    assert process.returncode == 0, process.stderr.read()
    assert kills >= 3
    whole, finished = start("whole", episodes=6), Run.open(tmp_path / "killed")
    assert weights(finished) == weights(whole)
    assert sorted(finished.episodes(), key=lambda e: e.cell) == sorted(whole.episodes(), key=lambda e: e.cell)
    assert finished.diagnosis() == whole.diagnosis()


def test_a_killed_process_lets_go_of_the_folder_and_two_at_a_time_are_refused(start, finished, tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, time\nfrom pathlib import Path\n"
         "from sageplan.training.checkpoint import hold\n"
         "with hold(Path(sys.argv[1]), 'taken'):\n    print('held', flush=True)\n    time.sleep(60)\n",
         str(finished.path / ".lock")], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="is in use by another run"):
            start("finished", episodes=3, selectors=("mcss", "sage", "random"))
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    start("finished", episodes=3, selectors=("mcss", "sage", "random"))


def test_another_configuration_task_seed_or_data_is_refused(start, finished, tiny_run_config, tmp_path, maze_file):
    with pytest.raises(ConfigError, match="a run with another seed"):
        start("finished", seed=1)
    other = replace(tiny_run_config, planner=replace(tiny_run_config.planner, ema=0.5))
    with pytest.raises(ConfigError, match="a run with another config"):
        start("finished", config=other)
    import h5py

    file = tmp_path / "maze2d-umaze-v1.hdf5"
    shutil.copy(maze_file, file)
    with h5py.File(file, "r+") as content:
        content["observations"][0, 0] += 0.25
    with pytest.raises(ConfigError, match="a run with another data"):
        start("finished", data=file)


def test_a_kill_while_the_folder_was_made_does_not_block_it(start, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.json.part").write_text("{")
    assert start(episodes=1).path.name == "run"


def test_the_command_names_every_setting_that_is_not_the_presets(tmp_path):
    task = catalogue.get("hopper-medium-v2")
    config = settings_of("cpu", task)
    data = {"name": "x", "fingerprint": "y", "rows": 1, "episodes": 1, "origin": "own"}
    assert Run.create(tmp_path / "a", task, "cpu", 3, data, config).command == (
        "sageplan run hopper-medium-v2 --preset cpu --seed 3"
    )
    changed = replace(config, planner=replace(config.planner, value_weight=None, ema=0.5))
    changed = replace(changed, rollout=replace(changed.rollout, replan_every=2))
    assert Run.create(tmp_path / "b", task, "cpu", 0, data, changed).command == (
        "sageplan run hopper-medium-v2 --preset cpu --seed 0 --planner.value-weight None --planner.ema 0.5 "
        "--rollout.replan-every 2"
    )


def test_an_interrupted_evaluation_still_counts_what_it_cost(start, monkeypatch):
    append, done = Records.append, []

    def once(self, episodes):
        append(self, episodes)
        done.extend(episodes)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Records, "append", once)
        with pytest.raises(KilledError):
            start(episodes=3)
    run = start(episodes=3)
    sessions = json.loads((run.path / "effort.json").read_text())["sessions"]
    assert len(sessions) == 2
    assert sum(session["decisions"] for session in sessions) >= sum(episode.decisions for episode in run.episodes())


def test_a_folder_that_holds_something_else_is_left_alone(start, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="not empty and holds no run"):
        start()


def test_data_of_another_task_are_refused(start, tmp_path):
    np.savez(tmp_path / "other.npz", states=np.zeros((50, 3), np.float32), actions=np.zeros((50, 2), np.float32))
    with pytest.raises(DataError, match="maze2d-umaze-v1 has 4 and 2"):
        start(data=tmp_path / "other.npz")


def test_strides_that_differ_are_refused(tiny_run_config):
    with pytest.raises(ConfigError, match=r"gate.stride=2 and planner.stride=1 differ"):
        replace(tiny_run_config, gate=replace(tiny_run_config.gate, stride=2))


def test_a_strided_planner_gets_a_gate_and_actions_of_its_stride(start, tiny_run_config):
    stride = 3
    config = replace(
        tiny_run_config,
        gate=replace(tiny_run_config.gate, stride=stride),
        planner=replace(tiny_run_config.planner, stride=stride),
        rollout=replace(tiny_run_config.rollout, replan_every=1),
    )
    run = start(config=config)
    assert run.gate().config.stride == run.planner().stride == stride
    finish(run)  # a page with shorter curves
    assert "nan" not in (run.path / "report.html").read_text()
    assert all(episode.prefix_energy > 0 and episode.gap is None for episode in run.episodes())
    assert all(episode.decisions == 12 for episode in run.episodes())
    with pytest.raises(ConfigError, match="replan_every=3 executes a plan step by step"):
        evaluate_run(run, 3, ["mcss"], rollout=tiny_run_config.rollout, progress=False)


def test_episodes_that_go_on_are_one_for_a_strided_gate(maze_data):
    whole = stages.joined(maze_data)
    assert whole.num_episodes == 20  # the balls that were recorded side by side, 300 rows each
    assert maze_data.num_episodes > 60
    np.testing.assert_array_equal(whole.states, maze_data.states)


# ---- evaluating ------------------------------------------------------------------------------------


def test_more_episodes_and_other_selectors_go_to_the_same_records(finished):
    before = finished.episodes()
    evaluate_run(finished, 4, ["mcss", "lowest-energy"], progress=False)
    after = finished.episodes()
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1 + 4
    assert len(json.loads((finished.path / "effort.json").read_text())["sessions"]) == 2


@pytest.mark.parametrize("part", ["gate", "planner"])
def test_a_missing_part_says_how_to_get_it(finished, part):
    shutil.rmtree(finished.path / part)
    with pytest.raises(FormatError, match=f"no finished {part}; `sageplan run maze2d-umaze-v1 --preset cpu"):
        evaluate_run(finished, 4, ["mcss"], progress=False)


def test_records_of_another_planner_are_not_continued(finished, start, tmp_path):
    other = start("other", seed=1, episodes=1)
    shutil.copytree(other.path / "planner", finished.path / "planner", dirs_exist_ok=True)
    for stale in (finished.path / "planner").glob("*.safetensors"):
        if stale.name not in {path.name for path in (other.path / "planner").iterdir()}:
            stale.unlink()
    with pytest.raises(ConfigError, match="made with other settings"):
        evaluate_run(finished, 4, ["mcss"], progress=False)


def test_a_full_disk_keeps_what_was_finished(finished, monkeypatch):
    before = read_records(finished.records)
    write = os.write

    def full(file, data):
        if os.fstat(file).st_size > 0 and Path(f"/proc/self/fd/{file}").resolve() == finished.records.resolve():
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(EvaluationError, match=r"No space left on device.*are kept"):
        evaluate_run(finished, 5, ["mcss"], progress=False)
    monkeypatch.undo()
    assert read_records(finished.records) == before


# ---- the folder ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda record: record | {"format": "other"}, "not of a run"),
        (lambda record: record | {"version": 99}, "as version 99; this is .* which reads version 1"),
        (lambda record: {k: v for k, v in record.items() if k != "config"}, "is damaged: KeyError"),
        (lambda record: record | {"task": "chess"}, "there is no task 'chess'"),
    ],
)
def test_folders_that_hold_no_run_are_refused(finished, damage, message):
    path = finished.path / "run.json"
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(FormatError, match=message):
        Run.open(finished.path)


def test_half_a_file_and_no_file_are_refused(finished, tmp_path):
    path = finished.path / "run.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(FormatError, match="not valid JSON"):
        Run.open(finished.path)
    with pytest.raises(FormatError, match="does not exist; expected a run folder"):
        Run.open(tmp_path / "nowhere")


def test_a_run_without_episodes_says_how_to_get_some(finished):
    finished.records.unlink()
    with pytest.raises(FormatError, match="holds no episodes yet; `sageplan evaluate"):
        finished.episodes()


# ---- where data come from --------------------------------------------------------------------------


def test_maze_data_are_found_in_the_cache_or_made(monkeypatch, tmp_path, maze_file):
    monkeypatch.setenv("SAGEPLAN_DATA", str(tmp_path))
    built = []
    monkeypatch.setattr(stages, "build", lambda task: built.append(task.name) or maze_file)
    assert task_file(catalogue.get("maze2d-umaze-v1")) == maze_file
    assert built == ["maze2d-umaze-v1"]
    shutil.copy(maze_file, tmp_path / "maze2d-umaze-v1.hdf5")
    assert task_file(catalogue.get("maze2d-umaze-v1")) == tmp_path / "maze2d-umaze-v1.hdf5"


def test_other_data_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("SAGEPLAN_DATA", str(tmp_path))
    monkeypatch.setattr(stages, "get", lambda task: Path("asked for", task.name))
    assert task_file(catalogue.get("hopper-medium-v2")) == Path("asked for/hopper-medium-v2")
