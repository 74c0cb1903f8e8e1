"""Real D4RL rows and behaviour policies, which lie next to a checkout where there are any."""

from pathlib import Path

import h5py
import numpy as np
import pytest

SHARED = Path(__file__).parents[2].parent / "shared" / "d4rl"


def found(path):
    if not path.exists():
        pytest.skip(f"no {path.name} next to the checkout")
    return path


@pytest.fixture(scope="session")
def d4rl_rows():
    """The arrays of a sample file, by the file's name."""

    def read(name):
        with h5py.File(found(SHARED / "samples" / name)) as source:
            keys = ("observations", "actions", "rewards", "next_observations", "infos/qpos", "infos/qvel", "infos/goal")
            return {key: source[key][:].astype(np.float64) for key in keys if key in source}

    return read


@pytest.fixture(scope="session")
def d4rl_policy():
    """A stochastic tanh-Gaussian policy by its name: observations [B, S] and a generator to actions [B, A]."""

    def read(name):
        with np.load(found(SHARED / "policies" / f"{name}.npz")) as file:
            weights = dict(file)

        def layer(key, x):
            return x @ weights[f"{key}/weight"].T + weights[f"{key}/bias"]

        def act(observations, rng):
            hidden = np.maximum(layer("fc1", np.maximum(layer("fc0", observations), 0)), 0)
            std = np.exp(np.clip(layer("last_fc_log_std", hidden), -20, 2))
            return np.tanh(layer("last_fc", hidden) + std * rng.standard_normal(std.shape))

        return act

    return read
