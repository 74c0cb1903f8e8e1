import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sageplan.errors import DataError
from sageplan.evaluation.bootstrap import Pair, bootstrap, bootstrap_domains, interquartile_mean
from sageplan.evaluation.statistics import paired, welch

stats = pytest.importorskip("scipy.stats")

SCORES = st.lists(st.floats(-200, 200), min_size=1, max_size=12)


def noisy(seed, shift=0.0, count=60, spread=10.0):
    """Treatment and control that share the episode's luck."""
    rng = np.random.default_rng(seed)
    luck = spread * rng.standard_normal(count)
    return Pair(luck + shift + rng.standard_normal(count), luck + rng.standard_normal(count))


def test_of_one_task_it_agrees_with_scipys_bootstrap():
    pair = noisy(0, shift=0.3)
    gap = np.subtract(*pair)
    ours = bootstrap({"task": pair}, paired=True, resamples=20_000)
    theirs = stats.bootstrap((gap,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1))
    assert ours.delta == gap.mean()
    interval = theirs.confidence_interval
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), abs=0.02)
    unpaired = bootstrap({"task": pair}, paired=False, resamples=20_000)
    theirs = stats.bootstrap(
        pair, lambda a, b, axis: a.mean(axis) - b.mean(axis), n_resamples=20_000, method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert (unpaired.low, unpaired.high) == pytest.approx((theirs.low, theirs.high), abs=0.2)


@pytest.mark.parametrize("is_paired", [True, False])
def test_for_large_samples_it_agrees_with_the_t_tests(is_paired):
    pair = noisy(3, shift=0.25, count=400, spread=1.0)
    found = bootstrap({"task": pair}, paired=is_paired, resamples=40_000)
    test = (paired if is_paired else welch)(*pair)
    assert (found.delta, found.low, found.high) == pytest.approx((test.delta, test.low, test.high), abs=0.01)
    assert found.p_greater == pytest.approx(test.p_greater, abs=0.004)
    assert found.p == pytest.approx(test.p, abs=0.008)


def test_every_task_weighs_the_same_however_many_episodes_it_has():
    tasks = {"many": Pair(np.full(500, 3.0), np.full(500, 1.0)), "few": Pair([5.0, 5.0], [1.0, 1.0])}
    found = bootstrap(tasks, paired=True)
    assert (found.tasks, found.delta, found.low, found.high) == (2, 3, 3, 3)


def test_tasks_are_resampled_each_by_itself():
    """Two tasks of very different level: drawing across them would make the interval as wide as their distance."""
    tasks = {"low": noisy(0, count=200), "high": Pair(*(np.add(x, 1_000) for x in noisy(1, count=200)))}
    found = bootstrap(tasks, paired=False)
    assert found.high - found.low < 10
    alone = [bootstrap({name: pair}, paired=False) for name, pair in tasks.items()]
    width = math.hypot(*(one.high - one.low for one in alone)) / 2
    assert found.high - found.low == pytest.approx(width, rel=0.05)


def test_p_is_never_smaller_than_the_resamples_can_tell():
    better = Pair(np.arange(50.0) + 10, np.arange(50.0))
    for resamples in (10, 999, 10_000):
        found = bootstrap({"task": better}, paired=True, resamples=resamples)
        assert found.p_greater == 1 / (resamples + 1)
        assert found.p == 2 / (resamples + 1)
    worse = bootstrap({"task": Pair(*reversed(better))}, paired=True)
    assert (worse.p_greater, worse.p) == (1, 2 / 10_001)
    same = bootstrap({"task": Pair([1, 2, 3], [1, 2, 3])}, paired=True)
    assert (same.p_greater, same.p, same.low, same.high) == (1, 1, 0, 0)


def test_a_true_null_is_rejected_about_as_often_as_promised():
    low = [bootstrap({"task": noisy(seed, count=80)}, paired=True, resamples=500).p < 0.1 for seed in range(300)]
    assert 0.05 < np.mean(low) < 0.16


def test_draws_depend_on_the_seed_and_the_task_alone():
    tasks = {"a": noisy(1), "b": noisy(2, 0.2), "c": noisy(3, 0.4)}
    domains = {"a": "maze", "b": "run", "c": "maze"}
    found = bootstrap_domains(tasks, domains, paired=True, seed=5)
    assert [*found] == ["maze", "run", "all"]
    assert found["all"] == bootstrap(tasks, paired=True, seed=5)
    assert found["run"] == bootstrap({"b": tasks["b"]}, paired=True, seed=5)
    assert found["maze"] == bootstrap({"a": tasks["a"], "c": tasks["c"]}, paired=True, seed=5)
    assert found["all"].low != bootstrap(tasks, paired=True, seed=6).low
    assert found["all"].delta == pytest.approx(np.mean([np.subtract(*pair).mean() for pair in tasks.values()]))


def test_without_pairs_the_arms_may_differ_in_length():
    tasks = {"task": Pair([1.0, 2.0, 3.0], [0.0, 1.0])}
    assert bootstrap(tasks, paired=False).delta == 1.5
    with pytest.raises(DataError, match=r"3 and 2 numbers make no pairs"):
        bootstrap(tasks, paired=True)


@given(st.lists(SCORES, min_size=1, max_size=4))
@settings(max_examples=50)
def test_the_interquartile_mean_agrees_with_scipys_trimmed_mean(tasks):
    found = interquartile_mean(tasks, resamples=50)
    together = np.concatenate(tasks)
    assert found.estimate == pytest.approx(stats.trim_mean(together, 0.25), abs=1e-9)
    assert together.min() - 1e-9 <= found.low <= found.high <= together.max() + 1e-9


def test_an_interquartile_mean_by_hand_and_its_interval():
    assert interquartile_mean([[0, 10, 20, 1_000]]).estimate == 15
    rng = np.random.default_rng(0)
    found = interquartile_mean({"a": rng.standard_normal(400)})
    assert found.low < found.estimate < found.high
    # The 25 % trimmed mean of a normal sample has a standard error of about 1.09 σ/√n.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 1.09 / 20, rel=0.15)
    assert interquartile_mean({"a": np.ones(5)}).low == 1


def test_large_samples_are_drawn_in_portions():
    wide = Pair(np.random.default_rng(0).standard_normal(300_000), np.zeros(300_000))
    found = bootstrap({"task": wide}, paired=True, resamples=20)
    assert found.low < found.delta < found.high
    assert found.high - found.low < 0.02


def test_what_cannot_be_resampled_is_refused():
    with pytest.raises(DataError, match="no tasks"):
        bootstrap({}, paired=True)
    with pytest.raises(DataError, match="resamples must be at least 1, got 0"):
        bootstrap({"task": noisy(0)}, paired=True, resamples=0)
    with pytest.raises(DataError, match="NaN"):
        interquartile_mean([[1.0, math.nan]])
