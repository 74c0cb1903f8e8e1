"""Independent pieces of work on all of a CPU's threads, one thread each.

What is worked on together for one decision is too small for its matrix products to be shared among threads: two threads
for one decision take longer than one, two decisions at a time half as long (benchmarks/decide.py). And as a piece never
uses more than one thread, its result does not depend, to the last bit, on how many there are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_here = threading.local()


def spread(work: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """[work(item) for item in items]; on a CPU in threads, which do not know what grad mode the caller is in.

    Called from within such a piece it stays in its thread.
    """
    if device.type != "cpu" or getattr(_here, "is_worker", False):
        return [work(item) for item in items]
    threads = torch.get_num_threads()
    try:
        return list(_pool(threads).map(work, items))
    finally:
        torch.set_num_threads(threads)  # the workers' 1 is what threads that torch makes later would take


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "sageplan", initializer=_begin)


if hasattr(os, "register_at_fork"):  # threads do not live on in a forked process
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _begin() -> None:
    torch.get_num_threads()  # a thread takes over torch's number when first asked, even after it was told another
    torch.set_num_threads(1)
    _here.is_worker = True
