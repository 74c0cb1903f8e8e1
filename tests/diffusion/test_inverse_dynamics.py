"""Inverse dynamics: the schedule, the sampler against the textbook, and that it learns what it should."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Windows
from sageplan.diffusion.inverse_dynamics import ActionRange, InverseDynamicsLearner, InverseDynamicsModel, Mish
from sageplan.diffusion.schedules import cosine
from sageplan.gate.config import InverseDynamics
from sageplan.training.config import Optimiser
from sageplan.training.loop import train
from sageplan.training.progress import Bars
from sageplan.types import Trajectories

LEVELS = pytest.mark.parametrize("levels", [2, 5, 10, 100])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def model(temperature=0.5, steps=10, action_range=None):
    torch.manual_seed(0)
    config = InverseDynamics(hidden=8, steps=steps, temperature=temperature)
    return InverseDynamicsModel(config, Normaliser(3), action_range or ActionRange(2)).eval()


def pairs(count=6):
    return torch.randn(count, 3, generator=generator(1)), torch.randn(count, 3, generator=generator(2))


class Oracle(nn.Module):
    """Knows the clean action of each row, and keeps what it is asked."""

    def __init__(self, inverse, clean):
        super().__init__()
        self.alpha, self.sigma, self.clean, self.asked = inverse.alpha, inverse.sigma, clean, []
        self.levels = lambda levels: levels
        self.states = lambda now, following: now
        inverse.denoiser = self

    def forward(self, noisy, level, pair):
        self.asked.append((int(level), noisy))
        return (noisy - self.alpha[level] * self.clean) / self.sigma[level]


# ---- the schedule ----------------------------------------------------------------------------------


@LEVELS
def test_the_schedule_preserves_variance(levels):
    alpha, sigma = cosine(levels)
    assert alpha.shape == sigma.shape == (levels,)
    assert alpha.dtype == torch.float32
    assert torch.allclose(alpha**2 + sigma**2, torch.ones(levels), atol=1e-6)


@LEVELS
def test_noise_grows_from_almost_none_to_almost_all(levels):
    alpha, sigma = cosine(levels)
    assert (alpha > 0).all()
    assert (sigma > 0).all()
    assert (alpha.diff() <= 0).all()
    assert (alpha[:-1].diff() < 0).all()
    assert alpha[0] > 0.999
    assert alpha[-1] < 0.01


def test_the_schedule_is_the_cosine():
    alpha, _ = cosine(11)
    middle = 1e-3 + 0.5 * (1 - 1e-3)
    wanted = math.cos(math.pi / 2 * (middle + 0.008) / 1.008) / math.cos(math.pi / 2 * 0.008 / 1.008)
    assert alpha[5].item() == pytest.approx(wanted, rel=1e-6)


# ---- the sampler -----------------------------------------------------------------------------------


def test_a_denoiser_that_knows_the_action_draws_it():
    inverse, clean = model(), torch.rand(6, 2, generator=generator()) * 2 - 1
    oracle = Oracle(inverse, clean)
    drawn = inverse.draw(*pairs(), generator())
    assert torch.allclose(drawn, clean, atol=1e-5)
    assert [level for level, _ in oracle.asked] == list(range(9, -1, -1))


def test_draws_are_clipped_to_the_range_of_actions():
    inverse = model()
    Oracle(inverse, torch.full((6, 2), 1.7))
    assert torch.equal(inverse.draw(*pairs(), generator()), torch.ones(6, 2))


def test_clipping_is_to_the_raw_range():
    span = ActionRange.fit(np.array([[-4.0, 0.0], [2.0, 10.0]], np.float32))
    inverse = model(action_range=span)
    Oracle(inverse, torch.tensor([[5.0, -5.0]]).expand(6, 2))
    assert torch.allclose(inverse.draw(*pairs(), generator()), torch.tensor([2.0, 0.0]).expand(6, 2))


@LEVELS
def test_each_step_is_the_ddpm_posterior(levels):
    """Ho et al. (2020), Eq. 7, in ᾱ_t = α_t² and β_t = 1 − ᾱ_t/ᾱ_{t−1}, all in float64."""
    inverse, clean = model(steps=levels), torch.rand(6, 2, generator=generator()) * 2 - 1
    oracle = Oracle(inverse, clean)
    inverse.draw(*pairs(), generator(4))
    stream = generator(4)
    noise = [torch.randn(6, 2, generator=stream) for _ in range(levels)]
    cumulative = inverse.alpha.double().square()
    for (level, noisy), (below, following) in zip(oracle.asked[:-1], oracle.asked[1:], strict=True):
        assert below == level - 1
        now, before = cumulative[level], cumulative[below]
        beta = 1 - now / before
        mean = before.sqrt() * beta / (1 - now) * clean + (1 - beta).sqrt() * (1 - before) / (1 - now) * noisy
        variance = (1 - before) / (1 - now) * beta
        assert torch.allclose(following, (mean + variance.sqrt() * noise[below]).float(), atol=1e-4)


def test_the_temperature_scales_the_first_noise_alone():
    """At each later step the difference between two temperatures only shrinks as the posterior mean does."""
    asked = {}
    for temperature in (0.0, 0.5, 1.0):
        inverse = model(temperature)
        oracle = Oracle(inverse, torch.zeros(6, 2))
        inverse.draw(*pairs(), generator(4))
        asked[temperature] = [noisy for _, noisy in oracle.asked]
    assert not asked[0.0][0].any()
    assert torch.allclose(asked[1.0][0], 2 * asked[0.5][0])
    assert asked[1.0][0].std() > 0.5
    assert asked[0.0][1].any()  # noise is still added on the way, and is the same at any temperature
    alpha, sigma = inverse.alpha, inverse.sigma
    for step, level in enumerate(range(9, 0, -1)):
        shrink = alpha[level] / alpha[level - 1] * (sigma[level - 1] / sigma[level]).square()
        for temperature in (0.5, 1.0):
            apart = [asked[temperature][s] - asked[0.0][s] for s in (step, step + 1)]
            assert torch.allclose(apart[1], shrink * apart[0], atol=1e-5)


def test_draws_come_from_the_generator_alone():
    inverse = model()
    drawn = inverse.draw(*pairs(), generator(1))
    torch.manual_seed(77)
    assert torch.equal(inverse.draw(*pairs(), generator(1)), drawn)
    assert not torch.equal(inverse.draw(*pairs(), generator(2)), drawn)
    assert drawn.shape == (6, 2)
    assert drawn.abs().max() <= 1


@pytest.mark.parametrize("chunk", [1, 4, 7, 20, 100])
def test_draws_do_not_depend_on_how_the_work_is_cut(monkeypatch, chunk):
    inverse = model()
    whole = inverse.draw(*pairs(20), generator())
    monkeypatch.setattr("sageplan.diffusion.inverse_dynamics._CHUNK", chunk)
    assert torch.allclose(inverse.draw(*pairs(20), generator()), whole, atol=1e-4)


def test_no_pairs_give_no_actions():
    assert model().draw(torch.zeros(0, 3), torch.zeros(0, 3), generator()).shape == (0, 2)


def test_draws_depend_on_both_states():
    inverse = model()
    now, following = pairs()
    drawn = inverse.draw(now, following, generator())
    assert not torch.allclose(inverse.draw(now + 1, following, generator()), drawn, atol=1e-4)
    assert not torch.allclose(inverse.draw(now, following + 1, generator()), drawn, atol=1e-4)


# ---- the range of actions --------------------------------------------------------------------------


def test_actions_inside_one_stay_as_they_are():
    actions = np.array([[-0.5, 1.0], [0.2, -1.0], [0.1, 0.0]], np.float32)
    span = ActionRange.fit(actions)
    assert torch.equal(span.squash(torch.from_numpy(actions)), torch.from_numpy(actions))
    assert torch.equal(span.expand(torch.from_numpy(actions)), torch.from_numpy(actions))


@pytest.mark.parametrize("sign", [1, -1])
def test_actions_outside_are_mapped_to_the_whole_range_and_back(sign):
    actions = sign * np.array([[-3.0, 0.0, 5.0], [1.0, 0.5, 5.0], [0.0, 0.1, 5.0]], np.float32)
    span = ActionRange.fit(actions)
    squashed = span.squash(torch.from_numpy(actions))
    assert squashed.abs().max() == 1
    assert squashed[:, :2].max(0).values.tolist() == [1, 1]
    assert squashed[:, :2].min(0).values.tolist() == [-1, -1]
    assert squashed[:, 2].tolist() == [0, 0, 0]
    assert torch.allclose(span.expand(squashed), torch.from_numpy(actions), atol=1e-6)


# ---- learning --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1.0, 5.0])
def learnt(request, tmp_path_factory):
    """Trained on steps that are the action: s' = s + a, with actions of up to 1 or of up to 5."""
    rng = np.random.default_rng(0)
    scale = request.param
    actions = scale * rng.uniform(-1, 1, (400, 5, 2))
    states = np.concatenate([np.zeros((400, 1, 2)), actions.cumsum(1)], 1) + scale * rng.normal(0, 1, (400, 1, 2))
    data = Trajectories.from_episodes(zip(states, actions, strict=True))
    train_on, held_out = data.split(0.1, 0)
    config = InverseDynamics(
        hidden=64, ema=0.98, optimiser=Optimiser(steps=800, batch=256, rate=3e-3, final_rate=1e-4, warmup=20)
    )
    learner = InverseDynamicsLearner(
        config, Normaliser.fit(data.states), ActionRange.fit(data.actions),
        Windows(data, 2, episodes=train_on), Windows(data, 2, episodes=held_out),
    )  # fmt: skip
    summary = train(
        learner, config.optimiser, tmp_path_factory.mktemp("run") / "inverse",
        device=torch.device("cpu"), seed=0, identity="", bars=Bars(False),
    )  # fmt: skip
    return learner, summary, scale


