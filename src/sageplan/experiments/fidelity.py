"""How close the simulated tasks are to D4RL's: one-step replay, returns of D4RL's own policies, known differences.

    python -m sageplan.experiments.fidelity --samples DIR --policies DIR [--data DIR] --out docs/fidelity.md

Beside the report lies a .json of the same numbers.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tyro

from sageplan.data.agreement import row_errors
from sageplan.data.examine import read_hdf5, says_of_itself
from sageplan.data.official import FACTS
from sageplan.errors import ConfigError, DataError
from sageplan.experiments.behaviour import StoredPolicy, roll_out, towards, waypoint_returns
from sageplan.experiments.differences import kitchen_effects, touches_wall, warm_start_effect
from sageplan.experiments.fidelity_report import markdown
from sageplan.tasks import get, recognise
from sageplan.tasks.catalogue import Task
from sageplan.tasks.maze2d import Maze, one_step
from sageplan.training.checkpoint import atomic, claim_folder, write_json

RUNNERS = ("hopper", "halfcheetah", "walker2d")
MAZES = ("umaze", "medium", "large")
LARGE = 1e-4  # a hundred times what float32 explains
ANT_EPISODE = 1001  # rows between resets in AntMaze data
# Mean and standard deviation of the episodes' returns in the official files, as Decision Transformer's loader prints
# them; recorded in several public copies of its code.
PUBLISHED_RETURNS = {
    "hopper-medium-v2": (1422.06, 378.95),
    "halfcheetah-medium-v2": (4770.33, 355.75),
    "walker2d-medium-v2": (2852.09, 1095.44),
}
PUBLISHED_TOP_SPEED = 5.2262554  # largest velocity in the official maze2d-large-v1


@dataclass
class Run:
    """Measure and write the report."""

    samples: Path
    """folder of .hdf5 files with rows of official D4RL files"""
    policies: Path
    """folder of .npz files: {hopper,halfcheetah,walker2d}_medium and ant_goal"""
    out: Path = Path("docs/fidelity.md")
    data: Path | None = None
    """folder of regenerated files, which say less"""
    episodes: int = 1000
    """of every policy in locomotion and Maze2D"""
    ant_episodes: int = 200
    seed: int = 0

    def __call__(self) -> None:
        if min(self.episodes, self.ant_episodes) < 2:
            raise ConfigError("a standard error takes at least 2 episodes")
        claim_folder(self.out.parent, needed_bytes=0)
        policies = {name: StoredPolicy(self.policies / f"{name}_medium.npz") for name in RUNNERS}
        ant = StoredPolicy(self.policies / "ant_goal.npz")
        real, regenerated = _files(self.samples), _files(self.data) if self.data else []
        for path in real:
            if told := says_of_itself(path):
                raise DataError(f"{path} is not from D4RL: it says of itself '{told}'; put it among --data")
        summary: dict[str, Any] = {
            "command": self.command(),
            "versions": {name: version(name) for name in ("mujoco", "gymnasium", "gymnasium-robotics", "numpy")}
            | {"python": platform.python_version()},
            "seed": self.seed,
            "replay_real": [replay_record(path) for path in real],
            "replay_regenerated": [replay_record(path) for path in regenerated],
            "returns": [self.runner(name, policies[name]) for name in RUNNERS],
            "maze2d": [self.maze2d(name) for name in MAZES],
            "top_speed": {"simulated": top_speed(), "published": PUBLISHED_TOP_SPEED},
            "antmaze": [self.antmaze(name, ant) for name in ("medium", "large")],
            "warm_start": [warm_start_effect(name, policies[name], self.seed) for name in RUNNERS],
            "kitchen": kitchen_effects(self.seed),
        }
        write_json(self.out.with_suffix(".json"), summary)
        with atomic(self.out) as partial:
            partial.write_text(markdown(summary))

    def command(self) -> str:
        """With folders by their names alone: where they lie is of no use to others."""
        options = f"--samples {self.samples.name} --policies {self.policies.name}"
        options += f" --data {self.data.name}" if self.data else ""
        numbers = f"--episodes {self.episodes} --ant-episodes {self.ant_episodes} --seed {self.seed}"
        out = self.out.name if self.out.is_absolute() else self.out.as_posix()
        return f"python -m sageplan.experiments.fidelity {options} --out {out} {numbers}"

    def runner(self, name: str, policy: StoredPolicy) -> dict[str, Any]:
        """A medium policy, drawing its actions as it did for D4RL, against what D4RL's file holds of it."""
        task = get(f"{name}-medium-v2")
        rng = np.random.default_rng([self.seed, 0])
        found = roll_out(task, self.episodes, self.seed, lambda *_: lambda observations: policy(observations, rng))
        facts, published = FACTS[task.name], PUBLISHED_RETURNS[task.name]
        assert facts.rows is not None, task.name
        assert facts.episodes is not None, task.name
        returns = spread(found.returns)
        error = np.hypot(returns["standard_error"], published[1] / facts.episodes**0.5)
        return {
            "task": task.name,
            "return": returns,
            "length": spread(found.lengths),
            "median_return": float(np.median(found.returns)),
            "below_half_of_median": float((found.returns < np.median(found.returns) / 2).mean()),
            "fell": float(found.terminated.mean()),
            "published": {
                "return": {"mean": published[0], "std": published[1], "episodes": facts.episodes},
                "length": {"mean": facts.rows / facts.episodes},
            },
            "standard_errors_apart": float((returns["mean"] - published[0]) / error),
        }

    def maze2d(self, name: str) -> dict[str, Any]:
        task = get(f"maze2d-{name}-v1")
        own, kept = waypoint_returns(task, self.episodes, self.seed)
        return {
            "task": task.name,
            "steps": task.step_limit,
            "reference": {"min": task.min_return, "max": task.max_return},
            "path_per_episode": spread(own),
            "path_kept": spread(kept),
        }

    def antmaze(self, name: str, policy: StoredPolicy) -> dict[str, Any]:
        task, rng = get(f"antmaze-{name}-play-v2"), np.random.default_rng([self.seed, 0])
        found = roll_out(
            task,
            self.ant_episodes,
            self.seed,
            lambda _, infos: towards(Maze.named(name), np.array(infos["goal"], np.float64), policy, rng),
        )
        steps = found.lengths[found.returns > 0]
        return {
            "task": task.name,
            "success": spread(found.returns),
            "steps_of_successes": spread(steps) if len(steps) > 1 else None,
        }


