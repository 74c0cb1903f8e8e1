import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sageplan.errors import DataError
from sageplan.evaluation.statistics import mean, paired, two_level, welch, wilson
from sageplan.evaluation.student import critical, incomplete_beta, upper_tail

stats = pytest.importorskip("scipy.stats")
special = pytest.importorskip("scipy.special")

NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=40).filter(lambda x: np.std(x) > 1e-3)


@pytest.mark.parametrize("dof", [1, 1.5, 2, 7.3, 30, 499, 998.7, 2_000, 1e5, 1e7])
def test_tails_agree_with_scipy_however_far_out(dof):
    for t in (0.0, 0.3, 1.0, 1.96, 5.0, 12.0, 40.0):
        assert upper_tail(t, dof) == pytest.approx(stats.t.sf(t, dof), rel=1e-9)
        assert upper_tail(-t, dof) == pytest.approx(stats.t.sf(-t, dof), rel=1e-9)
    for tail in (0.5, 0.2, 0.05, 0.025, 1e-4, 1e-9):
        assert critical(tail, dof) == pytest.approx(stats.t.isf(tail, dof), rel=1e-7, abs=1e-9)


def test_tails_of_cauchy_and_of_infinite_samples_by_hand():
    for t in (1e-8, 1.0, 1e3):  # SciPy itself is off by 1e-9 at the first
        assert upper_tail(t, 1) == pytest.approx(math.atan2(1, t) / math.pi, rel=1e-13)
    assert upper_tail(math.sqrt(2), 2) == pytest.approx(0.5 - math.sqrt(2) / (2 * math.sqrt(4)), rel=1e-14)
    assert upper_tail(1.0, math.inf) == pytest.approx(stats.norm.sf(1.0), rel=1e-14)
    assert (upper_tail(math.inf, 3), upper_tail(-math.inf, 3)) == (0.0, 1.0)
    assert math.isnan(upper_tail(math.nan, 3))


@given(a=st.floats(0.1, 300), b=st.floats(0.1, 300), x=st.floats(1e-6, 1 - 1e-6))
def test_the_incomplete_beta_function_agrees_with_scipy(a, b, x):
    assert incomplete_beta(a, b, x, 1 - x) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-300)


def test_a_mean_by_hand():
    found = mean([1, 2, 3, 6])
    assert (found.count, found.mean) == (4, 3)
    assert found.se == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3 / 4))
    assert math.isnan(mean([5]).se)


def test_training_seeds_and_episodes_are_two_sources_of_chance():
    found = two_level({7: [1, 3], 8: [5, 5, 5, 9]})
    assert (found.training_seeds, found.episodes) == (2, 6)
    assert found.mean == 4  # (2 + 6) / 2: a training seed with more episodes weighs no more
    assert found.se == pytest.approx(2)  # |6 − 2| / 2
    assert found.se_within == pytest.approx(math.sqrt(1**2 + 1**2) / 2)  # both means have standard error 1
    single = two_level([[1, 3]])
    assert math.isnan(single.se)
    assert single.se_within == 1


def test_two_levels_do_not_shrink_with_more_episodes_of_the_same_training_seeds():
    rng = np.random.default_rng(0)
    levels = rng.normal(0, 10, 5)
    few = two_level([level + rng.standard_normal(10) for level in levels])
    many = two_level([level + rng.standard_normal(10_000) for level in levels])
    assert many.se == pytest.approx(levels.std(ddof=1) / math.sqrt(5), rel=0.02)
    assert many.se > 0.8 * few.se
    assert many.se_within < few.se_within / 10


@given(a=NUMBERS, b=NUMBERS, confidence=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_welch_agrees_with_scipy(a, b, confidence):
    ours = welch(a, b, confidence)
    theirs = stats.ttest_ind(a, b, equal_var=False)
    assert ours.delta == pytest.approx(np.mean(a) - np.mean(b), abs=1e-9)
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-9, abs=1e-9)
    assert ours.dof == pytest.approx(theirs.df, rel=1e-9)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-6)
    greater = stats.ttest_ind(a, b, equal_var=False, alternative="greater")
    assert ours.p_greater == pytest.approx(greater.pvalue, rel=1e-6)
    interval = theirs.confidence_interval(confidence)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


