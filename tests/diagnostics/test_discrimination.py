"""Discrimination and its baselines on dynamics that are known exactly."""

import numpy as np
import pytest
import torch

import sageplan
from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Batch, Windows
from sageplan.diagnostics.discrimination import Ridge, StateMLP, discriminate
from sageplan.tasks import simulator


def linear_data(rows: int = 2_000) -> sageplan.Trajectories:
    """s′ = M s + N a, in episodes of 50 rows."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (rows, 2))
    states = np.zeros((rows, 3))
    for t in range(rows - 1):
        states[t + 1] = 0.9 * states[t] + actions[t] @ np.array([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5]])
    return sageplan.Trajectories.from_arrays(states, actions, ends=np.arange(rows) % 50 == 49)


def test_ridge_learns_linear_dynamics_and_knows_wrong_actions():
    data = linear_data()
    rows = Windows(data, 2).sample(1_500, torch.Generator().manual_seed(0))
    ridge = Ridge(Normaliser.fit(data.states), rows)
    real = ridge.error(rows.states, rows.actions)
    wrong = ridge.error(rows.states, -rows.actions)
    assert real.mean() < 0.01
    assert wrong.mean() > 20 * real.mean()


def test_ridge_solves_the_normal_equations():
    """One state, one action, four rows: against numpy's own least squares with the penalty as extra rows."""
    states = torch.tensor([[[0.0], [1.0]], [[1.0], [1.5]], [[2.0], [5.0]], [[3.0], [2.0]]])
    actions = torch.tensor([[[1.0]], [[0.0]], [[2.0]], [[-1.0]]])
    ridge = Ridge(torch.nn.Identity(), Batch(states, actions))
    a = actions[:, 0, 0].double().numpy()
    x = np.stack([states[:, 0, 0].double().numpy(), (a - a.mean()) / a.std(), np.ones(4)], axis=1)
    penalty = np.sqrt(1e-3 * 4) * np.eye(3)
    delta = (states[:, 1] - states[:, 0]).double().numpy()
    expected = np.linalg.lstsq(np.vstack([x, penalty]), np.vstack([delta, np.zeros((3, 1))]), rcond=None)[0]
    np.testing.assert_allclose(ridge._weights.numpy(), expected, rtol=1e-6)


def test_the_state_mlp_rolls_out_by_feeding_itself():
    model = StateMLP(3, 2, 8)
    s, a = torch.randn(4, 3), torch.randn(4, 2, 2)
    by_hand = model(model(s, a[:, 0]), a[:, 1])
    torch.testing.assert_close(model.rollout(s, a), by_hand)


def test_every_method_is_scored_on_the_same_transitions(tiny_gate, maze_data):
    found = discriminate(tiny_gate, maze_data, transitions=300, simulator=simulator("maze2d-umaze"))
    assert set(found.auroc) == {"sage", "ridge", "random-latent ridge", "mlp", "simulator"}
    assert {len(part) for pair in found.scores.values() for part in pair} == {found.transitions}
    assert all(0 <= value <= 1 for value in found.auroc.values())
    again = discriminate(tiny_gate, maze_data, transitions=300, baselines=False)
    assert again.auroc["sage"] == found.auroc["sage"]


def test_the_simulator_is_the_ceiling(tiny_gate, maze_data):
    found = discriminate(tiny_gate, maze_data, baselines=False, simulator=simulator("maze2d-umaze"))
    real, _ = found.scores["simulator"]
    assert real.max() < 1e-6
    assert found.auroc["simulator"] > 0.95
    assert found.auroc["simulator"] < 1  # some shuffled actions are the real ones: both clipped to ±1


def test_the_simulator_is_only_asked_where_it_knows(tiny_gate, maze_data):
    exact = simulator("maze2d-umaze")

    def knows_the_lower_half(states, actions):
        return np.where(states[:, :1] > 2, exact(states, actions), np.nan)

    found = discriminate(tiny_gate, maze_data, baselines=False, simulator=knows_the_lower_half)
    everywhere = discriminate(tiny_gate, maze_data, baselines=False, simulator=exact)
    assert everywhere.known == 1
    assert everywhere.sage_known == everywhere.auroc["sage"] == found.auroc["sage"]
    assert 0.2 < found.known < 0.8
    assert len(found.scores["simulator"][0]) == round(found.known * found.transitions)
    assert found.sage_known != found.auroc["sage"]
    assert found.auroc["simulator"] > 0.95


def test_an_unknown_data_set_has_no_simulator():
    assert simulator("my-robot.npz") is None


def test_scoring_does_not_move_the_global_generator(tiny_gate, maze_data):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    discriminate(tiny_gate, maze_data, transitions=100)
    torch.testing.assert_close(torch.rand(3), expected)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_held_out_episodes_are_those_of_the_fit(tiny_gate, maze_data, seed):
    """Scores come from rows that Stage I and II never saw."""
    training, held_out = maze_data.split(tiny_gate.config.held_out, tiny_gate.info["seed"])
    assert not set(training) & set(held_out)
    held = tiny_gate.held_out(maze_data)
    np.testing.assert_array_equal(held.states, maze_data.episodes(held_out).states)
