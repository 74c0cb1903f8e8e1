"""Planners and scorers small enough to know by heart, and a task short enough to run often."""

from dataclasses import replace

import torch

from sageplan.planners.protocol import noise
from sageplan.tasks import get
from sageplan.types import Plans

STEPS = 12
DT = 0.01


def short(name="maze2d-umaze-v1", steps=STEPS):
    return replace(get(name), step_limit=steps)


class Pushes:
    """Maze2D plans of one random force each, through walls if need be; some jump ahead of what a force can do."""

    def __init__(self, length=12, actions=True, stride=1, jump=0.2):
        self.length, self.with_actions, self.stride, self.jump = length, actions, stride, jump
        self.calls = []

    def propose(self, observations, candidates, generator):
        self.calls.append(len(observations))
        drawn = noise((len(observations), candidates, 3), generator, observations.device)
        force, jump = drawn[..., :2].clamp(-1, 1), self.jump * drawn[..., 2:].clamp(min=0)
        state = observations[:, None].expand(-1, candidates, -1)
        states = [state]
        for _ in range(self.length):
            speed = (state[..., 2:] + 20 * DT * force).clamp(-5, 5)
            state = torch.cat([state[..., :2] + DT * speed + jump * force, speed], -1)
            states.append(state)
        actions = force[:, :, None].expand(-1, -1, self.length, -1) if self.with_actions else None
        return Plans(torch.stack(states, 2), actions)


class Hops:
    """Plans for hopper: it stays where it is, under one random action."""

    stride = 1

    def propose(self, observations, candidates, generator):
        drawn = noise((len(observations), candidates, 3), generator, observations.device).clamp(-1, 1)
        states = observations[:, None, None].expand(-1, candidates, 5, -1)
        return Plans(states, drawn[:, :, None].expand(-1, -1, 4, -1))


class Between:
    """Inverse dynamics of pushes, with some chance in it."""

    def draw(self, states, following, generator):
        chance = torch.randn(len(states), 2, generator=generator)
        return ((following[:, 2:] - states[:, 2:]) / (20 * DT) + 0.1 * chance).clamp(-1, 1)


class Rounding(Pushes):
    """What it proposes depends a little on how many observations it is asked about, as matrix products may."""

    def propose(self, observations, candidates, generator):
        plans = super().propose(observations, candidates, generator)
        return Plans(plans.states + 1e-5 * len(observations), (plans.actions * (1 - 1e-5 * len(observations))))


def nearness(plans):
    """J of umaze: minus how far from the goal a plan ends."""
    return -(plans.states[:, :, -1, :2] - 1.0).square().sum(-1).sqrt()


def upright(plans):
    """J of hopper: any number that depends on the plan."""
    return plans.actions[:, :, 0].sum(-1)
