"""Paths and returns, against loops that do what DV's data sets say."""

import numpy as np
import pytest

from sageplan.errors import DataError
from sageplan.planners.config import Paths
from sageplan.planners.paths import cut, returns, stretches, valued_paths
from sageplan.types import Trajectories


def trajectories(lengths, rewards=None, terminals=None, jump=10.0):
    """Each episode moves by 1 per row and begins `jump` after the end of the one before."""
    states, at = [], 0.0
    for length in lengths:
        states.append(at + np.arange(length))
        at += length - 1 + jump
    rows = sum(lengths)
    return Trajectories(
        np.concatenate(states).astype(np.float32)[:, None],
        np.ones((rows, 1), np.float32),
        np.concatenate([[0], np.cumsum(lengths)]),
        None if rewards is None else np.asarray(rewards, np.float32),
        None if terminals is None else np.asarray(terminals, bool),
    )


def spans(data):
    return [data.states[a:b, 0].astype(int).tolist() for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]


# ---- cutting ---------------------------------------------------------------------------------------


def test_episodes_are_joined_where_the_motion_goes_on():
    assert stretches(trajectories([4, 3, 2], jump=1.0)).tolist() == [0, 9]
    assert stretches(trajectories([4, 3, 2], jump=2.0)).tolist() == [0, 4, 7, 9]


def test_paths_to_reward_end_at_the_first_reward_and_begin_after_it():
    data = trajectories([4, 6], rewards=[1, 0, 0, 0, 0, 1, 1, 0, 1, 0], jump=1.0)
    assert spans(cut(data, Paths("to reward"))) == [[1, 2, 3, 4, 5], [7, 8]]


def test_paths_to_reward_do_not_go_on_in_another_run():
    data = trajectories([4, 6], rewards=[0, 0, 0, 0, 0, 1, 1, 0, 1, 0], jump=7.0)
    assert spans(cut(data, Paths("to reward"))) == [[10, 11], [13, 14]]


def test_paths_to_reward_keep_their_end():
    data = trajectories([10], rewards=[0, 0, 0, 0, 0, 0, 0, 0, 1, 0])
    assert spans(cut(data, Paths("to reward", max_length=3))) == [[6, 7, 8]]


def test_paths_to_terminal_drop_failures():
    data = trajectories([4, 3, 3], terminals=[0, 1, 1, 0, 0, 0, 0, 0, 0, 1])
    assert spans(cut(data, Paths("to terminal"))) == [[0, 1], [25, 26, 27]]


@pytest.mark.parametrize(("kind", "field"), [("to reward", "rewards"), ("to terminal", "terminals")])
def test_what_a_cut_needs_is_asked_for(kind, field):
    with pytest.raises(DataError, match=f"has no {field}"):
        cut(trajectories([4]), Paths(kind))


def test_data_without_a_path_are_refused():
    with pytest.raises(DataError, match="no path of it leads to reward"):
        cut(trajectories([4], rewards=[0, 0, 0, 0]), Paths("to reward"))


# ---- returns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("max_length", [None, 9])
def test_returns_are_the_discounted_sums(discount, padded, max_length):
    rng = np.random.default_rng(0)
    lengths = [5, 1, 8, 3]
    data = trajectories(lengths, rewards=rng.standard_normal(17), terminals=np.arange(17) % 5 == 4)
    config = Paths(padded=padded, max_length=max_length, discount=discount, reward_shift=-1.0, fall_reward=-7.0)
    expected = []
    for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        rewards = data.rewards[start:end].astype(float) - 1
        rewards[data.terminals[start:end]] = -7
        if padded:
            rewards = np.append(rewards, [rewards[-1]] * ((max_length or 8) - len(rewards)))
        expected += [sum(r * discount**k for k, r in enumerate(rewards[row:])) for row in range(end - start)]
    assert np.allclose(returns(data, config), expected)


def test_on_a_maze_the_value_is_the_time_to_the_goal():
    data = trajectories([6, 3], rewards=[0, 0, 0, 0, 0, 1, 0, 0, 1], jump=9.0)
    config = Paths("to reward", padded=True, max_length=800, discount=1.0, reward_shift=-1.0)
    assert np.allclose(valued_paths(data, config).values, [-1, -0.6, -0.2, 0.2, 0.6, 1, 0.2, 0.6, 1])


def test_shorter_episodes_count_as_filled_up_with_zeros():
    data = trajectories([2, 2], rewards=[3, 1, 5, 2])
    assert valued_paths(data, Paths(discount=1.0)).values.min() == -1
    filled = valued_paths(data, Paths(discount=1.0, max_length=10)).values
    assert np.allclose(filled, 2 * np.array([4, 1, 7, 2]) / 7 - 1)


def test_returns_need_rewards():
    with pytest.raises(DataError, match="has no rewards"):
        returns(trajectories([4]), Paths())


def test_equal_returns_are_left_alone():
    assert not valued_paths(trajectories([3], rewards=[0, 0, 0]), Paths()).values.any()
