"""The stress test counts what it should, by hand, with a planner whose plans are known."""

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")

from sageplan.experiments import stress as stress_module
from sageplan.experiments.stress import RULES, Rule, stress
from sageplan.tasks.maze2d import Maze
from sageplan.types import Plans

MAZE = Maze.named("umaze")
FREE, WALL = 1.0, 2.0  # rows of the maze at column 1: free, and inside the wall between


class Known:
    """Four plans of twenty steps: the second enters the wall at step 5, the third at step 15."""

    stride = 1

    def propose(self, observations, candidates, generator):
        states = torch.zeros(len(observations), 4, 21, 4)
        states[..., :2] = FREE
        states[:, 1, 5:, 0] = WALL
        states[:, 2, 15:, 0] = WALL
        return Plans(states, torch.zeros(len(observations), 4, 20, 2))


class KnownGate:
    """The third plan costs most, the first least; only steps after the tenth tell the second from the fourth."""

    device = torch.device("cpu")

    def step_energy(self, states, actions, *, stride, generator):
        energy = torch.zeros(1, 4, 20)
        energy[0, 2], energy[0, 1, 10:], energy[0, 3, :] = 0.9, 0.6, 0.2
        return energy


def found(values, **options):
    def scorer(plans):
        return torch.tensor([values]).expand(len(plans.states), -1)

    return stress(Known(), scorer, KnownGate(), MAZE, torch.full((3, 4), FREE), candidates=4, **options)


def test_shares_of_all_plans_and_of_the_winners():
    result = found([0.0, 1.0, 2.0, 0.5])
    assert result["plans"] == {"prefix": 0.25, "whole": 0.5}
    shares = {name: (part["prefix"]["estimate"], part["whole"]["estimate"]) for name, part in result["winners"].items()}
    mcss, sage, half, whole, lowest = (rule.name for rule in RULES)
    assert shares[mcss] == (0.0, 1.0)  # the third, which is worth most
    # keep 0.8 of four keeps all, and λ 0.1 takes at most 0.09 off: still the third
    assert shares[sage] == (0.0, 1.0)
    assert shares[half] == (1.0, 1.0)  # of the first and the second, by ten steps: the second
    assert shares[whole] == (0.0, 0.0)  # the first alone
    assert shares[lowest] == (0.0, 0.0)
    assert (result["starts"], result["steps"], result["prefix"]) == (3, 20, 10)


def test_the_example_holds_the_winners_and_is_small(monkeypatch):
    monkeypatch.setattr(stress_module, "_SHOWN", 3)
    example = found([0.0, 1.0, 2.0, 0.5])["example"]
    paths = np.array(example["paths"])
    assert paths.shape == (3, 21, 2)
    assert np.array(example["energies"]).shape == (3, 20)
    winner = example["winners"][RULES[0].name]
    assert paths[winner, 15, 0] == WALL
    assert paths[winner, 14, 0] == FREE
    assert example["values"][winner] == 2.0


def test_rules_are_selects():
    values, energy = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.5, 0.5], [0.0, 0.0]]])
    assert stress_module._pick(Rule("all", 1.0, 0.0), values, energy).tolist() == [0]
    assert stress_module._pick(Rule("half", 0.5, 0.0), values, energy).tolist() == [1]
    assert stress_module._pick(Rule("dear", 1.0, 5.0), values, energy).tolist() == [1]


def test_it_depends_on_its_seed_alone(tiny_gate, maze_data):
    from sageplan.planners.wrap import Wrapped

    def wander(observation, candidates, generator):
        steps = 0.05 * torch.randn(candidates, 12, 4, generator=generator)
        states = torch.cat([torch.zeros(candidates, 1, 4), steps.cumsum(1)], 1) + observation
        return states

    planner, starts = Wrapped(wander, 4), torch.from_numpy(maze_data.states[:3].copy())
    first, second, other = (
        stress(planner, lambda plans: plans.states[:, :, -1, 0], tiny_gate, MAZE, starts, candidates=6, seed=seed)
        for seed in (0, 0, 1)
    )
    assert first == second
    assert first["example"]["energies"] != other["example"]["energies"]
