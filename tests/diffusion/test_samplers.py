"""The samplers against `diffusers`, on denoisers with a closed form."""

from unittest import mock

import numpy as np
import pytest
import torch

from sageplan.diffusion.samplers import coefficients, sample
from sageplan.diffusion.schedules import FIRST, alpha_sigma, times
from sageplan.errors import ConfigError

LEVELS = 200
CENTRES = torch.tensor([-1.5, 0.4, 2.0])
SPREAD = 0.3
REFERENCES = {"ddpm": "DDPMScheduler", "ddim": "DDIMScheduler", "dpm++": "DPMSolverMultistepScheduler"}
KINDS = {"noise": "epsilon", "clean": "sample", "velocity": "v_prediction"}

STEPS = pytest.mark.parametrize("steps", [1, 2, 5, 10, 20, 50])
SOLVERS = pytest.mark.parametrize("solver", ["ddpm", "ddim", "dpm++"])
PREDICTIONS = pytest.mark.parametrize("prediction", ["noise", "clean", "velocity"])


def expected_clean(x, alpha, sigma):
    """E[x_0 | x] when x_0 is one of CENTRES plus Gaussian noise of SPREAD."""
    variance = (alpha * SPREAD) ** 2 + sigma**2
    share = (-((x[..., None] - alpha * CENTRES) ** 2) / (2 * variance)).softmax(-1)
    nearest = CENTRES + alpha * SPREAD**2 / variance * (x[..., None] - alpha * CENTRES)
    return (share * nearest).sum(-1)


def predict(x, alpha, sigma, prediction):
    clean = expected_clean(x, alpha, sigma)
    noise = (x - alpha * clean) / sigma
    return {"clean": clean, "noise": noise, "velocity": alpha * noise - sigma * clean}[prediction]


def linear_levels():
    """α [LEVELS], σ [LEVELS] of the usual discrete schedule, as a table of β."""
    beta = torch.linspace(1e-4, 0.05, LEVELS, dtype=torch.float64)
    product = (1 - beta).cumprod(0)
    return beta, product.sqrt(), (1 - product).sqrt()


def reference(solver, steps, prediction, clip, noise):
    """What diffusers draws, and the levels [steps + 1] that it went through, the cleanest first."""
    schedulers = pytest.importorskip("diffusers.schedulers")
    beta, alpha, sigma = linear_levels()
    settings = {
        "num_train_timesteps": LEVELS, "trained_betas": beta.numpy(),
        "prediction_type": KINDS[prediction],
    }  # fmt: skip
    if solver == "dpm++":
        settings |= {"algorithm_type": "dpmsolver++", "solver_order": 2}
    else:
        settings |= {"clip_sample": clip is not None, "clip_sample_range": clip or 1.0}
    scheduler = getattr(schedulers, REFERENCES[solver])(**settings)
    scheduler.set_timesteps(steps)
    x, stream = noise[0].clone(), iter(noise[1:])
    for level in scheduler.timesteps:
        output = predict(x, alpha[level].float(), sigma[level].float(), prediction)
        if solver == "ddpm":
            x = ddpm_step(scheduler, output, level, x, stream)
        else:
            # with it, the noise left is that of the clipped estimate
            options = {"use_clipped_model_output": True} if solver == "ddim" else {}
            x = scheduler.step(output, level, x, **options).prev_sample
    order = scheduler.timesteps.flip(0).long()
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    return x, torch.cat([one, alpha[order]]), torch.cat([zero, sigma[order]])


def ddpm_step(scheduler, output, level, x, stream):
    """It draws its noise inside; give it ours."""
    with mock.patch("diffusers.schedulers.scheduling_ddpm.randn_tensor", side_effect=stream):
        return scheduler.step(output, level, x).prev_sample


def ours(solver, alpha, sigma, prediction, noise, **options):
    table = coefficients(solver, alpha, sigma)
    return sample(
        lambda x, i: predict(x, table.alpha[i], table.sigma[i], prediction), table, noise,
        prediction=prediction, **options,
    )  # fmt: skip


def draws(steps, seed=0, shape=(64, 5)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(steps + 1)]


# ---- against the reference -------------------------------------------------------------------------


