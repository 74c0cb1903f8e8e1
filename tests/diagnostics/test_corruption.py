"""Corruption changes what it says, and only that."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sageplan.diagnostics.corruption import CORRUPTIONS, corrupt, inside

KINDS = pytest.mark.parametrize("kind", CORRUPTIONS)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def segments(count=40, length=12, seed=0):
    rng = generator(seed)
    return torch.randn(count, length + 1, 3, generator=rng), torch.randn(count, length, 2, generator=rng)


def windows(count, length, width, seed=1):
    return torch.randint(length - width + 1, (count,), generator=generator(seed))


def test_inside_by_hand():
    assert inside(torch.tensor([0, 2, 3]), 2, 5).int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert not inside(torch.tensor([1]), 0, 4).any()


@given(st.integers(2, 12), st.integers(0, 100))
def test_shuffled_actions_all_leave_their_place_and_stay_in_the_window(width, seed):
    states, actions = segments(seed=seed)
    begin = windows(40, 12, width, seed)
    same, moved = corrupt(states, actions, begin, width, "shuffle", generator(seed))
    assert torch.equal(same, states)
    for i, first in enumerate(begin.tolist()):
        own, other = actions[i, first : first + width], moved[i, first : first + width]
        assert (own != other).any(-1).all()
        assert sorted(own.tolist()) == sorted(other.tolist())
    outside = ~inside(begin, width, 12)
    assert torch.equal(moved[outside], actions[outside])


def test_each_segment_is_shuffled_in_its_own_way():
    actions = torch.arange(12.0).view(1, 12, 1).expand(40, -1, -1)
    _, moved = corrupt(torch.zeros(40, 13, 1), actions, torch.full((40,), 3), 6, "shuffle", generator())
    assert len(moved.squeeze(-1).unique(dim=0)) > 20


@pytest.mark.parametrize("width", [1, 5, 12])
def test_noise_on_actions_stays_inside_and_has_their_spread(width):
    states, actions = segments(2000)
    actions = actions * torch.tensor([1.0, 10.0]) + 5
    begin = windows(2000, 12, width)
    same, noisy = corrupt(states, actions, begin, width, "action-noise", generator())
    assert torch.equal(same, states)
    where = inside(begin, width, 12)
    assert torch.equal(noisy[~where], actions[~where])
    noise = (noisy - actions)[where]
    assert torch.allclose(noise.std(0), actions.flatten(0, 1).std(0), rtol=0.1)
    assert (noise.mean(0).abs() < 0.1 * noise.std(0)).all()


@pytest.mark.parametrize("width", [2, 5, 12])
def test_noise_on_states_stays_between_the_first_and_the_last_step(width):
    states, actions = segments(2000)
    states = states * torch.tensor([1.0, 10.0, 0.1]) + 5
    begin = windows(2000, 12, width)
    noisy, same = corrupt(states, actions, begin, width, "state-noise", generator())
    assert torch.equal(same, actions)
    changed = (noisy != states).any(-1)
    for i, first in enumerate(begin.tolist()):
        assert changed[i].nonzero().flatten().tolist() == list(range(first + 1, first + width))
    noise = (noisy - states)[changed]
    assert torch.allclose(noise.std(0), 0.5 * states.flatten(0, 1).std(0), rtol=0.1)


@KINDS
def test_transitions_outside_are_untouched(kind):
    """A transition is a state, its action and the next state; all three must survive outside the window."""
    states, actions = segments()
    begin = windows(40, 12, 5)
    s, a = corrupt(states, actions, begin, 5, kind, generator())
    outside = ~inside(begin, 5, 12)
    for before, after in ((states[:, :-1], s[:, :-1]), (states[:, 1:], s[:, 1:]), (actions, a)):
        assert torch.equal(before[outside], after[outside])


@KINDS
def test_corruption_comes_from_the_generator_and_leaves_its_input(kind):
    states, actions = segments()
    begin, before = windows(40, 12, 5), [x.clone() for x in segments()]
    first = corrupt(states, actions, begin, 5, kind, generator(3))
    torch.manual_seed(8)
    again = corrupt(states, actions, begin, 5, kind, generator(3))
    other = corrupt(states, actions, begin, 5, kind, generator(4))
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))
    assert all(map(torch.equal, (states, actions), before))
