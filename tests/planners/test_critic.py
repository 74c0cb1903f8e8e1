"""J: what it reads, in which precision, and that both kinds learn."""

import numpy as np
import pytest
import torch

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Windows
from sageplan.errors import DataError
from sageplan.planners import critic as critic_module
from sageplan.planners.config import HorizonCritic, PartialCosine, StateValue
from sageplan.planners.critic import Critic, HorizonLearner, HorizonValue, StateValueLearner, SummedStateValue
from sageplan.training.loop import train
from sageplan.training.progress import Bars
from sageplan.types import Plans, Trajectories

H, S = 6, 3


def horizon_value(**changes):
    torch.manual_seed(0)
    return HorizonValue(HorizonCritic(**{"width": 16, "heads": 2, **changes}), H, Normaliser(S))


def plans(batch=4, candidates=5):
    return Plans(torch.randn(batch, candidates, H, S, generator=torch.Generator().manual_seed(0)))


def trained(learner, optimiser, folder):
    return train(
        learner, optimiser, folder / "critic", device=torch.device("cpu"), seed=0, identity="", bars=Bars(False)
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_only_what_the_first_token_needs_is_worked_out(depth):
    """The same as working out every token and reading the first."""
    value, states = horizon_value(depth=depth), plans().states.flatten(0, 1)
    x = value.embed(states) + value.position
    for block in value.blocks:
        x = block(x, H)
    assert torch.allclose(value(states), value.head(x)[:, 0, 0], atol=1e-5)


@pytest.mark.parametrize("kind", ["horizon", "sum"])
@pytest.mark.parametrize("tokens", [1, 13, 10_000])
def test_scores_are_float32_one_per_plan_and_independent(kind, tokens, monkeypatch):
    network = horizon_value() if kind == "horizon" else SummedStateValue(StateValue(width=8), Normaliser(S))
    score = Critic(network)
    whole = score(plans())
    assert whole.shape == (4, 5)
    assert whole.dtype == torch.float32
    assert whole.std() > 1e-3
    monkeypatch.setattr(critic_module, "_CHUNK_TOKENS", tokens)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(score(plans()), whole, atol=1e-5)
    assert torch.allclose(score(Plans(plans().states[2:3])), whole[2:3], atol=1e-5)


def test_the_sum_leaves_the_observed_state_out():
    network = SummedStateValue(StateValue(width=8), Normaliser(S))
    states = plans().states
    wanted = sum(network.each(states[:, :, row]) for row in range(1, H))
    assert torch.allclose(Critic(network)(Plans(states)), wanted.detach(), atol=1e-5)


def test_raw_states_are_normalised_within():
    value = horizon_value()
    before = Critic(value)(plans())
    value.normaliser.mean += 2
    value.normaliser.std *= 3
    assert torch.allclose(Critic(value)(Plans(3 * plans().states + 2)), before, atol=1e-5)


@pytest.mark.parametrize(("shape", "message"), [((1, 2, H, S + 1), "states of size 4"), ((1, 2, H + 1, S), "7 states")])
def test_plans_of_another_shape_are_refused(shape, message):
    with pytest.raises(DataError, match=message):
        Critic(horizon_value())(Plans(torch.zeros(shape)))


def test_the_horizon_critic_learns_the_recorded_value(tmp_path):
    rng = np.random.default_rng(0)
    states = rng.standard_normal((200, 10, S)).astype(np.float32)
    data = Trajectories.from_episodes((s, np.zeros((10, 1))) for s in states)
    values = np.tanh(data.states[:, 0] + 0.5 * data.states[:, 1])
    windows = Windows(data, H)
    optimiser = PartialCosine(steps=300, batch=64, rate=3e-3, final_rate=0.0, warmup=20)
    summary = trained(HorizonLearner(horizon_value(), windows, windows, values), optimiser, tmp_path)
    assert summary["held_out_unexplained"] < 0.1


def test_temporal_differences_find_the_return(tmp_path):
    """A chain of one-hot states, reward 1 per step: terminal after the last state, or only cut off there."""
    chain, gamma = 4, 0.5
    states = np.tile(np.eye(chain, dtype=np.float32), (50, 1))
    terminals = np.zeros((50, chain), bool)
    terminals[:, -1] = True
    data = Trajectories(
        states, np.zeros((len(states), 1), np.float32), np.arange(0, len(states) + 1, chain),
        np.ones(len(states), np.float32), terminals.reshape(-1),
    )  # fmt: skip
    config = StateValue(width=32, discount=gamma, ema=0.9)
    optimiser = PartialCosine(steps=600, batch=64, rate=3e-3, final_rate=1e-4, warmup=0)
    learner = StateValueLearner(
        config, SummedStateValue(config, Normaliser(chain)), data, np.arange(40), np.arange(40, 50)
    )
    summary = trained(learner, optimiser, tmp_path)
    exact = [sum(gamma**k for k in range(chain - row)) for row in range(chain)]
    found = learner.model.each(torch.eye(chain)).detach().numpy()
    assert np.allclose(found, exact, atol=0.1)
    assert summary["held_out_td_error"] < 0.01


def test_the_step_before_a_time_limit_is_left_out():
    data = Trajectories.from_episodes([(np.random.randn(6, S), np.zeros((5, 1)))] * 2)  # noqa: NPY002
    data = Trajectories(data.states, data.actions, data.offsets, np.ones(12, np.float32), np.arange(12) == 11)
    learner = StateValueLearner(
        StateValue(width=8), SummedStateValue(StateValue(width=8), Normaliser(S)), data, np.array([0]), np.array([1])
    )
    assert learner._train.tolist() == [0, 1, 2, 3, 4]
    assert learner._held_out.tolist() == [6, 7, 8, 9, 10, 11]
    assert learner._next[11] == 11
    assert not learner._alive[11]
