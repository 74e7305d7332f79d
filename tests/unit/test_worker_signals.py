"""Signals are for the whole process: all of its workers stop, and the handlers before are there again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.transport.redis.memory import MemoryClients
from command_bus.worker.worker_bus import on_signals, stop_signals

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Work(Command[None], entity="line"):
    line: EntityId


@pytest.fixture
def heard() -> Generator[list[int]]:
    """Return the signals that reach the handlers of the program."""
    signals: list[int] = []
    before = {number: signal.signal(number, lambda got, _: signals.append(got)) for number in STOPPING}
    yield signals
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
async def test_all_workers_of_a_process_stop(number: signal.Signals, heard: list[int]) -> None:
    going, finish, ended = asyncio.Semaphore(0), asyncio.Event(), list[str]()
    registry = HandlerRegistry()

    @registry.handles(Work)
    async def work(command: Work) -> None:
        going.release()
        await finish.wait()
        ended.append(str(command.line))

    runs: list[asyncio.Task[object]] = []
    for name in ("one", "two", "three"):
        bus = CommandBus(clients=MemoryClients(), namespace=name, registry=registry)
        runs.append(asyncio.ensure_future(_run(bus)))
        await asyncio.wait_for(going.acquire(), 10)
    os.kill(os.getpid(), number)
    await asyncio.sleep(0)
    finish.set()
    await asyncio.wait_for(asyncio.gather(*runs), 10)
    assert len(ended) == 3
    os.kill(os.getpid(), number)
    assert heard == [number]


async def test_one_that_has_ended_leaves_the_signals_to_the_others(heard: list[int]) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    leave_first, leave_second = on_signals(first), on_signals(second)
    leave_second()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(first.wait(), 5)
    leave_first()
    assert (second.is_set(), heard) == (False, [])


async def test_what_took_a_signal_over_meanwhile_keeps_it(heard: list[int]) -> None:
    leave = on_signals(asyncio.Event())
    other = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave()
    assert other is not signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is not other


async def test_a_hang_up_that_is_ignored_stays_ignored(heard: list[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leave = on_signals(asyncio.Event())
    assert signal.SIGHUP not in stop_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    leave()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_a_hang_up_behind_a_signal_ends_nothing_at_once(heard: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked, exits = asyncio.Event(), list[int]()
    monkeypatch.setattr(os, "_exit", exits.append)
    leave = on_signals(asked)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP, signal.SIGINT):
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.06)  # not the same signal twice
    assert (asked.is_set(), exits) == (True, [130])
    leave()


async def _run(bus: CommandBus) -> None:
    async with bus:
        await bus.dispatch(Work(line="a"))
        await bus.worker().run()
