"""What holds for every planner: DV's, and one from elsewhere that is wrapped."""

import importlib.util
from pathlib import Path

import pytest
import torch

from sageplan.diffusion.dit import Network
from sageplan.diffusion.samplers import Sampling
from sageplan.errors import ConfigError, DataError
from sageplan.planners import veteran
from sageplan.planners.config import HorizonCritic, PartialCosine, Paths, VeteranConfig
from sageplan.planners.fit import fit
from sageplan.planners.veteran import Veteran
from sageplan.planners.wrap import Wrapped
from sageplan.types import Plans

TRAINING = PartialCosine(steps=40, batch=32, rate=1e-3, warmup=5)
CONFIG = VeteranConfig(
    horizon=8,
    stride=2,
    paths=Paths("to reward", padded=True, max_length=800, discount=1.0, reward_shift=-1.0),
    network=Network(width=32, embedding=16, heads=2, patch=2),
    ema=0.9,
    sampling=Sampling(steps=4),
    critic=HorizonCritic(width=16, heads=2, patch=4, optimiser=TRAINING),
    optimiser=TRAINING,
)


@pytest.fixture(scope="session")
def trained(maze_data, tmp_path_factory):
    """A tiny Veteran, trained a little, as it is on disk."""
    folder = tmp_path_factory.mktemp("planner")
    fit(maze_data, CONFIG, run_dir=tmp_path_factory.mktemp("run"), device="cpu", progress=False).save(folder)
    return folder


def example():
    path = Path(__file__).parents[2] / "examples" / "own_planner.py"
    spec = importlib.util.spec_from_file_location("own_planner", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["veteran ddim", "veteran ddpm", "veteran dpm++ bf16", "veteran warm", "wrapped"])
def planner(request, trained):
    if request.param == "wrapped":
        return Wrapped(example().dash, 4)
    changes = {
        "veteran ddim": {},
        "veteran ddpm": {"sampling": Sampling("ddpm", steps=5, temperature=0.8, clip=5.0)},
        "veteran dpm++ bf16": {"sampling": Sampling("dpm++", steps=3), "precision": "bf16"},
        "veteran warm": {"warm_start": 0.5},
    }
    return Veteran.load(trained).using(**changes[request.param])


@pytest.fixture
def observations(maze_data):
    return torch.from_numpy(maze_data.states[::1200].copy())


def generators(count, seed=0):
    return [torch.Generator().manual_seed(seed + number) for number in range(count)]


def test_shapes_and_kind(planner, observations):
    plans = planner.propose(observations, 3, torch.Generator().manual_seed(0))
    assert isinstance(plans, Plans)
    batch, candidates, states, size = plans.states.shape
    assert (batch, candidates, size) == (len(observations), 3, 4)
    assert states >= 2
    assert plans.states.dtype == torch.float32
    assert plans.states.device == observations.device
    assert plans.states.isfinite().all()
    assert not plans.states.requires_grad
    plans.states.add_(0)  # an ordinary tensor, that its owner may write to
    if plans.actions is not None:
        assert plans.actions.shape[:3] == (batch, 3, states - 1)
        assert plans.actions.dtype == torch.float32


def test_the_first_state_is_the_observed_one_to_the_last_bit(planner, observations):
    plans = planner.propose(observations, 4, torch.Generator().manual_seed(0))
    assert torch.equal(plans.states[:, :, 0], observations[:, None].expand(-1, 4, -1))


def test_the_observations_are_left_as_they_were(planner, observations):
    before = observations.clone()
    planner.propose(observations, 2, torch.Generator().manual_seed(0))
    assert torch.equal(observations, before)


@pytest.mark.parametrize("each", [True, False])
def test_chance_comes_from_the_generator_alone(planner, observations, each):
    def draw(seed):
        chance = generators(len(observations), seed) if each else torch.Generator().manual_seed(seed)
        return planner.propose(observations, 3, chance).states

    first = draw(1)
    torch.manual_seed(77)
    assert torch.equal(draw(1), first)
    assert not torch.equal(draw(100), first)


def test_candidates_differ(planner, observations):
    """Most of them: two dashes at full force may well be the same."""
    states = planner.propose(observations, 4, torch.Generator().manual_seed(0)).states
    assert ((states[:, 1:] - states[:, :-1]).abs().flatten(2).max(-1).values > 1e-4).float().mean() > 0.8


def test_an_observation_is_planned_for_alike_in_any_company(planner, observations):
    """To the last bit: paired evaluations rest on it."""
    together = planner.propose(observations, 5, generators(len(observations))).states
    for row in range(len(observations)):
        alone = planner.propose(observations[row : row + 1], 5, [torch.Generator().manual_seed(row)]).states
        assert torch.equal(alone[0], together[row])
    order = torch.tensor([2, 0, 1])
    chance = [torch.Generator().manual_seed(int(row)) for row in order]
    assert torch.equal(planner.propose(observations[order], 5, chance).states, together[order])


@pytest.mark.parametrize("tokens", [1, 16, 24, 10_000])
def test_plans_do_not_depend_on_how_the_work_is_cut(planner, observations, monkeypatch, tokens):
    whole = planner.propose(observations, 5, generators(len(observations))).states
    monkeypatch.setattr(veteran, "_CHUNK_TOKENS", tokens)
    pieces = planner.propose(observations, 5, generators(len(observations))).states
    assert torch.allclose(pieces, whole, atol=2e-2 if getattr(planner, "config", CONFIG).precision == "bf16" else 1e-4)


def test_one_observation_and_one_candidate(planner, observations):
    assert planner.propose(observations[:1], 1, torch.Generator().manual_seed(0)).states.shape[:2] == (1, 1)


def test_other_floating_point_types_are_taken(planner, observations):
    states = planner.propose(observations.double(), 2, torch.Generator().manual_seed(0)).states
    assert states.dtype == torch.float32


@pytest.mark.parametrize("shape", [(3, 5), (4,), (0, 4), (2, 3, 4)])
def test_wrong_sizes_are_refused(planner, shape):
    with pytest.raises(DataError, match=r"observations have shape .*expected \[B, 4\]"):
        planner.propose(torch.zeros(shape), 2, torch.Generator())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_observations_that_are_not_finite_are_refused(planner, observations, value):
    observations[1, 2] = value
    with pytest.raises(DataError, match="NaN or infinite"):
        planner.propose(observations, 2, torch.Generator())


def test_no_candidates_are_refused(planner, observations):
    with pytest.raises(ConfigError, match="at least 1 candidate"):
        planner.propose(observations, 0, torch.Generator())


def test_a_wrong_number_of_generators_is_refused(planner, observations):
    with pytest.raises(ConfigError, match=f"2 generators for {len(observations)} observations"):
        planner.propose(observations, 2, generators(2))


def test_the_stride_is_recorded(planner):
    assert planner.stride == (2 if isinstance(planner, Veteran) else 1)


def test_a_gate_of_another_stride_refuses_its_plans(planner, observations, tiny_gate):
    plans = planner.propose(observations, 3, torch.Generator().manual_seed(0))
    values = torch.zeros(plans.states.shape[:2])
    if planner.stride == tiny_gate.config.stride:
        choice = tiny_gate.choose(plans.states, plans.actions, values, prefix=5, stride=planner.stride)
        assert choice.index.shape == (len(observations),)
    else:
        with pytest.raises(ConfigError, match="cannot judge plans of stride 2"):
            tiny_gate.choose(plans.states, plans.actions, values, prefix=5, stride=planner.stride)