def test_it_learns_to_read_the_action_off_the_states(learnt):
    learner, summary, scale = learnt
    now = scale * torch.randn(500, 2, generator=generator(8))
    actions = scale * (torch.rand(500, 2, generator=generator(9)) * 1.8 - 0.9)
    drawn = learner.model.draw(now, now + actions, generator())
    assert (drawn - actions).abs().mean() < 0.15 * scale
    assert summary["held_out_error"] < 0.15 * scale
    assert summary["held_out_mean_action"] == pytest.approx(0.5 * scale, rel=0.1)


def test_only_the_moving_average_draws(learnt):
    learner, _, _ = learnt
    assert not any(p.requires_grad for p in learner.model.parameters())
    assert all(p.requires_grad for p in learner.online.parameters())
    apart = [
        (a - b).abs().max() for a, b in
        zip(learner.online.parameters(), learner.model.denoiser.parameters(), strict=True)
    ]  # fmt: skip
    assert 0 < max(apart) < 0.5


def test_the_loss_is_the_error_of_the_noise():
    data = Trajectories.from_arrays(
        np.random.default_rng(0).standard_normal((50, 3)), np.random.default_rng(1).uniform(-1, 1, (50, 2))
    )
    windows = Windows(data, 2)
    torch.manual_seed(0)
    learner = InverseDynamicsLearner(InverseDynamics(hidden=8), Normaliser(3), ActionRange(2), windows, windows)
    batch = learner.sample(64, generator(1))
    loss, _ = learner.loss(batch, 0, generator(2))
    stream = generator(2)
    level, noise = torch.randint(10, (64,), generator=stream), torch.randn(64, 2, generator=stream)
    total = 0.0
    for i in range(64):
        alpha, sigma = learner.model.alpha[level[i]], learner.model.sigma[level[i]]
        pair = learner.online.states(batch.states[i : i + 1, 0], batch.states[i : i + 1, 1])
        noisy = alpha * batch.actions[i : i + 1, 0] + sigma * noise[i : i + 1]
        guess = learner.online(noisy, learner.online.levels(level[i : i + 1]), pair)
        total += float((guess - noise[i : i + 1]).square().mean().detach())
    assert loss.item() == pytest.approx(total / 64, rel=1e-4)


