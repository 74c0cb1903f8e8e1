"""Environment steps per second of `make_vector` with 50 environments and random actions.

Against Gymnasium's SyncVectorEnv and AsyncVectorEnv of the very same tasks, without wrappers around them. What has
ended begins anew in all three: by itself in Gymnasium's, by a masked reset in ours, whose time counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

import sageplan.tasks
from common import interleaved, record

B = 50
TASKS = {  # and how many steps of each are timed at once
    "hopper-medium-v2": 100,
    "halfcheetah-medium-v2": 100,
    "walker2d-medium-v2": 100,
    "antmaze-medium-play-v2": 40,
    "maze2d-medium-v1": 200,
}
TARGETS = {"hopper": 1.5, "halfcheetah": 1.5, "walker2d": 1.5, "maze2d": 5.0}


def run(envs: VectorEnv[Any, Any, Any], actions: np.ndarray, reset: bool) -> Callable[[], None]:
    def steps() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = envs.step(action)
            if reset and (done := terminated | truncated).any():
                envs.reset(options={"reset_mask": done})

    return steps


def main() -> None:
    result: dict[str, Any] = {"environments": B}
    for name, steps in TASKS.items():

        def single(name: str = name) -> Any:
            return sageplan.tasks.make(name)

        workers = AsyncVectorEnv([single] * B)  # first, because it forks
        envs = {"async": workers, "sync": SyncVectorEnv([single] * B), "ours": sageplan.tasks.make_vector(name, B)}
        actions = np.random.default_rng(0).uniform(-1, 1, (steps, *workers.action_space.shape)).astype(np.float32)
        for vector in envs.values():
            vector.reset(seed=0)
        runs = {key: run(vector, actions, reset=key == "ours") for key, vector in envs.items()}
        seconds = interleaved(runs, rounds=9)
        for vector in envs.values():
            vector.close()
        rates = {f"steps per second, {key}": round(steps * B / seconds[key]) for key in ("ours", "sync", "async")}
        ratio = min(seconds["sync"], seconds["async"]) / seconds["ours"]
        goal = TARGETS.get(name.split("-")[0])
        result[name] = {**rates, "times faster than the better one": round(ratio, 2), "target": goal}
    record("vector", result)


if __name__ == "__main__":
    main()
