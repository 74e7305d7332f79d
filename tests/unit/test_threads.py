"""The threads of a worker: no more than their number run, what waits can be abandoned, and a lent one is replaced."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from command_bus.worker.threads import HandlerThreads, NeverStartedError, ThreadJob


class Gate:
    """Calls that end when they are let go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.threads: set[int] = set()

    def __call__(self) -> str:
        self.threads.add(threading.get_ident())
        self.open.wait(20)
        return "ended"


def job(call: Callable[[], Any], *, may_start: bool = True) -> ThreadJob:
    return ThreadJob(call, lambda: may_start)


@pytest.fixture
def gate() -> Any:
    gate = Gate()
    yield gate
    gate.open.set()


async def test_jobs_beyond_the_limit_wait_in_their_order(gate: Gate) -> None:
    threads, order = HandlerThreads(2), list[int]()
    blocked = [job(gate), job(gate)]
    rest = [job(lambda number=number: order.append(number)) for number in range(5)]  # type: ignore[misc]
    for each in (*blocked, *rest):
        threads.submit(each)
    assert [each.begun for each in (*blocked, *rest)] == [True, True] + [False] * 5
    assert (threads.busy, threads.waiting) == (2, 5)
    gate.open.set()
    await asyncio.wait_for(asyncio.gather(*(each.done for each in (*blocked, *rest))), 10)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert await blocked[0].done == ("ended", None)
    assert (threads.busy, threads.waiting) == (0, 0)
    threads.close()


async def test_a_job_that_no_thread_has_can_be_abandoned(gate: Gate) -> None:
    threads, ran = HandlerThreads(1), list[int]()
    first, second, third = job(gate), job(lambda: ran.append(2)), job(lambda: ran.append(3))
    for each in (first, second, third):
        threads.submit(each)
    assert not threads.abandon(first)
    assert threads.abandon(second)
    assert not threads.abandon(second)
    gate.open.set()
    await asyncio.wait_for(third.done, 10)
    assert ran == [3]
    assert not second.begun
    threads.close()


async def test_what_may_not_start_any_more_does_not() -> None:
    threads, ran = HandlerThreads(1), list[int]()
    late = job(lambda: ran.append(1), may_start=False)
    threads.submit(late)
    _, error = await asyncio.wait_for(late.done, 10)
    assert isinstance(error, NeverStartedError)
    assert ran == []
    threads.close()


@pytest.mark.parametrize("error", [ValueError(), StopIteration(), SystemExit(), KeyboardInterrupt()], ids=type)
async def test_a_thread_survives_everything_a_job_raises(error: BaseException) -> None:
    def raises() -> None:
        raise error

    threads = HandlerThreads(1)
    failing, fine = job(raises), job(lambda: "fine")
    threads.submit(failing)
    threads.submit(fine)
    assert await asyncio.wait_for(failing.done, 10) == (None, error)
    assert await asyncio.wait_for(fine.done, 10) == ("fine", None)
    threads.close()


async def test_a_lent_thread_is_replaced_until_it_is_taken_back(gate: Gate) -> None:
    threads, later = HandlerThreads(1), Gate()
    jobs = [job(gate), job(gate), job(later)]
    for each in jobs:
        threads.submit(each)
    threads.lend()
    assert [each.begun for each in jobs] == [True, True, False]
    threads.take_back()
    assert threads.busy == 2
    gate.open.set()
    assert jobs[2].handed_over is not None
    await asyncio.wait_for(jobs[2].handed_over, 10)
    assert threads.busy == 1, "one more only when both have ended"
    later.open.set()
    await asyncio.wait_for(jobs[2].done, 10)
    threads.close()


async def test_threads_are_kept_and_end_when_closed() -> None:
    threads, idents = HandlerThreads(4), set[int]()
    for _ in range(10):
        only = job(lambda: idents.add(threading.get_ident()))
        threads.submit(only)
        await asyncio.wait_for(only.done, 10)
    assert len(idents) == 1
    threads.close()
    thread = next(each for each in threading.enumerate() if each.ident in idents)
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


async def test_a_thread_that_outlives_its_loop_ends_in_silence(gate: Gate) -> None:
    def run() -> threading.Thread:
        async def start() -> threading.Thread:
            HandlerThreads(1).submit(job(gate))
            while not gate.threads:
                await asyncio.sleep(0.001)
            return next(each for each in threading.enumerate() if each.ident in gate.threads)

        return asyncio.run(start())

    thread = await asyncio.to_thread(run)
    gate.open.set()
    assert thread.daemon
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


async def test_a_thread_that_cannot_be_started_is_waited_for(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no more threads: those that are there serve what waits."""
    threads, ran = HandlerThreads(3), list[int]()
    first, second, third = job(gate), job(lambda: ran.append(2)), job(lambda: ran.append(3))
    threads.submit(first)

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        threads.submit(second)
        threads.submit(third)
    assert (threads.busy, threads.waiting, second.begun) == (1, 2, False)
    gate.open.set()
    await asyncio.wait_for(asyncio.gather(second.done, third.done), 10)
    assert sorted(ran) == [2, 3]
    assert threads.busy == 0
    threads.close()


async def test_threads_end_when_they_are_no_longer_referenced() -> None:
    idents = set[int]()
    only = job(lambda: idents.add(threading.get_ident()))
    owner = HandlerThreads(2)
    owner.submit(only)
    await asyncio.wait_for(only.done, 10)
    del owner
    gc.collect()
    threads = [each for each in threading.enumerate() if each.ident in idents]
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
