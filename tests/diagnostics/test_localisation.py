"""Localisation and ranking, with energies that are known."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sageplan.diagnostics.corruption import CORRUPTIONS
from sageplan.diagnostics.localisation import localise
from sageplan.diagnostics.ranking import rank_true_continuation


class PerfectGate:
    """Knows that s′ = s + a: its energy is the distance from that."""

    config = SimpleNamespace(stride=1)

    def held_out(self, data):
        return data

    def step_energy(self, states, actions, **_):
        return (states[..., :-1, :2] + actions - states[..., 1:, :2]).abs().mean(-1)

    def energy(self, states, actions, *, prefix, **_):
        return self.step_energy(states[..., : prefix + 1, :], actions[..., :prefix, :]).mean(-1)


@pytest.fixture
def walk():
    from sageplan import Trajectories

    rng = np.random.default_rng(0)
    actions = rng.standard_normal((5, 100, 2))
    return Trajectories.from_episodes(
        [(np.concatenate([np.zeros((1, 2)), np.cumsum(a, 0)]), a) for a in actions], name="walk"
    )


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("context", ["plan", "step"])
def test_a_perfect_energy_finds_every_corrupted_step(walk, kind, context):
    result = localise(PerfectGate(), walk, kind, context=context, segments=30)
    assert result.auroc > 0.999
    assert result.clean.max() < 1e-4
    assert (result.mask.sum(1) == 12).all()
    np.testing.assert_allclose(result.corrupted[~result.mask], result.clean[~result.mask], atol=1e-5)


def test_an_energy_that_knows_nothing_finds_nothing(walk):
    gate = PerfectGate()
    gate.step_energy = lambda states, actions, **_: torch.rand(
        actions.shape[:-1], generator=torch.Generator().manual_seed(0)
    )
    result = localise(gate, walk, segments=300)
    assert abs(result.auroc - 0.5) < 0.05
    assert result.outside == pytest.approx(1, abs=0.05)


def test_ranking_by_a_perfect_energy(walk):
    ranking = rank_true_continuation(PerfectGate(), walk, pools=20, candidates=8)
    assert ranking.first == 1
    assert ranking.below == 1
    assert ranking.candidates == 8
    assert ranking.prefix == 10


def test_ranking_does_not_count_ties_for_the_gate(walk):
    gate = PerfectGate()
    gate.energy = lambda states, actions, **_: torch.zeros(states.shape[:2])
    assert rank_true_continuation(gate, walk, pools=5, candidates=4).first == 0


def test_short_episodes_are_enough(tiny_gate, maze_data):
    short = maze_data.episodes(np.flatnonzero(maze_data.lengths >= 12)[:3])
    result = localise(tiny_gate, short, segments=10)
    assert np.isfinite(result.auroc)
