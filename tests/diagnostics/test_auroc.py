"""AUROC against scipy and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from sageplan.diagnostics.auroc import auroc

few = st.lists(st.integers(-3, 3), min_size=1, max_size=30).map(np.array)  # with many ties


@given(few, few)
def test_it_is_the_mann_whitney_statistic(positive, negative):
    wanted = mannwhitneyu(positive, negative).statistic / (len(positive) * len(negative))
    assert auroc(positive, negative) == pytest.approx(wanted)


@given(few, few)
def test_exchanging_the_groups_mirrors_it(positive, negative):
    assert auroc(positive, negative) == pytest.approx(1 - auroc(negative, positive))
    assert auroc(np.exp(positive / 2.0), np.exp(negative / 2.0)) == pytest.approx(auroc(positive, negative))


@pytest.mark.parametrize(
    ("positive", "negative", "area"),
    [([2, 3], [0, 1], 1), ([0, 1], [2, 3], 0), ([1, 1], [1, 1], 0.5), ([1, 3], [2], 0.5), ([2, 2], [2, 1], 0.75),
     ([np.inf, 1], [0, np.inf], 0.625)],
)  # fmt: skip
def test_by_hand(positive, negative, area):
    assert auroc(np.array(positive, np.float32), np.array(negative, np.float32)) == area


def test_large_groups_do_not_overflow():
    count = 100_000
    numbers = np.arange(count, dtype=np.float32)
    assert auroc(numbers + count, numbers) == 1
    assert auroc(numbers, numbers) == pytest.approx(0.5)