def replay_record(path: Path) -> dict[str, Any]:
    """Errors of one simulated step from a file's rows, with and without legacy physics."""
    task = recognise(path)
    if task is None or task.domain == "kitchen":
        raise ConfigError(f"{path.name}: its name does not tell a task that can be replayed; rename or remove it")
    columns, ends, _ = read_hdf5(path, task)
    if "next_observations" in columns:
        ends = np.zeros_like(ends)  # recorded even where an episode ended
    elif path.stem.endswith("-v0"):  # AntMaze's first version flags its ends two rows early
        ends = np.arange(1, len(ends) + 1) % ANT_EPISODE == 0
    found, notes = row_errors(task, columns, ends)
    if found is None:
        raise DataError(f"{path.name}: {'; '.join(notes)}")
    record: dict[str, Any] = {
        "file": path.name,
        "task": task.name,
        "origin": says_of_itself(path),
        "rows_in_file": len(ends),
        "rows": len(found.rows),
        "legacy": error_summary(found.states, found.rewards),
        "notes": [note for note in notes if "rewards differ" not in note],
    }
    if task.domain != "maze2d":
        modern, _ = row_errors(task, columns, ends, legacy=False)
        assert modern is not None, path
        record["modern"] = error_summary(modern.states, modern.rewards)
    if task.domain == "antmaze":
        states, actions = (columns[name][found.rows] for name in ("observations", "actions"))
        record["walls"] = at_walls(task, states, actions, found.states)
    elif found.rewards is not None and "terminals" in columns:
        terminal = columns["terminals"][found.rows].astype(bool)
        if terminal.any():
            record["terminal"] = {"rows": int(terminal.sum()), "reward_max": float(found.rewards[terminal].max())}
    return record


def error_summary(states: npt.NDArray[Any], rewards: npt.NDArray[Any] | None) -> dict[str, Any]:
    median, p95 = (float(np.quantile(states, share, method="higher")) for share in (0.5, 0.95))
    record: dict[str, Any] = {"median": median, "p95": p95, "max": float(states.max())}
    record["large"] = int((states > LARGE).sum())
    record["broken_down"] = int(np.isinf(states).sum())
    known = None if rewards is None or not np.isfinite(rewards).any() else rewards
    record["reward_median"] = None if known is None else float(np.nanmedian(known))
    record["reward_max"] = None if known is None else float(np.nanmax(known))
    return record


def at_walls(
    task: Task, states: npt.NDArray[Any], actions: npt.NDArray[Any], errors: npt.NDArray[Any]
) -> dict[str, Any]:
    """Whether ants touch a wall in the rows with large errors, and where those are that do not."""
    touching, large = touches_wall(task, states, actions), errors > LARGE
    return {
        "touching": int(touching.sum()),
        "median_touching": float(np.median(errors[touching])) if touching.any() else None,
        "large": int(large.sum()),
        "large_touching": int((large & touching).sum()),
        "large_elsewhere": [
            {"error": float(error), "height": float(height)}
            for error, height in zip(errors[large & ~touching], states[large & ~touching, 2], strict=True)
        ],
    }


def top_speed() -> float:
    """What full force makes of a ball at D4RL's speed limit, which it applies before a step, in float32."""
    maze = Maze.named("large")
    after = one_step(maze, np.array([[1.0, 1.0, 5.0, 0.0]]), np.array([[1.0, 0.0]]))
    return float(np.float32(after[0, 2]))


def spread(values: npt.NDArray[Any]) -> dict[str, float]:
    numbers = [float(value) for value in values]
    std = statistics.stdev(numbers)
    return {
        "mean": statistics.fmean(numbers),
        "std": std,
        "standard_error": std / len(numbers) ** 0.5,
        "episodes": len(numbers),
    }


def _files(folder: Path) -> list[Path]:
    found: Iterable[Path] = sorted(folder.glob("*.hdf5"))
    if not found:
        raise ConfigError(f"{folder} holds no .hdf5 file")
    return list(found)


if __name__ == "__main__":
    tyro.cli(Run, description=__doc__)()
