"""Timing for the benchmarks: what is compared runs in turns, in one process, so that both see the same machine."""

from __future__ import annotations

import json
import platform
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int, warm_up: int = 2) -> dict[str, float]:
    """Median seconds of each run; one call of each per round."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(warm_up + rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - began)
    return {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}


def record(name: str, numbers: dict[str, Any]) -> None:
    """Print and keep the numbers of one benchmark, with what they were measured on."""
    numbers = {
        "command": shlex.join(["python", f"benchmarks/{name}.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        **numbers,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(numbers, indent=2) + "\n")
    print(json.dumps(numbers, indent=2))
