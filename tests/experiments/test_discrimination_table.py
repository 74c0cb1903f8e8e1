"""The discrimination experiment: records, tables, and what it says of its own shortcomings."""

import json

import pytest

import sageplan
from sageplan import Gate
from sageplan.data.readers import save_npz
from sageplan.experiments.discrimination import Run, domain_means, markdown


def record(task, **auroc):
    return {
        "task": task, "data": "regenerated, seed 0", "rows": 1_000_000, "seed": 0, "fit_seconds": {"wall": 100.0},
        "known_to_the_simulator": {"share": 1.0, "sage": auroc["sage"]}, "auroc": auroc,
        "ranking": {"first": 0.9, "below": 0.99}, "localisation": {"shuffle, plan": 0.9},
    }  # fmt: skip


def test_a_run_leaves_the_same_numbers_as_table_and_json_and_is_not_repeated(
    tmp_path, monkeypatch, maze_data, tiny_config
):
    monkeypatch.setitem(sageplan.PRESETS, "cpu", tiny_config)
    save_npz(maze_data, tmp_path / "maze2d-umaze-v1.npz")
    run = Run((tmp_path / "maze2d-umaze-v1.npz",), runs=tmp_path / "runs", out=tmp_path / "results")
    run()
    found = json.loads((tmp_path / "results" / "discrimination.json").read_text())
    (task,) = found["tasks"]
    assert set(task["auroc"]) == {"sage", "ridge", "mlp", "random-latent ridge", "simulator"}
    assert task["auroc"]["simulator"] == max(task["auroc"].values())
    assert found["domains"]["Maze2D"]["sage"] == {"mean": task["auroc"]["sage"], "standard_error": None}
    text = (tmp_path / "results" / "discrimination.md").read_text()
    assert f"{task['auroc']['sage']:.4f}" in text
    assert found["command"] in text

    monkeypatch.setattr(Gate, "fit", lambda *_, **__: pytest.fail("fitted again"))
    run()
    assert (tmp_path / "results" / "discrimination.md").read_text() == text


def test_domains_are_means_with_standard_errors():
    means = domain_means([record("hopper-medium-v2", sage=0.9), record("walker2d-medium-v2", sage=0.98)])
    assert means["MuJoCo"]["sage"]["mean"] == pytest.approx(0.94)
    assert means["MuJoCo"]["sage"]["standard_error"] == pytest.approx(0.04)  # σ = .0566, divided by √2


def test_the_table_says_where_the_gate_falls_short():
    tasks = [
        record("hopper-medium-v2", sage=0.99, ridge=0.9, simulator=0.992),
        record("antmaze-medium-play-v2", sage=0.95, ridge=0.96, simulator=0.999),
    ]
    text = markdown({"command": "x", "machine": "y", "tasks": tasks, "domains": domain_means(tasks)})
    assert "More than 0.005 below the simulator where it knows the state: antmaze-medium-play-v2 by 0.0490." in text
    assert "as well as SAGE or better: ridge on antmaze-medium-play-v2 (0.9600)." in text