def test_welch_by_hand():
    found = welch([3, 5, 7], [1, 2])  # variances 4 and 0.5; 4/3 and 0.25
    assert found.t == pytest.approx(3.5 / math.sqrt(4 / 3 + 0.25))
    assert found.dof == pytest.approx((4 / 3 + 0.25) ** 2 / ((4 / 3) ** 2 / 2 + 0.25**2 / 1))


@given(pairs=st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=3, max_size=40))
def test_paired_differences_agree_with_scipy(pairs):
    a, b = np.array(pairs).T
    if np.std(a - b) < 1e-3:
        return
    ours, theirs = paired(a, b), stats.ttest_rel(a, b)
    assert (ours.t, ours.dof) == pytest.approx((theirs.statistic, theirs.df), rel=1e-9, abs=1e-9)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-6)
    assert ours.p_greater == pytest.approx(stats.ttest_rel(a, b, alternative="greater").pvalue, rel=1e-6)
    interval = theirs.confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


def test_pairing_sees_what_unpaired_numbers_hide():
    rng = np.random.default_rng(1)
    starts = 50 * rng.standard_normal(100)
    control = starts + rng.standard_normal(100)
    treatment = starts + 1 + rng.standard_normal(100)
    assert paired(treatment, control).p < 1e-6
    assert welch(treatment, control).p > 0.5


def test_samples_without_variance_have_an_answer_too():
    same, more, less = [2.0, 2.0, 2.0], [3.0, 3.0, 3.0], [1.0, 1.0]
    for test in (welch, paired):
        nothing = test(same, same)
        assert (nothing.delta, nothing.low, nothing.high, nothing.t, nothing.p_greater, nothing.p) == (
            0,
            0,
            0,
            0,
            0.5,
            1,
        )
        better = test(more, same)
        assert (better.delta, better.low, better.high, better.p_greater, better.p) == (1, 1, 1, 0, 0)
        assert better.t == math.inf
    worse = welch(less, same)
    assert (worse.t, worse.p_greater, worse.p) == (-math.inf, 1, 0)


@given(trials=st.integers(1, 2_000), share=st.floats(0, 1), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_wilsons_interval_agrees_with_scipy(trials, share, confidence):
    successes = round(share * trials)
    ours = wilson(successes, trials, confidence)
    theirs = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-12)
    assert 0 <= ours.low <= ours.estimate <= ours.high <= 1


def test_wilsons_interval_of_nothing_but_failures_or_successes():
    z = 1.959963984540054
    assert wilson(0, 10).low == 0
    assert wilson(0, 10).high == pytest.approx(z * z / (10 + z * z))
    assert wilson(10, 10).high == 1
    assert wilson(10, 10).low == pytest.approx(10 / (10 + z * z))


def test_what_makes_no_sample_is_refused():
    with pytest.raises(DataError, match=r"values has shape \(0,\), expected \[n\] with n ≥ 1"):
        mean([])
    with pytest.raises(DataError, match=r"values holds 2 NaN or infinite numbers"):
        mean([1, math.nan, math.inf])
    with pytest.raises(DataError, match=r"control has shape \(1,\), expected \[n\] with n ≥ 2"):
        welch([1, 2], [1])
    with pytest.raises(DataError, match=r"3 and 2 numbers make no pairs"):
        paired([1, 2, 3], [1, 2])
    with pytest.raises(DataError, match=r"at least 2 pairs, got 1"):
        paired([1], [2])
    with pytest.raises(DataError, match=r"no training seeds"):
        two_level([])
    with pytest.raises(DataError, match=r"4 successes in 3 trials"):
        wilson(4, 3)
    with pytest.raises(DataError, match=r"confidence is in \(0, 1\), got 95"):
        paired([1, 2], [2, 4], confidence=95)
