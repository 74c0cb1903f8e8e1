"""What several tests need: recorded mazes, the smallest sensible settings, and a gate fitted with them."""

import pytest
import torch
from hypothesis import settings

from sageplan import Gate, GateConfig, InverseDynamics, Optimiser, Stage1, Stage2
from sageplan.data.windows import Windows

settings.register_profile("no deadline", deadline=None)  # the first call into torch can take a second
settings.load_profile("no deadline")
torch.set_num_threads(1)  # networks this small only lose by sharing work, and bits may differ with the split

OPTIMISER = Optimiser(steps=60, batch=32, rate=1e-3, warmup=10)


@pytest.fixture(scope="session")
def maze_data():
    """6,000 rows of maze2d-umaze in 94 episodes."""
    pytest.importorskip("mujoco")
    from sageplan.data.maze2d import collect

    return collect("umaze", 6_000, seed=0)


@pytest.fixture(scope="session")
def tiny_config():
    return GateConfig(
        stage1=Stage1(latent=16, hidden=32, window=8, max_offset=3, offsets=2, layers=1, heads=2, optimiser=OPTIMISER),
        stage2=Stage2(window=8, width=32, layers=1, heads=2, head_hidden=32, rollout=3, optimiser=OPTIMISER),
        inverse_dynamics=InverseDynamics(hidden=32, steps=4, ema=0.9, optimiser=OPTIMISER),
    )


@pytest.fixture(scope="session")
def gate_folder(maze_data, tiny_config, tmp_path_factory):
    """A gate fitted to `maze_data` once, and saved."""
    folder = tmp_path_factory.mktemp("gate")
    Gate.fit(maze_data, tiny_config, device="cpu", progress=False).save(folder)
    return folder


@pytest.fixture
def tiny_gate(gate_folder):
    """A copy of the fitted gate of the test's own."""
    return Gate.load(gate_folder)


@pytest.fixture(scope="session")
def pool(maze_data):
    """Recorded segments as plans: states [3, 5, 21, 4], actions [3, 5, 20, 2], values [3, 5]; copy to change."""
    generator = torch.Generator().manual_seed(7)
    states, actions = Windows(maze_data, 21).sample(15, generator)
    values = torch.randn(3, 5, generator=generator)
    return states.reshape(3, 5, 21, 4).numpy(), actions.reshape(3, 5, 20, 2).numpy(), values.numpy()
