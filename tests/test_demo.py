"""The demo, with a preset of a few steps."""

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

from dataclasses import replace

from sageplan import cli, demo
from sageplan.evaluation.config import RolloutConfig
from sageplan.planners.config import HorizonCritic, PartialCosine
from sageplan.runs import diagnosis
from sageplan.runs.config import preset
from sageplan.tasks import catalogue

TRAINING = PartialCosine(steps=20, batch=16, rate=1e-3, final_rate=0.0, warmup=2)


def test_the_demo_leaves_its_report_and_goes_on_where_it_was(tmp_path, monkeypatch, tiny_config, capsys):
    task = replace(catalogue.get("maze2d-umaze-v1"), step_limit=10)
    config = preset("cpu", task)
    planner = replace(
        config.planner, horizon=16, optimiser=TRAINING, critic=HorizonCritic(width=16, patch=8, optimiser=TRAINING)
    )
    tiny = replace(config, gate=tiny_config, planner=planner, rollout=RolloutConfig(candidates=4, replan_every=5))
    monkeypatch.setitem(catalogue.TASKS, task.name, task)
    monkeypatch.setattr(demo, "shortened", lambda config: tiny)
    monkeypatch.setattr(diagnosis, "STARTS", 2)
    monkeypatch.setattr(diagnosis, "CANDIDATES", 6)
    command = ["demo", "--out", str(tmp_path), "--maze", "umaze", "--rows", "6000", "--episodes", "2"]
    cli.main(command)
    said = capsys.readouterr()
    assert "data: 6,000 rows" in said.err
    assert "report.html" in said.out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Which plans can happen?" in page
    assert "do not stand beside published ones" in page
    before = (tmp_path / "run" / "episodes.jsonl").read_bytes()
    cli.main(command)
    assert "data:" not in capsys.readouterr().err
    assert (tmp_path / "run" / "episodes.jsonl").read_bytes() == before
    with pytest.raises(SystemExit):
        cli.main([*command[:-4], "--rows", "7000", "--episodes", "2"])
    assert "holds 6000 rows of seed 0, not 7000 of seed 0" in " ".join(capsys.readouterr().err.split())


def test_the_demos_trainings_are_the_presets_but_shorter():
    config = preset("cpu", catalogue.get("maze2d-medium-v1"))
    short = demo.shortened(config)
    assert short.rollout == config.rollout
    assert (short.planner.prediction, short.planner.horizon) == ("noise", 32)  # the paper's
    assert short.gate.stage2.optimiser.steps < config.gate.stage2.optimiser.steps
    assert short.planner.critic.optimiser.steps < config.planner.critic.optimiser.steps
