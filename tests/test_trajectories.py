"""The one value that holds recorded data: how it is built, cut, split and checked."""

import dataclasses
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sageplan.errors import DataError
from sageplan.types import _CHECK_ROWS, Trajectories, offsets_from_ends


def flags(rows, *true):
    array = np.zeros(rows, np.bool_)
    array[list(true)] = True
    return array


def numbered(*lengths, **fields):
    """Episodes of these lengths in which states, actions and rewards are the row number."""
    rows = sum(lengths)
    count = np.arange(rows, dtype=np.float32)
    ends = np.zeros(rows, np.bool_)
    ends[np.cumsum(lengths) - 1] = True
    return Trajectories.from_arrays(
        np.stack([count] * 3, 1), np.stack([-count] * 2, 1), rewards=count, ends=ends, **fields
    )


# ---- from_arrays -----------------------------------------------------------------------------------


def test_float32_input_is_not_copied():
    states, actions = np.zeros((5, 3), np.float32), np.zeros((5, 2), np.float32)
    data = Trajectories.from_arrays(states, actions)
    assert np.shares_memory(data.states, states)
    assert np.shares_memory(data.actions, actions)


def test_lists_and_other_types_become_float32():
    data = Trajectories.from_arrays([[1, 2], [3, 4]], np.ones((2, 1)), rewards=[1, 2], terminals=[0, 1])
    assert {array.dtype for array in (data.states, data.actions, data.rewards)} == {np.dtype(np.float32)}
    assert data.terminals.dtype == np.bool_
    assert (len(data), data.state_dim, data.action_dim, data.num_episodes) == (2, 2, 1, 1)


@pytest.mark.parametrize(
    ("marks", "offsets"),
    [
        ({}, [0, 6]),
        ({"terminals": flags(6, 1)}, [0, 2, 6]),
        ({"timeouts": flags(6, 5)}, [0, 6]),
        ({"terminals": flags(6, 1), "timeouts": flags(6, 3)}, [0, 2, 4, 6]),
        ({"terminals": flags(6, 1), "timeouts": flags(6, 3), "ends": flags(6, 0)}, [0, 1, 6]),
    ],
)
def test_episodes_end_at_marks(marks, offsets):
    data = Trajectories.from_arrays(np.zeros((6, 2)), np.zeros((6, 1)), **marks)
    assert data.offsets.tolist() == offsets
    assert data.lengths.tolist() == np.diff(offsets).tolist()


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_offsets_hold_every_row_once(ends):
    ends = np.array(ends)
    offsets = offsets_from_ends(ends, len(ends))
    assert offsets[0] == 0
    assert offsets[-1] == len(ends)
    assert (np.diff(offsets) > 0).all()
    assert set(np.flatnonzero(ends[:-1]) + 1) == set(offsets[1:-1])


@pytest.mark.parametrize(
    ("states", "actions", "others", "message"),
    [
        (np.zeros(4), np.zeros((4, 1)), {}, r"states has shape \(4,\), expected 2 dimensions"),
        (1.0, np.zeros((4, 1)), {}, r"states has shape \(1,\), expected 2 dimensions"),
        (np.zeros((4, 0)), np.zeros((4, 1)), {}, r"states has shape \(4, 0\)"),
        (np.zeros((4, 2)), np.zeros((4, 1, 1)), {}, r"actions has shape \(4, 1, 1\), expected 2 dimensions"),
        (np.zeros((4, 2)), np.zeros((3, 1)), {}, "actions has 3 rows, expected 4 like the states"),
        (np.zeros((0, 2)), np.zeros((0, 1)), {}, "no rows"),
        ([[1.0, 2.0], [3.0]], np.zeros((2, 1)), {}, "states cannot be read as an array of numbers"),
        ([["a"]], np.zeros((1, 1)), {}, "states cannot be read as an array of numbers"),
        (np.zeros((4, 2)), np.zeros((4, 1)), {"rewards": np.zeros(3)}, "rewards has 3 rows, expected 4"),
        (np.zeros((4, 2)), np.zeros((4, 1)), {"rewards": np.zeros((4, 1))}, r"rewards has shape \(4, 1\)"),
        (np.zeros((4, 2)), np.zeros((4, 1)), {"ends": flags(3)}, r"ends has shape \(3,\), expected \(4,\)"),
        (np.zeros((4, 2)), np.zeros((4, 1)), {"terminals": flags(3)}, r"terminals has shape \(3,\)"),
        (np.zeros((4, 2)), np.zeros((4, 1)), {"timeouts": flags(3)}, r"timeouts has shape \(3,\)"),
    ],
)
def test_wrong_shapes_are_named(states, actions, others, message):
    with pytest.raises(DataError, match=f"mine: {message}"):
        Trajectories.from_arrays(states, actions, **others, name="mine")


@pytest.mark.parametrize("offsets", [[], [0], [1, 4], [0, 3], [0, 2, 2, 4], [0, 3, 1, 4], [[0, 4]]])
def test_offsets_must_rise_over_all_rows(offsets):
    rows = np.zeros((4, 1), np.float32)
    with pytest.raises(DataError, match="offsets must rise from 0 to 4"):
        Trajectories(rows, rows, np.array(offsets, np.int64))


# ---- finite values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, _CHECK_ROWS - 1, _CHECK_ROWS, _CHECK_ROWS + 4])
def test_first_bad_value_is_found_in_every_chunk(bad, row):
    states = np.zeros((_CHECK_ROWS + 5, 2), np.float32)
    states[row, 1] = bad
    with pytest.raises(DataError, match=f"states holds 1 NaN or infinite values, the first at row {row}, column 1"):
        Trajectories.from_arrays(states, states)


