"""The Veteran planner: what it learns from, what it learns, warm starts, and its folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sageplan.data.normaliser import Normaliser
from sageplan.data.windows import Windows
from sageplan.diffusion.dit import DiT, Network
from sageplan.diffusion.samplers import Sampling
from sageplan.diffusion.schedules import alpha_sigma
from sageplan.errors import ConfigError, DataError, FormatError
from sageplan.planners.config import HorizonCritic, PartialCosine, Paths, StateValue, VeteranConfig
from sageplan.planners.fit import fit
from sageplan.planners.presets import NAMES, preset
from sageplan.planners.store import untrained_value
from sageplan.planners.veteran import Veteran, VeteranLearner
from sageplan.tasks import catalogue
from sageplan.types import Trajectories

TRAINING = PartialCosine(steps=60, batch=64, rate=2e-3, final_rate=0.0, warmup=10)
CONFIG = VeteranConfig(
    horizon=6,
    network=Network(width=32, embedding=16, heads=2),
    prediction="velocity",
    ema=0.95,
    sampling=Sampling(steps=8),
    critic=HorizonCritic(width=16, heads=2, optimiser=TRAINING),
    optimiser=TRAINING,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def lines(count=300, length=12):
    """Straight motions at the speed that the second number gives; rewarded for being far."""
    rng = np.random.default_rng(0)
    speed = rng.choice([-1.0, 1.0], count)
    states = [np.stack([v * np.arange(length) + rng.normal(), np.full(length, v)], 1) for v in speed]
    data = Trajectories.from_episodes((s, np.zeros((length - 1, 1))) for s in states)
    return replace(data, rewards=data.states[:, 0].copy())


def untrained(**changes):
    torch.manual_seed(0)
    config = replace(CONFIG, **changes)
    denoiser, normaliser = DiT(config.horizon, 3, config.network), Normaliser(3)
    for parameter in denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    normaliser.mean.copy_(torch.tensor([1.0, 0.0, -2.0]))
    normaliser.std.copy_(torch.tensor([2.0, 1.0, 0.5]))
    info = {"data": {}, "seed": 0, "training": {}}
    return Veteran(config, normaliser, denoiser, untrained_value(config, normaliser), info)


@pytest.fixture(scope="module")
def learnt():
    longer = replace(TRAINING, steps=500)
    return fit(lines(), replace(CONFIG, optimiser=longer), device="cpu", progress=False)


# ---- learning --------------------------------------------------------------------------------------


def test_plans_move_as_the_data_do(learnt):
    observations = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    states = learnt.propose(observations, 50, generator()).states
    speed = states[..., 0].diff(dim=-1).mean((1, 2))
    assert torch.allclose(speed, torch.tensor([1.0, -1.0]), atol=0.25)
    assert learnt.info["training"]["planner"]["held_out_loss"] < 0.3


def test_the_critic_prefers_what_was_rewarded(learnt):
    values = learnt.critic(learnt.propose(torch.tensor([[0.0, 1.0], [0.0, -1.0]]), 20, generator()))
    assert values.shape == (2, 20)
    assert values[0].mean() > values[1].mean()


def learner(**changes):
    data, config = lines(40), replace(CONFIG, **changes)
    windows, values = Windows(data, config.horizon), np.linspace(-1, 1, len(data), dtype=np.float32)
    torch.manual_seed(0)
    learner = VeteranLearner(config, Normaliser.fit(data.states), windows, windows, values)
    torch.nn.init.normal_(learner.online.head.weight, std=0.1)
    return learner


@pytest.mark.parametrize("prediction", ["noise", "clean", "velocity"])
@pytest.mark.parametrize("value_weight", [None, 2.0])
def test_the_loss_is_dvs(prediction, value_weight):
    """Row by row: the first state is clean and not counted, the second weighs more, and windows by their value."""
    own = learner(prediction=prediction, value_weight=value_weight, next_state_weight=5.0)
    batch = own.sample(9, generator(1))
    loss, _ = own.loss(batch, 0, generator(2))
    stream = generator(2)
    time = 1e-3 + (1 - 1e-3) * torch.rand(9, generator=stream)
    noise = torch.randn(9, 6, 2, generator=stream)
    total = 0.0
    for i in range(9):
        clean = own.normaliser(batch.states[i])
        alpha, sigma = alpha_sigma("linear", time[i])
        noisy = torch.cat([clean[:1], alpha * clean[1:] + sigma * noise[i, 1:]])
        guess = own.online(noisy[None], time[i : i + 1])[0].detach()
        target = {"noise": noise[i], "clean": clean, "velocity": alpha * noise[i] - sigma * clean}[prediction]
        error = (guess - target).square()
        weight = float(torch.exp(2 * (batch.values[i] - 1))) if value_weight else 1.0
        total += weight * float(5 * error[1].sum() + error[2:].sum())
    assert loss.item() == pytest.approx(total / (9 * 6 * 2), rel=1e-4)


def test_values_belong_to_the_first_row_of_their_window():
    own = learner()
    batch = own.sample(20, generator())
    rows = own._train.rows(torch.randint(len(own._train), (20,), generator=generator()))
    assert torch.equal(batch.values, own._values[rows[:, 0]])


def test_a_fit_resumes_and_refuses_other_settings(tmp_path):
    data = lines(40)
    first = fit(data, CONFIG, run_dir=tmp_path, device="cpu", progress=False)
    again = fit(data, CONFIG, run_dir=tmp_path, device="cpu", progress=False)
    for name, tensor in first.modules().state_dict().items():
        assert torch.equal(tensor, again.modules().state_dict()[name])
    with pytest.raises(ConfigError, match="holds a run with another config"):
        fit(data, replace(CONFIG, ema=0.5), run_dir=tmp_path, device="cpu", progress=False)


def test_a_fit_with_state_values(tmp_path):
    config = replace(CONFIG, critic=StateValue(width=8, optimiser=TRAINING))
    planner = fit(lines(40), config, device="cpu", progress=False)
    planner.save(tmp_path)
    plans = planner.propose(torch.zeros(2, 2), 3, generator())
    assert torch.equal(Veteran.load(tmp_path).critic(plans), planner.critic(plans))


def test_data_without_rewards_are_refused():
    with pytest.raises(DataError, match="has no rewards"):
        fit(replace(lines(40), rewards=None), CONFIG, device="cpu", progress=False)


# ---- proposing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prediction", ["noise", "clean", "velocity"])
def test_plans_are_those_of_ddim_written_down(prediction):
    """Song et al. (2021), Eq. 12 without noise, on the network in its training form."""
    planner, observations = untrained(prediction=prediction), torch.randn(3, 3, generator=generator(1))
    found = planner.propose(observations, 4, generator(2)).states
    x = torch.randn(3, 4, 6, 3, generator=generator(2)).flatten(0, 1)
    first = planner.normaliser(observations).repeat_interleave(4, 0)
    walk = torch.linspace(1e-3, 1, 9, dtype=torch.float64)
    alpha, sigma = alpha_sigma("linear", walk)
    for step in range(8, 0, -1):
        x[:, 0] = first
        out = planner.denoiser(x, walk[step].expand(12)).detach()
        noise = {
            "noise": out,
            "clean": (x - alpha[step] * out) / sigma[step],
            "velocity": sigma[step] * x + alpha[step] * out,
        }[prediction]
        x = alpha[step - 1] * (x - sigma[step] * noise) / alpha[step] + sigma[step - 1] * noise
    x[:, 0] = first
    wanted = (x * planner.normaliser.std + planner.normaliser.mean).view(3, 4, 6, 3)
    assert (found - wanted).abs().max() < 1e-3 * wanted.std()


def test_other_settings_share_the_networks():
    planner = untrained()
    fast = planner.using(sampling=Sampling("dpm++", 3), precision="bf16")
    assert fast.denoiser is planner.denoiser
    assert (fast.config.sampling.steps, planner.config.sampling.steps) == (3, 8)
    assert not torch.equal(
        fast.propose(torch.ones(1, 3), 2, generator()).states, planner.propose(torch.ones(1, 3), 2, generator()).states
    )
    with pytest.raises(ConfigError, match="horizon, stride cannot change after training"):
        planner.using(stride=2, horizon=3)


# ---- warm starts -----------------------------------------------------------------------------------


def plan_before(planner, batch=3):
    return planner.propose(torch.randn(batch, 3, generator=generator(5)), 1, generator(6)).states[:, 0]


def test_a_warm_start_stays_near_the_plan_before():
    """A denoiser that knows nothing leaves alpha·previous + sigma·noise, so the skipped levels show in the spread."""
    cold = untrained(warm_start=0.9)
    previous = plan_before(cold)
    warm = cold.propose(previous[:, 1], 20, generator(), previous=previous)
    fresh = cold.propose(previous[:, 1], 20, generator())
    shifted = torch.cat([previous[:, 1:], previous[:, -1:]], dim=1)
    assert torch.equal(warm.states[:, :, 0], previous[:, None, 1].expand(-1, 20, -1))
    apart = [(plans.states - shifted[:, None]).abs().mean() for plans in (warm, fresh)]
    assert apart[0] < 0.6 * apart[1]


def test_without_the_setting_or_the_plan_it_begins_from_noise():
    planner = untrained()
    previous = plan_before(planner)
    fresh = planner.propose(previous[:, 1], 4, generator()).states
    assert torch.equal(planner.propose(previous[:, 1], 4, generator(), previous=previous).states, fresh)
    planner = planner.using(warm_start=0.5)
    assert torch.equal(planner.propose(previous[:, 1], 4, generator()).states, fresh)
    assert not torch.equal(planner.propose(previous[:, 1], 4, generator(), previous=previous).states, fresh)


def test_rows_without_a_plan_before_begin_from_noise_and_disturb_nobody():
    planner = untrained(warm_start=0.5)
    previous = plan_before(planner)
    observations = previous[:, 1].clone()

    def propose(before):
        chance = [generator(row) for row in range(3)]
        return planner.propose(observations, 4, chance, previous=before).states

    warm, cold = propose(previous), propose(None)
    previous[1] = torch.nan
    mixed = propose(previous)
    assert torch.equal(mixed[[0, 2]], warm[[0, 2]])
    assert torch.equal(mixed[1], cold[1])


def test_previous_plans_of_another_shape_are_refused():
    planner = untrained(warm_start=0.5)
    with pytest.raises(DataError, match="previous plans have shape"):
        planner.propose(torch.zeros(2, 3), 4, generator(), previous=torch.zeros(2, 5, 3))


# ---- on disk ---------------------------------------------------------------------------------------


def test_a_saved_planner_proposes_the_same(tmp_path):
    planner = untrained()
    planner.save(tmp_path)
    planner.save(tmp_path)  # over itself
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]
    loaded = Veteran.load(tmp_path)
    assert loaded.config == planner.config
    assert loaded.stride == planner.stride
    one, other = (p.propose(torch.ones(2, 3), 3, generator()) for p in (planner, loaded))
    assert torch.equal(one.states, other.states)
    assert torch.equal(planner.critic(one), loaded.critic(one))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"format": "sageplan-gate"}, "is not a saved planner"),
        ({"version": 99}, "Upgrade sageplan"),
        ({"config": {}}, "is damaged"),
        ({"config": {**CONFIG.to_json(), "horizon": 1}}, "is damaged"),
        ({"state_dim": 4}, "does not fit"),
        ({"weights": {"file": "weights-0.safetensors", "sha256": ""}}, "does not exist"),
    ],
)
def test_folders_that_do_not_hold_a_planner_are_refused(tmp_path, damage, message):
    untrained().save(tmp_path)
    record = json.loads((tmp_path / "planner.json").read_text())
    (tmp_path / "planner.json").write_text(json.dumps({**record, **damage}))
    with pytest.raises(FormatError, match=message):
        Veteran.load(tmp_path)


def test_corrupt_weights_are_refused(tmp_path):
    untrained().save(tmp_path)
    weights = next(tmp_path.glob("weights-*"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(FormatError, match="is corrupt"):
        Veteran.load(tmp_path)


def test_no_folder_is_said(tmp_path):
    with pytest.raises(FormatError, match="does not exist; expected a saved planner"):
        Veteran.load(tmp_path / "none")


# ---- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", catalogue.TASKS)
@pytest.mark.parametrize("name", NAMES)
def test_presets_survive_json(name, task):
    config = preset(name, catalogue.get(task))
    assert VeteranConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_presets_are_what_was_published():
    paper = preset("paper", catalogue.get("antmaze-large-play-v2"))
    assert (paper.horizon, paper.stride, paper.paths.discount) == (32, 1, 0.997)
    assert (paper.network.depth, paper.sampling, paper.optimiser.steps) == (2, Sampling("ddim", 20), 1_000_000)
    veteran = {task: preset("veteran", catalogue.get(task)) for task in catalogue.TASKS}
    maze, ant = veteran["maze2d-large-v1"], veteran["antmaze-large-play-v2"]
    hopper, kitchen = veteran["hopper-medium-v2"], veteran["kitchen-mixed-v0"]
    assert [c.horizon for c in (maze, ant, kitchen, hopper)] == [32, 40, 32, 4]
    assert [c.stride for c in (maze, ant, kitchen, hopper)] == [15, 25, 4, 1]
    assert [c.network.depth for c in (maze, ant, kitchen, hopper)] == [2, 8, 2, 2]
    assert [c.paths.discount for c in (maze, ant, kitchen, hopper)] == [1.0, 1.0, 0.997, 0.997]
    assert hopper.paths.fall_reward == -100
    assert isinstance(hopper.critic, StateValue)


def test_dvs_critic_stops_early_on_its_schedule():
    optimiser = HorizonCritic().optimiser
    assert optimiser.rate_at(0) == pytest.approx(3e-4)
    assert optimiser.rate_at(199_999) == pytest.approx(3e-4 * 0.5 * (1 + np.cos(np.pi / 5)), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 1}, "horizon counts states"),
        ({"stride": 0}, "stride must be at least 1"),
        ({"prediction": "score"}, "prediction is one of"),
        ({"warm_start": 1.0}, r"warm_start is a share"),
        ({"paths": Paths("somewhere")}, "kind is one of"),
        ({"sampling": Sampling("euler")}, "solver is one of"),
        ({"critic": HorizonCritic(width=10, heads=4)}, "not a multiple of critic.heads"),
        ({"critic": HorizonCritic(patch=4)}, "6 states cannot be cut into patches of critic.patch=4"),
        ({"network": Network(patch=0)}, "patches of network.patch=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **change)


def test_there_is_no_other_preset():
    with pytest.raises(ConfigError, match="there is no preset 'gpu'"):
        preset("gpu", catalogue.get("maze2d-umaze"))
