"""The examples run."""

import importlib.util
from pathlib import Path

import pytest


def test_own_planner(tiny_config):
    pytest.importorskip("mujoco")
    path = Path(__file__).parents[1] / "examples" / "own_planner.py"
    spec = importlib.util.spec_from_file_location("own_planner", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shares = module.main(rows=6_000, preset=tiny_config, balls=20, candidates=10, progress=False)
    assert list(shares) == ["without the gate", "with it"]
    assert all(0 < share <= 1 for share in shares.values())
