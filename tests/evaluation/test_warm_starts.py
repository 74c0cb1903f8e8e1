"""Evaluations of planners that begin from the plan before."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

from test_rollout import CONFIG, CPU, by_cell, run
from toy_planner import Pushes, nearness

from sageplan.evaluation.decide import Ask, Decider
from sageplan.evaluation.effort import Effort
from sageplan.evaluation.pool import Tools
from sageplan.evaluation.selectors import Mcss, Sage


def evaluate_tools(planner, gate):
    return Tools(
        scorer=nearness, gate=gate, inverse_dynamics=None, simulation=None, stride=1, replan_every=3, sampler_seed=0,
        device=CPU, effort=Effort(),
    )  # fmt: skip


class Warm(Pushes):
    """Notes the plans that it is to begin from."""

    warm_starts = True

    def __init__(self, **options):
        super().__init__(**options)
        self.begun = []

    def propose(self, observations, candidates, generator, *, previous=None, passed=None):
        self.begun.append((observations.clone(), previous, passed))
        return super().propose(observations, candidates, generator)


def test_plans_begin_from_the_ones_that_were_followed(tiny_gate):
    planner = Warm()
    config = dataclasses.replace(CONFIG, replan_every=4, block=1)
    run(planner, tiny_gate, ["mcss"], 1, config)
    assert [passed for _, _, passed in planner.begun] == [None, 4, 4]
    assert planner.begun[0][1] is None
    for (before, _, _), (_, previous, _) in itertools.pairwise(planner.begun):
        assert previous.shape == (1, 13, 4)
        assert torch.equal(previous[0, 0], before[0])


def test_a_strided_plan_moves_on_by_whole_steps_of_its_own(tiny_gate):
    planner = Warm(stride=5)
    tools = dataclasses.replace(evaluate_tools(planner, None), stride=5, replan_every=1)
    decider = Decider(planner, tools, candidates=3, block=2, prefix=2, action_dim=2)
    (chosen,) = decider.decide([Ask(Mcss(), 0, 0, np.ones(4))])
    decider.decide([Ask(Mcss(), 0, 1, np.ones(4), chosen.plan)])
    assert planner.begun[-1][2] == 0


def test_rows_that_begin_an_episode_have_no_plan_before(tiny_gate):
    """Two environments: the first episode of the second one ends early, and its next begins beside a plan's middle."""
    planner = Warm()
    tools = evaluate_tools(planner, tiny_gate)
    decider = Decider(planner, tools, candidates=3, block=2, prefix=2, action_dim=2)
    mcss, state = Sage(keep=1.0, penalty=0.0), np.ones(4)
    (chosen,) = decider.decide([Ask(mcss, 0, 0, state)])
    decider.decide([Ask(mcss, 0, 3, state, chosen.plan), Ask(mcss, 1, 0, state)])
    previous = planner.begun[-1][1]
    assert torch.equal(previous[0], torch.from_numpy(chosen.plan).float())
    assert previous[1].isnan().all()


def test_arms_with_other_plans_behind_them_do_not_share(tiny_gate):
    """In the same state after different plans, only a planner without a memory plans once for both."""
    config = dataclasses.replace(CONFIG, replan_every=2)
    arms = ["mcss", Sage(keep=0.3, penalty=0.0)]
    cold, warm = run(Pushes(jump=0), tiny_gate, arms, 3, config), run(Warm(jump=0), tiny_gate, arms, 3, config)
    assert [e.episode_return for e in warm.episodes] == [e.episode_return for e in cold.episodes]
    plans = np.ones((13, 4)), np.full((13, 4), 2.0)
    planner = Warm()
    decider = Decider(planner, evaluate_tools(planner, tiny_gate), candidates=3, block=1, prefix=2, action_dim=2)
    decider.decide([Ask(arm, 0, 3, np.ones(4), plan) for arm, plan in zip((Mcss(), Sage()), plans, strict=True)])
    assert decider._tools.effort.planned == 2
    decider.decide([Ask(arm, 0, 3, np.ones(4), plans[0]) for arm in (Mcss(), Sage())])
    assert decider._tools.effort.planned == 3


def test_a_veteran_with_warm_starts_plays_the_same_alone_and_in_company(tiny_gate, tmp_path):
    from sageplan.data.normaliser import Normaliser
    from sageplan.diffusion.dit import DiT, Network
    from sageplan.diffusion.samplers import Sampling
    from sageplan.planners.config import HorizonCritic, VeteranConfig
    from sageplan.planners.store import untrained_value
    from sageplan.planners.veteran import Veteran

    veteran = VeteranConfig(
        horizon=8, network=Network(width=16, embedding=8, heads=2), sampling=Sampling(steps=4), warm_start=0.5,
        critic=HorizonCritic(width=16, heads=2), prediction="clean",
    )  # fmt: skip
    torch.manual_seed(0)
    normaliser = Normaliser(4)
    network = DiT(8, 4, veteran.network)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    planner = Veteran(veteran, normaliser, network, untrained_value(veteran, normaliser), {})
    config = dataclasses.replace(CONFIG, replan_every=3, block=1)
    both = run(planner, tiny_gate, ["mcss", "sage"], 2, config, scorer=planner.critic)
    alone = run(planner, tiny_gate, ["sage"], 2, config, scorer=planner.critic)
    assert by_cell(alone.episodes).items() <= by_cell(both.episodes).items()
    cold = planner.using(warm_start=None)
    assert run(cold, tiny_gate, ["sage"], 2, config, scorer=planner.critic).episodes != alone.episodes
