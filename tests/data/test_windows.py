"""Windows never cross an episode, are drawn uniformly, and depend on their generator alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sageplan import Trajectories
from sageplan.data.windows import Windows
from sageplan.errors import DataError


def numbered(lengths: list[int]) -> Trajectories:
    """States (episode, step within it) and actions −step, so that every window says where it is from."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    ends = np.zeros(len(step), bool)
    ends[np.cumsum(lengths) - 1] = True
    return Trajectories.from_arrays(np.stack([episode, step], 1), -step[:, None], ends=ends)


shapes = st.tuples(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 3)).filter(
    lambda s: max(s[0]) > (s[1] - 1) * s[2]
)


@given(shapes)
def test_all_windows_are_those_inside_an_episode_each_once(shape):
    lengths, length, stride = shape
    windows = Windows(numbered(lengths), length, stride=stride)
    batch = windows.gather(torch.arange(len(windows)))
    found = [(int(w[0, 0]), int(w[0, 1])) for w in batch.states]
    span = (length - 1) * stride
    assert found == [(e, t) for e, size in enumerate(lengths) for t in range(size - span)]
    steps = batch.states[:, :1, 1] + stride * torch.arange(length)
    assert (batch.states[..., 0] == batch.states[:, :1, 0]).all()  # one episode
    assert (batch.states[..., 1] == steps).all()
    assert (batch.actions[..., 0] == -steps[:, :-1]).all()


def test_only_the_given_episodes_are_used():
    windows = Windows(numbered([5, 6, 7, 8]), 3, episodes=np.array([1, 3]))
    batch = windows.gather(torch.arange(len(windows)))
    assert set(batch.states[:, 0, 0].tolist()) == {1, 3}
    assert len(windows) == 4 + 6


def test_draws_are_uniform_over_windows_and_not_over_episodes():
    windows = Windows(numbered([4, 31]), 2)
    batch = windows.sample(33_000, torch.Generator().manual_seed(0))
    counts = np.bincount((batch.states[:, 0, 0] * 100 + batch.states[:, 0, 1]).long().numpy())
    counts = counts[counts > 0]
    assert len(counts) == 33
    assert np.square(counts - 1000).sum() / 1000 < 63  # χ² with 32 degrees of freedom: 99.9 %


def test_a_generator_put_back_draws_the_same_batch():
    windows, generator = Windows(numbered([50, 60]), 4), torch.Generator().manual_seed(3)
    windows.sample(8, generator)
    before = generator.get_state()
    first = windows.sample(8, generator)
    assert not torch.equal(windows.sample(8, generator).states, first.states)
    generator.set_state(before)
    again = windows.sample(8, generator)
    assert torch.equal(again.states, first.states)
    assert torch.equal(again.actions, first.actions)


@pytest.mark.parametrize(("length", "stride", "needed"), [(9, 1, 9), (5, 2, 9)])
def test_too_short_says_how_long_and_how_long_it_would_have_to_be(length, stride, needed):
    with pytest.raises(DataError, match=rf"none of 2 episodes .* longest has 8 rows, a window needs {needed}"):
        Windows(numbered([8, 3]), length, stride=stride)
    Windows(numbered([needed, 3]), length, stride=stride)


def test_padded_windows_repeat_the_last_state_and_rest():
    data = numbered([3, 1])
    windows = Windows(data, 3, stride=2, padded=True)
    rows = windows.rows(torch.arange(len(windows)))
    assert rows.tolist() == [[0, 2, 2], [1, 2, 2], [2, 2, 2], [3, 3, 3]]
    states, actions = windows.gather(torch.arange(4))
    assert torch.equal(states, torch.from_numpy(data.states)[rows])
    moving = rows[:, 1:] != rows[:, :-1]
    assert torch.equal(actions[moving], torch.from_numpy(data.actions)[rows[:, :-1][moving]])
    assert not actions[~moving].any()


@pytest.mark.parametrize("stride", [1, 2])
def test_arrays_that_are_not_laid_out_row_by_row_are_read_right(stride):
    """Columns of a wider array, and columns first."""
    wide = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32)
    tall = np.asfortranarray(wide[:, 4:])
    windows = Windows(Trajectories(wide[:, 1:4], tall, np.array([0, 25, 40])), 3, stride=stride)
    numbers = torch.arange(len(windows))
    rows, batch = windows.rows(numbers).numpy(), windows.gather(numbers)
    np.testing.assert_array_equal(batch.states, wide[:, 1:4][rows])
    np.testing.assert_array_equal(batch.actions, tall[rows[:, :-1]])