# ---- options ---------------------------------------------------------------------------------------


def test_draws_in_bf16_differ_by_rounding_alone(learnt):
    learner, _, scale = learnt
    now = scale * torch.randn(500, 2, generator=generator(8))
    following = now + scale * (torch.rand(500, 2, generator=generator(9)) * 1.8 - 0.9)
    exact = learner.model.draw(now, following, generator())
    learner.model.denoiser.precision = "bf16"
    try:
        rounded = learner.model.draw(now, following, generator())
    finally:
        learner.model.denoiser.precision = "fp32"
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().mean() < 0.01 * scale


def test_the_fast_mish_is_mish():
    x = torch.cat([torch.linspace(-60, 60, 10_001), torch.tensor([-1e4, 0.0, 1e4])])
    with torch.no_grad():
        assert (Mish()(x) - torch.nn.functional.mish(x)).abs().max() < 2e-6


def test_relative_positions_do_not_count_and_other_entries_do():
    inverse = model()
    inverse.relative = 2
    now, following = pairs()
    moved = torch.tensor([5.0, -3.0, 0.0])
    drawn = inverse.draw(now, following, generator())
    assert torch.allclose(inverse.draw(now + moved, following + moved, generator()), drawn, atol=1e-5)
    assert not torch.allclose(inverse.draw(now, following + moved, generator()), drawn, atol=1e-3)
    third = torch.tensor([0.0, 0.0, 1.0])
    assert not torch.allclose(inverse.draw(now + third, following + third, generator()), drawn, atol=1e-3)


def test_training_and_drawing_see_the_same_relative_positions():
    data = Trajectories.from_arrays(
        np.random.default_rng(0).standard_normal((50, 3)), np.random.default_rng(1).uniform(-1, 1, (50, 2))
    )
    windows, losses = Windows(data, 2), []
    for shift in (0.0, 10.0):
        torch.manual_seed(0)
        config = InverseDynamics(hidden=8, relative=2)
        learner = InverseDynamicsLearner(config, Normaliser(3), ActionRange(2), windows, windows)
        batch = learner.sample(64, generator(1))
        states = batch.states + shift * torch.tensor([1.0, 1.0, 0.0])
        losses.append(learner.loss(batch._replace(states=states), 0, generator(2))[0].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
