"""The selection rule, by hand and by property."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sageplan.errors import ConfigError, DataError
from sageplan.gate.select import keep_count, select

NAN, INF = np.nan, np.inf
UNITS = st.sampled_from(["raw", "pool"])
KEEP = st.floats(0.01, 1)
PENALTY = st.floats(0, 100)

ordinary = st.floats(-1e6, 1e6, width=32)
anything = ordinary | st.sampled_from([NAN, INF, -INF])


def pools(*elements, dtype=np.float32, most=12):
    """Arrays of the same length, one of each kind of elements."""
    return st.integers(1, most).flatmap(
        lambda count: st.tuples(*(hnp.arrays(dtype, count, elements=kind) for kind in elements))
    )


# ---- by hand ---------------------------------------------------------------------------------------


def test_the_worst_energies_are_dropped_before_values_are_compared():
    choice = select([5.0, 1.0, 2.0, 3.0, 4.0], [9.0, 0.0, 1.0, 2.0, 3.0], keep=0.8, penalty=0.0)
    assert choice.kept.tolist() == [False, True, True, True, True]
    assert choice.score.tolist() == [-INF, 1.0, 2.0, 3.0, 4.0]
    assert choice.index == 4
    assert choice.actions is None


def test_the_penalty_is_in_units_of_the_value():
    choice = select([1.0, 1.5, 0.0], [0.0, 6.0, 0.0], keep=1, penalty=0.1)
    assert choice.score == pytest.approx([1.0, 0.9, 0.0])
    assert choice.index == 0
    assert select([1.0, 1.5, 0.0], [0.0, 6.0, 0.0], keep=1, penalty=0.05).index == 1


def test_defaults_are_the_papers():
    values, energy = np.arange(50.0), np.arange(50.0)[::-1] * 8
    choice = select(values, energy)
    assert choice.kept.sum() == 40
    assert choice.score[choice.kept] == pytest.approx((values - 0.1 * energy)[choice.kept])


def test_pool_units_measure_the_penalty_in_standard_deviations_of_the_values():
    values = np.array([10.0, 30.0, INF, NAN])  # σ of the finite ones is 10
    choice = select(values, np.array([1.0, 2.0, 0.0, 0.0]), keep=1, penalty=0.5, penalty_units="pool")
    assert choice.score.tolist() == [5.0, 20.0, INF, -INF]


# ---- the keep count --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "keep", "count"),
    [(100, 0.55, 55), (50, 0.8, 40), (500, 0.8, 400), (3, 0.5, 2), (1, 1.0, 1), (1, 0.01, 1), (50, 1e-12, 1),
     (10, 0.11, 2), (7, 1.0, 7)],
)  # fmt: skip
def test_keep_count(candidates, keep, count):
    assert keep_count(candidates, keep) == count


def test_keep_count_is_exact_for_all_percentages():
    for percent in range(1, 101):
        for candidates in range(1, 501):
            assert keep_count(candidates, percent / 100) == -(-percent * candidates // 100)


@pytest.mark.parametrize("candidates", [1, 7, 50, 100])
@pytest.mark.parametrize("keep", [0.01, 0.55, 0.8, 1.0])
def test_ties_do_not_change_the_count_and_go_to_the_lower_index(candidates, keep):
    choice = select(np.arange(candidates, dtype=float), np.ones(candidates), keep=keep)
    count = keep_count(candidates, keep)
    assert choice.kept.tolist() == [True] * count + [False] * (candidates - count)
    assert choice.index == count - 1


def test_energy_ties_at_the_cut_go_to_the_lower_index():
    assert select(np.zeros(4), [1.0, 2.0, 2.0, 0.0], keep=0.75).kept.tolist() == [True, True, False, True]


def test_score_ties_go_to_the_lower_index():
    assert select([0.0, 1.0, 1.0, 1.0], np.zeros(4), keep=1).index == 1


# ---- what is not finite ----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_an_energy_that_is_not_finite_is_dropped_first(bad):
    choice = select([9.0, 0.0, 1.0], [bad, 5.0, 5.0], keep=0.6)
    assert choice.kept.tolist() == [False, True, True]
    assert choice.energy.tolist() == [INF, 5.0, 5.0]
    assert choice.index == 2


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("units", ["raw", "pool"])
def test_kept_without_a_finite_energy_it_cannot_win_under_a_penalty(bad, units):
    choice = select([9.0, 0.0, 1.0], [bad, 5.0, 5.0], keep=1, penalty=1e-3, penalty_units=units)
    assert choice.kept.all()
    assert choice.score[0] == -INF
    assert choice.index == 2


def test_kept_without_a_finite_energy_it_cannot_win_when_all_values_are_equal():
    choice = select([1.0, 1.0], [INF, 5.0], keep=1, penalty=0.1, penalty_units="pool")
    assert choice.index == 1


def test_kept_without_a_finite_energy_it_cannot_win_when_no_value_is_a_number():
    assert select([NAN, NAN, 3.0], [INF, 5.0, NAN], keep=0.6, penalty=0.1).index == 1


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("keep", [0.1, 0.8, 1.0])
def test_without_any_finite_energy_the_highest_value_wins(bad, keep):
    choice = select([1.0, 3.0, 2.0], [bad] * 3, keep=keep)
    assert choice.kept.all()
    assert choice.index == 1
    assert choice.score.tolist() == [1.0, 3.0, 2.0]


def test_a_value_that_is_no_number_never_wins():
    choice = select([NAN, -5.0, NAN], np.zeros(3), keep=1)
    assert choice.index == 1
    assert choice.score.tolist() == [-INF, -5.0, -INF]


def test_without_any_value_a_kept_candidate_wins():
    choice = select([NAN] * 4, [4.0, 3.0, 1.0, 2.0], keep=0.5)
    assert choice.kept.tolist() == [False, False, True, True]
    assert choice.index == 2


@pytest.mark.parametrize("energy", [0.0, 3.0, NAN, INF])
@pytest.mark.parametrize("value", [1.0, NAN, -INF, INF])
def test_one_candidate_wins_whatever_it_is_like(value, energy):
    choice = select([value], [energy], keep=0.3)
    assert choice.index == 0
    assert choice.kept.tolist() == [True]


def test_half_precision_values_in_the_thousands_do_not_overflow_pool_units():
    values, energy = torch.tensor([1000.0, 4000.0, 3900.0]), torch.tensor([0.0, 2.0, 0.1])
    wanted = select(values, energy, keep=1, penalty_units="pool")
    choice = select(values.half(), energy, keep=1, penalty_units="pool")
    assert not choice.score.isnan().any()
    assert choice.index == wanted.index == 2


# ---- properties ------------------------------------------------------------------------------------


@given(pools(ordinary | st.sampled_from([INF, -INF]), anything), UNITS)
def test_keep_all_without_a_penalty_is_argmax(pool, units):
    values, energy = pool
    assert select(values, energy, keep=1, penalty=0, penalty_units=units).index == values.argmax()
    tensors = torch.from_numpy(values), torch.from_numpy(energy)
    assert select(*tensors, keep=1.0, penalty=0.0, penalty_units=units).index == tensors[0].argmax()


@given(pools(anything, anything), KEEP, PENALTY, UNITS)
def test_the_winner_is_kept_and_has_the_highest_score(pool, keep, penalty, units):
    values, energy = pool
    choice = select(values, energy, keep=keep, penalty=penalty, penalty_units=units)
    finite = np.isfinite(energy)
    assert choice.kept.sum() == (keep_count(len(values), keep) if finite.any() else len(values))
    assert choice.kept[choice.index]
    assert not np.isnan(choice.score).any()
    assert (choice.score[~choice.kept] == -INF).all()
    if choice.score.max() > -INF:
        assert choice.index == choice.score.argmax()
    assert np.array_equal(choice.energy, np.where(finite, energy, INF))


@given(pools(anything, anything), KEEP, PENALTY, UNITS)
def test_no_dropped_energy_is_below_a_kept_one(pool, keep, penalty, units):
    choice = select(*pool, keep=keep, penalty=penalty, penalty_units=units)
    if not choice.kept.all():
        assert choice.energy[choice.kept].max() <= choice.energy[~choice.kept].min()


@given(pools(ordinary, anything), KEEP, PENALTY, st.floats(0, 1e6, width=32))
def test_the_winner_stays_when_its_value_rises(pool, keep, penalty, rise):
    values, energy = pool
    winner = select(values, energy, keep=keep, penalty=penalty).index
    values = values.copy()
    values[winner] += rise
    assert select(values, energy, keep=keep, penalty=penalty).index == winner


@given(st.data(), st.integers(1, 12), KEEP, st.floats(0, 1))
def test_the_order_of_candidates_does_not_matter(data, count, keep, penalty):
    distinct = st.lists(st.integers(-1000, 1000), min_size=count, max_size=count, unique=True)
    values, energy = np.array(data.draw(distinct), float), np.array(data.draw(distinct), float)
    order = np.array(data.draw(st.permutations(range(count))))
    before = select(values, energy, keep=keep, penalty=penalty)
    assume(len(np.unique(before.score[before.kept])) == before.kept.sum())
    after = select(values[order], energy[order], keep=keep, penalty=penalty)
    assert order[after.index] == before.index
    assert np.array_equal(after.kept, before.kept[order])
    assert np.array_equal(after.score, before.score[order])


@given(
    pools(st.integers(-1000, 1000), st.integers(0, 1000), dtype=np.float64),
    KEEP, st.floats(0, 1), st.sampled_from([0.5, 2.0, 1024.0]), st.integers(-8, 8),
)  # fmt: skip
def test_pool_units_do_not_see_the_scale_of_the_values(pool, keep, penalty, scale, shift):
    values, energy = pool
    rule = {"keep": keep, "penalty": penalty, "penalty_units": "pool"}
    before = select(values, energy, **rule)
    scores = np.sort(before.score[before.kept])
    assume(len(scores) == 1 or np.diff(scores).min() > 1e-6)
    after = select(scale * values + shift, energy, **rule)
    assert after.index == before.index
    assert np.array_equal(after.kept, before.kept)


@given(pools(ordinary, ordinary), KEEP, PENALTY)
def test_raw_units_take_the_penalty_as_it_is(pool, keep, penalty):
    values, energy = pool
    choice = select(values, energy, keep=keep, penalty=penalty, penalty_units="raw")
    wanted = values.astype(float) - penalty * energy.astype(float)
    room = 1e-5 * (1 + np.abs(values) + penalty * np.abs(energy))
    assert (np.abs(choice.score - wanted) <= room)[choice.kept].all()


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 6)).flatmap(
        lambda shape: st.tuples(*(hnp.arrays(np.float32, shape, elements=anything) for _ in range(2)))
    ),
    KEEP, PENALTY, UNITS,
)  # fmt: skip
def test_a_batch_is_its_pools_one_by_one(pool, keep, penalty, units):
    rule = {"keep": keep, "penalty": penalty, "penalty_units": units}
    batch = select(*pool, **rule)
    for row, single in enumerate(select(v, e, **rule) for v, e in zip(*pool, strict=True)):
        assert single.index == batch.index[row]
        for field in ("energy", "score", "kept"):
            assert np.array_equal(getattr(single, field), getattr(batch, field)[row])


# ---- kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_numpy_in_numpy_out(shape):
    values, energy = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    choice = select(values, energy)
    assert all(isinstance(x, np.ndarray) for x in (choice.index, choice.energy, choice.score, choice.kept))
    assert (choice.energy.dtype, choice.score.dtype, choice.kept.dtype) == (np.float32, np.float32, np.bool_)
    assert np.issubdtype(choice.index.dtype, np.integer)
    assert (choice.index.shape, choice.score.shape) == (shape[:-1], shape)


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_torch_in_torch_out(shape):
    choice = select(torch.zeros(shape), torch.ones(shape))
    assert all(isinstance(x, torch.Tensor) for x in (choice.index, choice.energy, choice.score, choice.kept))
    assert (choice.index.dtype, choice.kept.dtype) == (torch.int64, torch.bool)
    assert choice.energy.dtype == choice.score.dtype == torch.float32


def test_inputs_are_left_alone():
    values, energy = np.array([NAN, 1.0]), np.array([INF, NAN])
    values.flags.writeable = energy.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        select(values, energy)
    tensors = torch.tensor([NAN, 1.0]), torch.tensor([2.0, NAN])
    select(*tensors)
    assert tensors[0].isnan().tolist() == [True, False]
    assert tensors[1].isnan().tolist() == [False, True]


@pytest.mark.parametrize("energy", [[0, 2, 4], [0.0, 2.0, 4.0]])
@pytest.mark.parametrize("values", [[1, 2, 3], [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_whole_numbers_will_do(values, energy, make):
    choice = select(make(values), make(energy), keep=0.6, penalty=1)
    assert [float(s) for s in choice.score] == [1.0, 0.0, -INF]
    assert choice.index == 0


# ---- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, -0.1, 1.1, NAN, INF])
def test_keep_is_a_share(keep):
    with pytest.raises(ConfigError, match=r"keep is a share of the candidates in \(0, 1\]"):
        select([1.0], [1.0], keep=keep)


@pytest.mark.parametrize("penalty", [-0.1, NAN, INF])
def test_the_penalty_is_finite_and_not_negative(penalty):
    with pytest.raises(ConfigError, match="penalty must be finite and not negative"):
        select([1.0], [1.0], penalty=penalty)


def test_unknown_units_are_refused():
    with pytest.raises(ConfigError, match='penalty_units is "raw" or "pool", got \'std\''):
        select([1.0], [1.0], penalty_units="std")


@pytest.mark.parametrize(
    ("values", "energy", "message"),
    [((3,), (4,), r"values have shape \(3,\) but energy has \(4,\)"),
     ((2, 3), (3,), r"\(2, 3\) but energy has \(3,\)"),
     ((), (), "expected"), ((0,), (0,), "at least one candidate"), ((2, 0), (2, 0), "at least one candidate"),
     ((2, 3, 4), (2, 3, 4), r"expected \[B, C\] or \[C\]")],
)  # fmt: skip
def test_shapes_must_agree(values, energy, message):
    with pytest.raises(DataError, match=message):
        select(np.zeros(values), np.zeros(energy))
    with pytest.raises(DataError, match=message):
        select(torch.zeros(values), torch.zeros(energy))


def test_kinds_must_agree():
    with pytest.raises(DataError, match="both as torch or both as NumPy"):
        select(np.zeros(3), torch.zeros(3))
    with pytest.raises(DataError, match="both as torch or both as NumPy"):
        select(torch.zeros(3), np.zeros(3))