def test_bad_values_are_counted_across_chunks():
    actions = np.zeros((2 * _CHECK_ROWS, 3), np.float32)
    actions[_CHECK_ROWS - 2 : _CHECK_ROWS + 1, 1:] = np.nan
    with pytest.raises(DataError, match=f"actions holds 6 NaN .* row {_CHECK_ROWS - 2}, column 1"):
        Trajectories.from_arrays(np.zeros_like(actions), actions)


def test_bad_rewards_have_no_column():
    with pytest.raises(DataError, match=r"rewards holds 1 NaN or infinite values, the first at row 2$"):
        Trajectories.from_arrays(np.zeros((3, 1)), np.zeros((3, 1)), rewards=[0, 0, np.nan])


def test_opposite_infinities_and_large_values():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="states holds 2 NaN"):
            Trajectories.from_arrays([[np.inf, -np.inf]], [[0.0]])
        largest = np.full((1000, 1), np.finfo(np.float32).max)
        assert len(Trajectories.from_arrays(largest, largest)) == 1000


# ---- from_episodes ---------------------------------------------------------------------------------


def test_episodes_with_and_without_the_final_state():
    data = Trajectories.from_episodes(
        [(np.ones((4, 2)), np.ones((3, 1))), (2 * np.ones((2, 2)), 2 * np.ones((2, 1)))], name="mine"
    )
    assert data.offsets.tolist() == [0, 4, 6]
    assert data.states[:, 0].tolist() == [1, 1, 1, 1, 2, 2]
    assert data.actions[:, 0].tolist() == [1, 1, 1, 0, 2, 2]


@pytest.mark.parametrize(
    ("episode", "message"),
    [
        ((np.ones((5, 2)), np.ones((3, 1))), r"states \(5, 2\) and actions \(3, 1\); expected \[T\+1, S\]"),
        ((np.ones((2, 2)), np.ones((3, 1))), r"states \(2, 2\) and actions \(3, 1\); expected"),
        ((np.ones(3), np.ones((3, 1))), r"states \(3,\) and"),
        ((np.ones((0, 2)), np.ones((0, 1))), r"states \(0, 2\) and"),
        ((np.ones((3, 7)), np.ones((3, 1))), r"states \(3, 7\) and actions \(3, 1\); episode 0 has S = 2"),
        ((np.ones((3, 2)), np.ones((3, 7))), r"actions \(3, 7\); episode 0 has S = 2 and A = 1"),
    ],
)
def test_wrong_episodes_are_named(episode, message):
    with pytest.raises(DataError, match="mine: episode 1 has .*" + message):
        Trajectories.from_episodes([(np.ones((4, 2)), np.ones((3, 1))), episode], name="mine")


def test_no_episodes():
    with pytest.raises(DataError, match="no episodes given"):
        Trajectories.from_episodes([])


# ---- episodes and split ----------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_episodes_are_copied_whole_and_in_order(lengths, draw):
    data = numbered(*lengths, terminals=np.arange(sum(lengths)) % 3 == 0)
    numbers = draw.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=12))
    rows = np.concatenate([np.arange(data.offsets[n], data.offsets[n + 1]) for n in numbers])
    part = data.episodes(numbers)
    assert part.lengths.tolist() == [lengths[n] for n in numbers]
    np.testing.assert_array_equal(part.states[:, 2], rows)
    np.testing.assert_array_equal(part.actions[:, 1], -rows)
    np.testing.assert_array_equal(part.rewards, rows)
    np.testing.assert_array_equal(part.terminals, rows % 3 == 0)
    assert not np.shares_memory(part.states, data.states)


def test_episodes_without_optional_fields():
    part = Trajectories.from_arrays(np.ones((3, 1)), np.ones((3, 1))).episodes([0])
    assert part.rewards is None
    assert part.terminals is None


@given(st.lists(st.integers(1, 200), min_size=2, max_size=40), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_split_gives_each_episode_to_one_side(lengths, held_out, seed):
    data = numbered(*lengths)
    train, validation = data.split(held_out, seed)
    assert len(train)
    assert len(validation)
    assert sorted([*train, *validation]) == list(range(len(lengths)))
    assert (np.diff(train) > 0).all()
    assert (np.diff(validation) > 0).all()
    off = abs(data.lengths[validation].sum() - held_out * len(data))
    assert off <= max(lengths)


def test_split_depends_on_the_seed_alone():
    data = numbered(*[5] * 50)
    first, again, other = (data.split(0.1, seed)[1].tolist() for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 5


def test_one_episode_cannot_be_split():
    with pytest.raises(DataError, match="mine: one episode cannot be split"):
        numbered(9, name="mine").split(0.1, 0)


# ---- fingerprint -----------------------------------------------------------------------------------


def test_fingerprint_is_of_the_values():
    data = numbered(3, 4)
    assert data.fingerprint() == numbered(3, 4, name="another").fingerprint()
    wide = np.zeros((7, 6), np.float32)
    wide[:, ::2] = data.states
    assert dataclasses.replace(data, states=wide[:, ::2]).fingerprint() == data.fingerprint()


def test_fingerprint_changes_with_the_data():
    data = numbered(3, 4)
    states, actions = data.states.copy(), data.actions.copy()
    states[6, 2] += 1
    actions[0, 0] += 1
    others = [
        dataclasses.replace(data, states=states),
        dataclasses.replace(data, actions=actions),
        numbered(4, 3),
        data.episodes([0]),
        data.episodes([1, 0]),
        dataclasses.replace(data, states=data.actions, actions=data.states),
    ]
    assert len({data.fingerprint(), *(other.fingerprint() for other in others)}) == 7
