"""Figures are drawn, and say in one line what is missing when they cannot be."""

import sys

import numpy as np
import pytest

from sageplan.diagnostics.localisation import Localisation
from sageplan.errors import MissingExtraError
from sageplan.report import figures

pytest.importorskip("matplotlib")


def is_png(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000


def test_each_figure_is_drawn(tmp_path):
    rng = np.random.default_rng(0)
    mask = np.zeros((20, 64), bool)
    mask[:, 30:42] = True
    clean = rng.gamma(2, 0.02, (20, 64))
    result = Localisation("shuffle", "plan", 0.97, 1.01, clean, clean + mask, mask)
    figures.energy_histogram(tmp_path / "a.png", {"real": clean.ravel(), "wrong": clean.ravel() + 1}, {"99 %": 1}, "t")
    figures.localisation(tmp_path / "b.png", [result, result], "t")
    figures.discrimination(tmp_path / "c.png", {"sage": 0.98, "ridge": 0.9, "simulator": 0.995}, "t")
    assert all(is_png(tmp_path / f"{name}.png") for name in "abc")


def test_energies_of_zero_do_not_break_the_logarithmic_axis(tmp_path):
    figures.energy_histogram(tmp_path / "a.png", {"real": np.array([0.0, 0.1, 0.2])}, {}, "t")
    assert is_png(tmp_path / "a.png")


def test_a_missing_matplotlib_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"sageplan\[report\]"):
        figures.discrimination(tmp_path / "c.png", {"sage": 0.98}, "t")
    assert not (tmp_path / "c.png").exists()
