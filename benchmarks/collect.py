"""Steps per second of the Maze2D collector on one core: many balls at a time against one after the other."""

from __future__ import annotations

import time

from common import record
from sageplan.data.maze2d import collect

STEPS, ROUNDS = {1: 20_000, 64: 400_000}, 3


def main() -> None:
    result: dict[str, dict[str, float]] = {}
    for maze in ("umaze", "medium", "large"):
        rate = dict.fromkeys(STEPS, 0.0)
        for _ in range(ROUNDS):
            for balls, steps in STEPS.items():
                began = time.perf_counter()
                collect(maze, steps, num_envs=balls)
                rate[balls] = max(rate[balls], steps / (time.perf_counter() - began))
        result[maze] = {
            "steps per second": round(rate[64]),
            "one ball at a time": round(rate[1]),
            "times faster": round(rate[64] / rate[1], 1),
        }
    record("collect", result)


if __name__ == "__main__":
    main()
