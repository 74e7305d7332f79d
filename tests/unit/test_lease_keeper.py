"""Times at which the lease keeper wakes: the next renewal and the next deadline, but none that has passed; it always wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from command_bus.clock import mono
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.worker import lease_keeper
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper, Page
from command_bus.transport.steps import Cancellation


def pause_of(*deadlines: float) -> float:
    """Return how long it waits for leases that end in so many seconds, if no renewal is due for long."""
    keeper = LeaseKeeper(Connections(MemoryClients()), KeySpace("n", 1), worker="w", lease=30.0, heartbeat=lambda _: b"")
    keeper._next_renewal = mono() + 100
    for number, seconds in enumerate(deadlines):
        keeper.add(0, f"box:{number}", f"{number}-0").deadline = mono() + seconds
    try:
        next(keeper.turn())
    except StopIteration as end:
        return float(end.value)
    raise AssertionError("a renewal was due")


def test_it_wakes_when_a_lease_ends() -> None:
    assert 0.2 < pause_of(50.0, 0.4) <= 0.4


def test_a_lease_that_is_over_does_not_wake_it_again() -> None:
    assert pause_of(-5.0) > 0.9


class Broken(LeaseKeeper):
    """A keeper whose turns raise unexpected errors until it is mended."""

    broken = True

    def _renewed(self, page: Page, asked: float, answers: Any) -> bool:
        if self.broken:
            raise ValueError("nobody foresaw this")
        return super()._renewed(page, asked, answers)


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = mono() + 10.0
    while not condition():
        assert mono() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


async def test_the_renewing_thread_survives_unexpected_errors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "_PAUSE", 0.02)
    keeper = Broken(Connections(MemoryClients()), KeySpace("n", 1), worker="w", lease=0.3, heartbeat=lambda _: b"")
    lease = keeper.add(0, "box:1", "1-0")
    told: list[Cancellation] = []
    lease.cancel = told.append
    keeper.start()
    try:
        await eventually(lambda: len(told) > 0)
        assert "nobody foresaw this" in caplog.text
        assert keeper._thread is not None
        assert keeper._thread.is_alive()
        keeper.broken = False
        keeper.drop(lease)
        caplog.clear()
        await eventually(lambda: keeper._next_renewal > mono())
        assert "nobody foresaw" not in caplog.text
        assert keeper.overdue == 0.0
    finally:
        await keeper.stop()


async def test_a_heartbeat_that_fails_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[float] = []

    def heartbeat(_: int) -> bytes:
        calls.append(mono())
        raise RuntimeError("no sign of life")

    keeper = LeaseKeeper(Connections(MemoryClients()), KeySpace("n", 1), worker="w", lease=0.3, heartbeat=heartbeat)
    keeper.start()
    try:
        await eventually(lambda: len(calls) > 3)
        assert "no sign of life" in caplog.text
    finally:
        await keeper.stop()


def test_a_thread_that_is_gone_shows() -> None:
    keeper = LeaseKeeper(Connections(MemoryClients()), KeySpace("n", 1), worker="w", lease=30.0, heartbeat=lambda _: b"")
    assert keeper.overdue == 0.0, "it was not started"
    keeper._alive_at = mono() - 20.0
    assert 10.0 < keeper.overdue < 20.0


async def test_a_lease_that_was_renewed_late_is_lost_once_more() -> None:
    """A thread ran on, and its lease was still held on the server: the next handler under it must get the next loss."""
    keeper = LeaseKeeper(Connections(MemoryClients()), KeySpace("n", 1), worker="w", lease=30.0, heartbeat=lambda _: b"")
    keeper._loop = asyncio.get_running_loop()
    lease = keeper.add(0, "box:1", "1-0")
    told: list[str] = []
    lease.cancel = lambda why: told.append(f"thread: {why.text}")

    async def renewal(answer: Any) -> None:
        keeper._next_renewal = 0.0
        turn = keeper.turn()
        next(turn)
        with pytest.raises(StopIteration):
            turn.send(answer)
        await asyncio.sleep(0)

    lease.deadline = mono() - 1
    await renewal(ConnectionError("cut off"))
    await renewal([(1_700_000_000, 0), 0, [b"1-0"]])
    assert len(told) == 1
    lease.cancel = lambda why: told.append(f"next: {why.text}")
    await renewal([(1_700_000_000, 0), 0, []])
    assert told[1:] == ["next: another worker took it over, or it was settled"]


def test_a_worker_whose_event_loop_was_closed_keeps_nothing(caplog: pytest.LogCaptureFixture) -> None:
    keeper = LeaseKeeper(Connections(MemoryClients()), KeySpace("n", 1), worker="w", lease=30.0, heartbeat=lambda _: b"")

    async def start() -> None:
        keeper.start()

    asyncio.run(start())
    assert keeper._thread is not None
    keeper._thread.join(5.0)
    assert not keeper._thread.is_alive(), "else the entities of this worker wait until its process ends"
    assert "Close a worker first" in caplog.text
