"""A run of seconds: tiny settings of every part, on umaze with episodes of twelve steps."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("mujoco")

from sageplan.diffusion.dit import Network
from sageplan.diffusion.samplers import Sampling
from sageplan.evaluation.config import RolloutConfig
from sageplan.planners.config import HorizonCritic, PartialCosine, Paths, VeteranConfig
from sageplan.runs import diagnosis
from sageplan.runs.config import RunConfig
from sageplan.runs.stages import run
from sageplan.tasks import catalogue

TRAINING = PartialCosine(steps=60, batch=32, rate=2e-3, final_rate=0.0, warmup=10)
TASK = replace(catalogue.get("maze2d-umaze-v1"), step_limit=12)


@pytest.fixture(scope="session")
def tiny_run_config(tiny_config):
    planner = VeteranConfig(
        horizon=12,
        paths=Paths("to reward", padded=True, max_length=100, discount=1.0, reward_shift=-1.0),
        network=Network(width=32, embedding=16, heads=2, patch=4),
        prediction="clean",
        ema=0.9,
        sampling=Sampling("dpm++", 3),
        critic=HorizonCritic(width=16, heads=2, patch=4, optimiser=TRAINING),
        optimiser=TRAINING,
    )
    return RunConfig(tiny_config, planner, RolloutConfig(candidates=6, replan_every=3, block=2, width=4))


@pytest.fixture(scope="session")
def maze_file(maze_data, tmp_path_factory):
    """`maze_data` in D4RL's layout."""
    path = tmp_path_factory.mktemp("data") / "maze2d-umaze-v1.hdf5"
    timeouts = np.zeros(len(maze_data), bool)
    timeouts[maze_data.offsets[1:] - 1] = True
    with h5py.File(path, "w") as file:
        file.update({"observations": maze_data.states, "actions": maze_data.actions, "rewards": maze_data.rewards})
        file.update({"terminals": np.zeros(len(maze_data), bool), "timeouts": timeouts})
    return path


@pytest.fixture(autouse=True)
def short_task(monkeypatch):
    """A run folder names its task, so the task of that name has to be the short one."""
    monkeypatch.setitem(catalogue.TASKS, TASK.name, TASK)
    monkeypatch.setattr(diagnosis, "STARTS", 3)
    monkeypatch.setattr(diagnosis, "CANDIDATES", 8)


@pytest.fixture
def start(tiny_run_config, maze_file, tmp_path):
    """Runs, or goes on with, a run in the test's folder."""

    def go(name="run", config=tiny_run_config, **options):
        settings = {"out": tmp_path / name, "data": maze_file, "episodes": 2, "device": "cpu", "progress": False}
        return run(TASK, "cpu", config, **{**settings, **options})

    return go


@pytest.fixture(scope="session")
def _finished(tiny_run_config, maze_file, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(catalogue.TASKS, TASK.name, TASK)
        patch.setattr(diagnosis, "STARTS", 3)
        patch.setattr(diagnosis, "CANDIDATES", 8)
        return run(
            TASK, "cpu", tiny_run_config,
            out=tmp_path_factory.mktemp("runs") / "done", data=maze_file, episodes=3,
            selectors=("mcss", "sage", "random"), device="cpu", progress=False,
        )  # fmt: skip


@pytest.fixture
def finished(_finished, tmp_path):
    """A copy of a finished run of three arms and three episodes."""
    import shutil

    from sageplan.runs.folder import Run

    return Run.open(shutil.copytree(_finished.path, tmp_path / "finished"))