@STEPS
@PREDICTIONS
@SOLVERS
def test_samples_are_those_of_diffusers(solver, prediction, steps):
    noise = draws(steps)
    wanted, alpha, sigma = reference(solver, steps, prediction, None, noise)
    drawn = ours(solver, alpha, sigma, prediction, noise)
    assert wanted.std() > 0.1
    assert (drawn - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("solver", ["ddpm", "ddim"])
@PREDICTIONS
def test_clipping_is_that_of_diffusers(solver, prediction):
    noise = draws(10)
    wanted, alpha, sigma = reference(solver, 10, prediction, 0.7, noise)
    drawn = ours(solver, alpha, sigma, prediction, noise, clip=0.7)
    assert (drawn - ours(solver, alpha, sigma, prediction, noise)).abs().max() > 0.1  # it does something
    assert (drawn - wanted).abs().max() < 1e-4


# ---- what each must do by itself ------------------------------------------------------------------


@SOLVERS
def test_a_denoiser_that_knows_the_answer_is_believed(solver):
    alpha, sigma = alpha_sigma("linear", times(20))
    clean, noise = torch.randn(8, 3), draws(20, shape=(8, 3))
    drawn = sample(lambda x, i: clean, coefficients(solver, alpha, sigma), noise, prediction="clean")
    # the last level still has noise, and no more
    assert (drawn - clean).abs().max() < 5 * sigma[0]


@SOLVERS
def test_many_steps_draw_the_distribution(solver):
    alpha, sigma = alpha_sigma("linear", times(100))
    drawn = ours(solver, alpha, sigma, "noise", draws(100, shape=(20_000,)))
    nearest = (drawn[:, None] - CENTRES).abs().argmin(1)
    share = torch.bincount(nearest, minlength=3) / len(drawn)
    assert torch.allclose(share, torch.full((3,), 1 / 3), atol=0.03)
    for number, centre in enumerate(CENTRES):
        group = drawn[nearest == number]
        assert group.mean() == pytest.approx(float(centre), abs=0.03)
        assert group.std() == pytest.approx(SPREAD, abs=0.03)


def test_second_order_needs_fewer_steps():
    """Against 400 DDIM steps from the same noise: 10 of DPM-Solver++ come closer than 10 of DDIM."""
    noise = draws(400, shape=(2_000,))
    exact = ours("ddim", *alpha_sigma("linear", times(400)), "noise", noise)
    few = alpha_sigma("linear", times(10))
    error = {solver: (ours(solver, *few, "noise", noise) - exact).abs().mean() for solver in ("ddim", "dpm++")}
    assert error["dpm++"] < 0.7 * error["ddim"]


@SOLVERS
def test_equal_noise_gives_equal_samples(solver):
    alpha, sigma = alpha_sigma("linear", times(10))
    first, again = (ours(solver, alpha, sigma, "noise", draws(10)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, ours(solver, alpha, sigma, "noise", draws(10, seed=1)))
    quiet = [draws(10)[0], *draws(10, seed=1)[1:]]  # only the steps' own noise differs
    assert torch.equal(first, ours(solver, alpha, sigma, "noise", quiet)) == (solver != "ddpm")
    assert coefficients(solver, alpha, sigma).stochastic == (solver == "ddpm")


@SOLVERS
def test_the_temperature_scales_the_first_noise_alone(solver):
    alpha, sigma = alpha_sigma("linear", times(5))
    noise = draws(5)
    hot = ours(solver, alpha, sigma, "noise", noise, temperature=0.5)
    assert torch.equal(hot, ours(solver, alpha, sigma, "noise", [0.5 * noise[0], *noise[1:]]))


@SOLVERS
def test_what_is_known_is_known_at_every_step(solver):
    alpha, sigma = alpha_sigma("linear", times(10))
    seen = []

    def denoiser(x, i):
        seen.append(x[:, 0].clone())
        return torch.zeros_like(x)

    def fix(x):
        x[:, 0] = 3.0

    drawn = sample(denoiser, coefficients(solver, alpha, sigma), draws(10), fix=fix)
    assert (torch.stack([*seen, drawn[:, 0]]) == 3).all()
    assert len(seen) == 10


@SOLVERS
def test_beginning_in_the_middle_goes_on_from_there(solver):
    """Stopping after four steps and going on from x gives the same as not stopping (second order restarts)."""
    alpha, sigma = alpha_sigma("linear", times(10))
    table, noise, at = coefficients(solver, alpha, sigma), draws(10), []

    def denoiser(x, i):
        at.append(x.clone())
        return predict(x, table.alpha[i], table.sigma[i], "noise")

    whole = sample(denoiser, table, noise)
    part = sample(denoiser, table, [noise[0], *noise[5:]], begin=at[4], first=4)
    assert len(at) == 16
    assert (part - whole).abs().max() < (0.2 if solver == "dpm++" else 1e-5)


def test_no_steps_are_refused():
    with pytest.raises(ConfigError, match="at least one step"):
        coefficients("ddim", torch.ones(1), torch.zeros(1))


# ---- schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules_preserve_variance_and_only_lose_signal(schedule):
    alpha, sigma = alpha_sigma(schedule, times(100))
    assert alpha.dtype == sigma.dtype == torch.float32
    assert torch.allclose(alpha**2 + sigma**2, torch.ones(101), atol=1e-6)
    assert (alpha.diff() <= 0).all()
    assert alpha[-1] < 0.01
    assert 0 < sigma[0] < 0.02


def test_the_linear_schedule_is_the_integral_of_its_rate():
    """log α = −½ ∫ β(u) du, β rising from 0.1 to 20."""
    grid = np.linspace(0, 0.37, 100_001)
    rate = 0.1 + 19.9 * grid
    integral = float(((rate[1:] + rate[:-1]) / 2 * np.diff(grid)).sum())
    alpha, _ = alpha_sigma("linear", torch.tensor(0.37))
    assert alpha.item() == pytest.approx(np.exp(-integral / 2), rel=1e-6)


def test_small_noise_keeps_its_digits():
    """σ² = 1 − α² by subtraction would lose most of them."""
    _, sigma = alpha_sigma("linear", torch.tensor(FIRST))
    exponent = 2 * (0.25 * 19.9 * FIRST**2 + 0.05 * FIRST)
    assert sigma.item() == pytest.approx(np.sqrt(-np.expm1(-exponent)), rel=1e-6)
