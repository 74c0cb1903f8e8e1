"""A planner of one's own, with a gate behind it: dashes through Maze2D by one who does not know that there are walls.

    python examples/own_planner.py

The whole planner is the function `dash`. Planners from elsewhere are wrapped alike; what the function needs to do:

CleanDiffuser (a planner that diffuses states; `planner` its diffusion model, `normalizer` its data set's):

    def plan(observation, candidates, generator):
        torch.manual_seed(torch.randint(2**31, (), generator=generator).item())  # it draws from torch's own stream
        prior = torch.zeros(candidates, horizon, state_dim)
        prior[:, 0] = torch.as_tensor(normalizer.normalize(observation.numpy()))
        states, _ = planner.sample(prior, solver="ddim", n_samples=candidates, sample_steps=20)
        return torch.as_tensor(normalizer.unnormalize(states.numpy()))

    Wrapped(plan, state_dim, stride=stride)  # stride: environment steps between two of its states

Diffuser (rows of [action, state]; `policy` its guided policy, whose plans come back in raw units):

    def plan(observation, candidates, generator):
        torch.manual_seed(torch.randint(2**31, (), generator=generator).item())
        _, plans = policy({0: observation.numpy()}, batch_size=candidates)
        return torch.as_tensor(plans.observations), torch.as_tensor(plans.actions[:, :-1])  # the last has no effect

Both come with values of their own, `[B, C]`, to give to `gate.choose`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sageplan import Gate, GateConfig
from sageplan.data.maze2d import collect
from sageplan.gate.presets import resolve
from sageplan.planners.wrap import Wrapped
from sageplan.tasks.maze2d import Maze

STEPS, SPAN = 30, 6.0


def dash(observation: Tensor, candidates: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Observation [4] to states [C, 31, 4] and actions [C, 30, 2]: full force towards random places."""
    target = SPAN * torch.rand(candidates, 2, generator=generator)
    state = observation.expand(candidates, 4)
    states, actions = [state], []
    for _ in range(STEPS):
        position, velocity = state[:, :2], state[:, 2:]
        action = (10 * (target - position) - velocity).clamp(-1, 1)
        velocity = (0.9965 * velocity + 0.2385 * action).clamp(-5, 5)  # fitted to recorded motion
        state = torch.cat([position + 0.01 * velocity, velocity], dim=1)
        states.append(state)
        actions.append(action)
    return torch.stack(states, dim=1), torch.stack(actions, dim=1)


def main(
    rows: int = 50_000, preset: str | GateConfig = "cpu", balls: int = 200, candidates: int = 50, progress: bool = True
) -> dict[str, float]:
    """Share of winners that cross a wall, without the gate and with it."""
    maze, data = Maze.named("umaze"), collect("umaze", rows)
    gate = Gate.fit(data, replace(resolve(preset), inverse_dynamics=None), progress=progress)
    planner = Wrapped(dash, data.state_dim)
    observations = torch.from_numpy(data.states[:: len(data) // balls][:balls])
    plans = planner.propose(observations, candidates, torch.Generator().manual_seed(0))
    values = (plans.states[:, :, -1, :2] - plans.states[:, :, 0, :2]).norm(dim=-1)  # the further the better
    winners = {
        "without the gate": values.argmax(1),
        "with it": gate.choose(plans.states, plans.actions, values, prefix=STEPS, keep=0.5).index,
    }
    everyone = torch.arange(len(observations))
    return {
        name: float(maze.crosses_wall(plans.states[everyone, index, :, :2].numpy()).mean())
        for name, index in winners.items()
    }


if __name__ == "__main__":
    for name, share in main().items():
        print(f"plans chosen {name} that cross a wall: {share:.0%}")
