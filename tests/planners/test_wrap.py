"""Planners made of one function: what comes back, and what is said of wrong answers."""

import pytest
import torch

from sageplan.errors import ConfigError, DataError
from sageplan.planners.wrap import Wrapped

OBSERVATIONS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def walk(observation, candidates, generator):
    steps = torch.randn(candidates, 4, 3, generator=generator)
    return torch.cat([observation.expand(candidates, 1, 3), observation + steps.cumsum(1)], 1), steps[..., :2]


def propose(function, **settings):
    return Wrapped(function, 3, **settings).propose(OBSERVATIONS, 5, torch.Generator().manual_seed(0))


def test_answers_are_stacked_in_order():
    plans = propose(walk)
    assert plans.states.shape == (2, 5, 5, 3)
    assert plans.actions.shape == (2, 5, 4, 2)
    generator = torch.Generator().manual_seed(0)
    for row, observation in enumerate(OBSERVATIONS):
        states, actions = walk(observation, 5, generator)
        assert torch.equal(plans.states[row], states)
        assert torch.equal(plans.actions[row], actions)


def test_states_alone_will_do():
    assert propose(lambda *given: walk(*given)[0]).actions is None


def test_a_first_state_that_was_rounded_becomes_the_observed_one():
    def rounded(*given):
        states = walk(*given)[0]
        states[:, 0] += 1e-5
        return states

    assert torch.equal(propose(rounded).states[:, :, 0], OBSERVATIONS[:, None].expand(-1, 5, -1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, a: s[:, :, :2], r"walk proposed states of shape \(5, 5, 2\), expected \[5, H\+1, 3\]"),
        (lambda s, a: s[:4], r"shape \(4, 5, 3\)"),
        (lambda s, a: s[:, :1], r"shape \(5, 1, 3\)"),
        (lambda s, a: (s, a[:, :3]), r"actions of shape \(5, 3, 2\), expected \[5, 4, A\]: the last state has no"),
        (lambda s, a: s + 0.5, "first state is 0.5 away from the observation"),
        (lambda s, a: s * torch.nan, "first state is nan away"),
    ],
)
def test_wrong_answers_are_named(change, message):
    def wrong(*given):
        return change(*walk(*given))

    wrong.__name__ = "walk"
    with pytest.raises(DataError, match=message):
        propose(wrong)


def test_actions_for_some_observations_only_are_refused():
    def fickle(observation, candidates, generator):
        answer = walk(observation, candidates, generator)
        return answer if observation[0] > 2 else answer[0]

    with pytest.raises(DataError, match="actions for some observations only"):
        propose(fickle)


def test_a_stride_below_one_is_refused():
    with pytest.raises(ConfigError, match="stride must be at least 1"):
        propose(walk, stride=0)
