"""The demo, with a preset of a few steps."""

import json

import pytest

import sageplan
from sageplan.demo import demo
from sageplan.errors import ConfigError


def test_the_demo_leaves_its_pictures_and_numbers_and_goes_on_where_it_was(tmp_path, monkeypatch, tiny_config):
    monkeypatch.setitem(sageplan.PRESETS, "cpu", tiny_config)
    demo(tmp_path, "umaze", 8_000, seed=0)
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"plans.png", "localisation.png", "energies.png", "discrimination.png"}
    first = json.loads((tmp_path / "demo.json").read_text())
    assert first["plans"]["AUROC, through a wall against possible"] > 0
    demo(tmp_path, "umaze", 8_000, seed=0)
    second = json.loads((tmp_path / "demo.json").read_text())
    assert second["plans"] == first["plans"]
    assert second["discrimination"]["auroc"] == first["discrimination"]["auroc"]


def test_a_folder_of_another_size_is_refused(tmp_path, maze_data):
    from sageplan.data.readers import save_npz

    save_npz(maze_data, tmp_path / "maze2d-umaze.npz")
    with pytest.raises(ConfigError, match="holds 6000 rows, not 8000"):
        demo(tmp_path, "umaze", 8_000, seed=0)
