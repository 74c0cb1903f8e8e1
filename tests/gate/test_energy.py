"""The energy against the equation written out, and what it may and may not depend on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sageplan.gate.energy import distance, spans, step_energy

LENGTHS = [1, 2, 7, 8, 9, 12, 13, 20, 31]
WINDOWS = [1, 2, 5, 8]


def predict(latents, actions):
    """A causal stand-in for f in which history, order and position all matter."""
    steps = torch.arange(1, latents.shape[1] + 1, dtype=latents.dtype)[:, None]
    history = (latents * steps).cumsum(1) / steps + actions.cumsum(1).sum(-1, keepdim=True)
    return history.sin() + 0.1 * steps


def plans(count, length, seed=0):
    rng = torch.Generator().manual_seed(seed)
    kinds = {"generator": rng, "dtype": torch.float64}
    return torch.randn(count, length + 1, 3, **kinds), torch.randn(count, length, 2, **kinds)


def first_of_context(step, window):
    """Windows start half a window apart; a step belongs to the first that reaches it."""
    begin = 0
    while step >= begin + window:
        begin += max(1, window // 2)
    return begin


def written_out(latents, actions, window, reduction, context):
    """Eq. energy, one plan and one step at a time."""
    energy = np.empty(actions.shape[:2])
    for plan, step in np.ndindex(energy.shape):
        begin = step if context == "step" else first_of_context(step, window)
        now, action = latents[plan, begin : step + 1], actions[plan, begin : step + 1]
        error = [abs(float(x)) for x in predict(now[None], action[None])[0, -1] - latents[plan, step + 1]]
        energy[plan, step] = sum(error) / (len(error) if reduction == "mean" else 1)
    return energy


@pytest.mark.parametrize("context", ["plan", "step"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", LENGTHS)
def test_step_energy_is_the_equation(length, window, reduction, context):
    latents, actions = plans(3, length)
    energy = step_energy(predict, latents, actions, window=window, reduction=reduction, context=context)
    assert energy.shape == (3, length)
    assert energy.numpy() == pytest.approx(written_out(latents, actions, window, reduction, context), rel=1e-12)


def test_defaults_are_the_mean_in_the_context_of_the_plan():
    latents, actions = plans(2, 5)
    energy = step_energy(predict, latents, actions, window=8)
    assert torch.equal(energy, step_energy(predict, latents, actions, window=8, reduction="mean", context="plan"))


def test_distance_by_hand():
    predicted, target = torch.tensor([[1.0, -2.0], [0.0, 5.0]]), torch.tensor([[0.0, 2.0], [0.0, 4.0]])
    assert distance(predicted, target, "sum").tolist() == [5.0, 1.0]
    assert distance(predicted, target, "mean").tolist() == [2.5, 0.5]


# ---- windows over long plans -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "window", "expected"),
    [
        (1, 8, [(0, 0, 1)]),
        (7, 8, [(0, 0, 7)]),
        (8, 8, [(0, 0, 8)]),
        (9, 8, [(0, 0, 8), (4, 8, 9)]),
        (12, 8, [(0, 0, 8), (4, 8, 12)]),
        (13, 8, [(0, 0, 8), (4, 8, 12), (8, 12, 13)]),
        (9, 5, [(0, 0, 5), (2, 5, 7), (4, 7, 9)]),
        (3, 1, [(0, 0, 1), (1, 1, 2), (2, 2, 3)]),
        (4, 2, [(0, 0, 2), (1, 2, 3), (2, 3, 4)]),
    ],
)
def test_windows_by_hand(length, window, expected):
    assert list(spans(length, window)) == expected


@given(st.integers(1, 100), st.integers(1, 32))
def test_windows_cover_each_step_once_with_half_a_window_of_context(length, window):
    covered = []
    for begin, fresh, end in spans(length, window):
        assert 0 <= begin <= fresh < end <= min(begin + window, length)
        assert fresh == 0 or fresh - begin >= window // 2
        covered += range(fresh, end)
    assert covered == list(range(length))


def test_the_predictor_never_sees_more_than_a_window():
    seen = []

    def spy(latents, actions):
        seen.append((latents.shape[1], actions.shape[1]))
        return predict(latents, actions)

    step_energy(spy, *plans(2, 20), window=8)
    step_energy(spy, *plans(2, 20), window=8, context="step")
    assert seen == [(8, 8)] * 4 + [(1, 1)]


# ---- through a gate --------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["plan", "step"])
@pytest.mark.parametrize("prefix", [1, 4, 8, 9, 16])
def test_a_prefix_does_not_know_the_rest_of_its_plan(tiny_gate, pool, prefix, context):
    states, actions, _ = pool
    before = tiny_gate.energy(states, actions, prefix=prefix, context=context)
    states, actions = states.copy(), actions.copy()
    states[:, :, prefix + 1 :], actions[:, :, prefix:] = 1e3, np.nan
    assert np.array_equal(before, tiny_gate.energy(states, actions, prefix=prefix, context=context))


@pytest.mark.parametrize("context", ["plan", "step"])
@pytest.mark.parametrize("prefix", [1, 8, 11, 20])
def test_the_energy_of_a_prefix_is_the_mean_of_its_steps(tiny_gate, pool, prefix, context):
    states, actions, _ = pool
    steps = tiny_gate.step_energy(states, actions, context=context)
    wanted = steps[:, :, :prefix].mean(2)
    assert tiny_gate.energy(states, actions, prefix=prefix, context=context) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("context", ["plan", "step"])
def test_candidates_do_not_know_each_other(tiny_gate, pool, context):
    states, actions, _ = pool
    together = tiny_gate.step_energy(states, actions, context=context)
    for b, c in np.ndindex(together.shape[:2]):
        alone = tiny_gate.step_energy(states[b, c], actions[b, c], context=context)
        assert alone == pytest.approx(together[b, c], rel=1e-4, abs=1e-6)


def test_work_in_pieces_gives_the_same_energies(tiny_gate, pool, monkeypatch):
    states, actions, _ = pool
    whole = tiny_gate.step_energy(states, actions)
    monkeypatch.setattr("sageplan.gate.gate._CHUNK_STEPS", 45)  # two plans of 20 steps at a time
    assert tiny_gate.step_energy(states, actions) == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_context_matters(tiny_gate, pool):
    states, actions, _ = pool
    plan, step = (tiny_gate.step_energy(states, actions, context=context) for context in ("plan", "step"))
    assert plan[..., 0] == pytest.approx(step[..., 0], rel=1e-4)
    assert not np.allclose(plan[..., 1:], step[..., 1:], rtol=1e-3)
