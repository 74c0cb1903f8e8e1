"""Work in threads: in order, nested, broken, and the same whatever the number of threads."""

import os
import signal
import threading
import time

import pytest
import torch

from sageplan.parallel import spread

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 2, 3], autouse=True)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_order_from_as_many_threads(threads):
    barrier = threading.Barrier(threads)

    def work(item):
        barrier.wait(timeout=20)  # passes only when all threads are at work at the same time
        return item * item, threading.current_thread().name

    found = spread(work, range(threads * 4), CPU)
    assert [square for square, _ in found] == [i * i for i in range(threads * 4)]
    assert len({name for _, name in found}) == threads


def test_every_piece_has_one_thread_and_the_caller_keeps_its_own(threads):
    def work(_):
        torch.randn(500, 500) @ torch.randn(500, 500)
        return torch.get_num_threads()

    for _ in range(2):
        assert spread(work, range(4), CPU) == [1] * 4
    assert torch.get_num_threads() == threads


def test_within_a_piece_it_stays_in_its_thread():
    def outer(_):
        return set(spread(lambda _: threading.get_ident(), range(5), CPU)) == {threading.get_ident()}

    assert all(spread(outer, range(6), CPU))


def test_an_error_reaches_the_caller_and_the_threads_go_on(threads):
    def work(item):
        if item == 2:
            raise ValueError("two")
        return item

    with pytest.raises(ValueError, match="two"):
        spread(work, range(4), CPU)
    assert spread(work, [0, 1], CPU) == [0, 1]
    assert torch.get_num_threads() == threads


def test_elsewhere_than_on_a_cpu_the_caller_does_it_all():
    assert set(spread(lambda _: threading.get_ident(), range(3), torch.device("meta"))) == {threading.get_ident()}


def test_products_are_the_same_to_the_last_bit_whatever_the_number_of_threads():
    a, b = torch.randn(300, 200), torch.randn(200, 100)
    first, second = spread(lambda _: a @ b, range(2), CPU)
    assert torch.equal(first, second)
    torch.set_num_threads(4)
    assert torch.equal(spread(lambda _: a @ b, range(1), CPU)[0], first)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not a POSIX system")
def test_a_forked_process_makes_threads_of_its_own():
    spread(abs, range(3), CPU)
    child = os.fork()
    if child == 0:
        os._exit(0 if spread(abs, [-1, -2], CPU) == [1, 2] else 1)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
