"""Statistics in float64, constant dimensions left alone."""

import numpy as np
import pytest
import torch

from sageplan.data.normaliser import Normaliser


def test_by_hand():
    normaliser = Normaliser.fit(np.array([[0, 10], [2, 10], [4, 10]], np.float32))
    assert normaliser.mean.tolist() == [2, 10]
    assert normaliser.std.tolist() == pytest.approx([np.sqrt(8 / 3), 1])
    assert normaliser(torch.tensor([4.0, 10.5])).tolist() == pytest.approx([2 / np.sqrt(8 / 3), 0.5])


@pytest.mark.parametrize("constant", [0.0, 0.75, 1.62, -0.06, 12_345.678])
def test_constants_become_zero_and_not_rounding_noise(constant):
    """float32 statistics of 300,000 equal values give a tiny σ, which would blow rounding up to ±1."""
    values = np.full((300_000, 2), constant, np.float32)
    values[:, 1] = np.random.default_rng(0).normal(size=300_000)
    normaliser = Normaliser.fit(values)
    assert normaliser.std[0] == 1
    assert normaliser(torch.from_numpy(values[:10])).abs()[:, 0].max() < 1e-3
    assert normaliser.std[1] == pytest.approx(values[:, 1].std(dtype=np.float64), rel=1e-6)


def test_a_small_spread_beside_a_large_mean_is_measured():
    values = (1_000 + 0.5 * np.random.default_rng(0).normal(size=(200_000, 1))).astype(np.float32)
    assert Normaliser.fit(values).std[0] == pytest.approx(values.std(dtype=np.float64), rel=1e-5)


def test_a_small_scale_is_no_constant():
    values = np.random.default_rng(0).normal(scale=1e-4, size=(10_000, 1)).astype(np.float32)
    assert Normaliser.fit(values).std[0] == pytest.approx(1e-4, rel=0.05)


def test_chunks_add_up():
    values = np.random.default_rng(0).normal(3, 2, (150_001, 3)).astype(np.float32)
    normaliser = Normaliser.fit(values)
    np.testing.assert_allclose(normaliser.mean, values.mean(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(normaliser.std, values.std(0, dtype=np.float64), rtol=1e-6)
