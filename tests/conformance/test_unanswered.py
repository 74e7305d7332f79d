"""The error of a caller that waited in vain: the timeout, and where the command is. Over every server."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandTimeout, EntityId, HandlerRegistry, RetryPolicy
from command_bus.sending import command_location
from command_bus.transport.redis.admin.locator import RedisLocator
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Refund(Command[int], entity="account", retry=RetryPolicy(attempts=3, delay=30, jitter=0.0)):
    account: EntityId
    fails: bool = False


class Refunds(Command[int], entity="account"):
    account: EntityId


class Ping(Command[int]):
    number: int = 0


class Gate:
    """A handler that runs until it is let go."""

    def __init__(self, registry: HandlerRegistry) -> None:
        self.open = asyncio.Event()
        self.running = 0

        @registry.handles(Refund)
        async def refund(command: Refund) -> int:
            if command.fails:
                raise OSError("broken")
            self.running += 1
            await self.open.wait()
            return 1

    async def runs(self) -> None:
        await until(lambda: self.running)


@pytest.fixture
def gate(sandbox: Sandbox) -> Gate:
    return Gate(sandbox.registry)


async def in_vain(bus: CommandBus, command: Command[Any], seconds: float = 0.3) -> CommandTimeout:
    """Return the timeout error of a call; check that it can be pickled."""
    with pytest.raises(CommandTimeout) as caught:
        await bus.call(command, timeout=seconds)
    error = caught.value
    assert f"no reply within {seconds:g} s; its outcome is unknown" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (vars(again), str(again), again.code) == (vars(error), str(error), "timeout")
    return error


@pytest.mark.promise("A timeout says where the command is")
async def test_without_a_worker(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        error = await in_vain(bus, Refund(account="a"))
        assert (error.state, error.workers, error.handlers, error.position) == ("no_worker", 0, 0, 1)
        assert f"no live worker in namespace {sandbox.namespace!r} on {bus.session.redis.connections.label}" in str(error)
        free = await in_vain(bus, Ping())
        assert (free.state, free.position) == ("no_worker", 1)


@pytest.mark.promise("A timeout says where the command is")
async def test_with_a_worker_that_lacks_the_handler(sandbox: Sandbox) -> None:
    others = HandlerRegistry()

    @others.handles(Refunds)
    async def refunds(command: Refunds) -> int:
        return 1

    async with sandbox.bus() as bus, bus.worker(registry=others):
        await until(bus.fleet.workers)
        error = await in_vain(bus, Refund(account="a"))
        assert (error.state, error.workers, error.handlers) == ("no_handler", 1, 0)
        assert "The only live worker in" in str(error)
        assert "does not handle 'Refund' (did you mean 'Refunds'?). Handled are: Refunds" in str(error)


@pytest.mark.promise("A timeout says where the command is")
async def test_behind_a_command_that_runs_for_long(sandbox: Sandbox, gate: Gate) -> None:
    async with sandbox.bus() as bus, bus.worker() as worker:
        await bus.dispatch(Refund(account="a"), command_id="slow")
        await gate.runs()
        await bus.dispatch_batch(Refund(account="a") for _ in range(10))
        error = await in_vain(bus, Refund(account="a"))
        assert (error.state, error.position, error.attempt, error.worker) == ("behind", 12, 1, worker.name)
        assert error.running_for is not None
        assert error.running_for >= 0.3
        assert "It is number 12 in the line of account:a, behind Refund slow, which has run for 0." in str(error)
        assert f"(attempt 1) on worker {worker.name} (" in str(error)
        gate.open.set()
        await bus.wait_idle(10)


async def test_a_running_command(sandbox: Sandbox, gate: Gate) -> None:
    async with sandbox.bus() as bus, bus.worker() as worker:
        error = await in_vain(bus, Refund(account="a"))
        assert (error.state, error.position, error.attempt, error.worker) == ("running", 1, 1, worker.name)
        assert "It has run for 0." in str(error)
        with pytest.raises(CommandTimeout) as caught:
            await bus.result(error.command_id, Refund, timeout=1)
        assert (caught.value.state, caught.value.handlers) == ("running", 1)
        with pytest.raises(CommandTimeout) as caught:
            await bus.result(error.command_id)
        assert caught.value.state == ""  # no caller waited: one look is enough
        gate.open.set()
        assert await bus.result(error.command_id, Refund, timeout=5) == 1


async def test_all_slots_taken(sandbox: Sandbox, gate: Gate) -> None:
    async with sandbox.bus(lease=1.0) as bus, bus.worker(concurrency=1):
        await bus.dispatch(Refund(account="other"))
        await gate.runs()
        await until(lambda: _told(bus, running=1))
        error = await in_vain(bus, Refund(account="a"))
        assert (error.state, error.position, error.workers, error.handlers) == ("busy", 1, 1, 1)
        assert "All slots of the workers that handle it are taken" in str(error)
        gate.open.set()
        await bus.wait_idle(10)


@pytest.mark.promise("A timeout says where the command is")
async def test_of_a_paused_entity(sandbox: Sandbox, gate: Gate) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await until(bus.fleet.workers)
        await bus.entity("account", "a").pause("stocktaking")
        error = await in_vain(bus, Refund(account="a"))
        assert (error.state, error.position) == ("paused", 1)
        assert "account:a is paused (stocktaking): its commands wait until it is resumed" in str(error)
        await bus.entity("account", "a").resume()
        await bus.entities.of("account").pause()
        assert "all account is paused: its" in str(await in_vain(bus, Refund(account="b")))
        await bus.entities.of("account").resume()
        await bus.wait_idle(10)


async def test_a_command_that_waits_for_its_retry(sandbox: Sandbox, gate: Gate) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await until(bus.fleet.workers)
        error = await in_vain(bus, Refund(account="a", fails=True), 1.0)
        assert (error.state, error.attempt, error.position) == ("retrying", 1, 1)
        assert error.retry_in is not None
        assert 20 < error.retry_in <= 30
        assert "Attempt 1 has failed, the next is due in 2" in str(error) or "due in 30 s" in str(error)
        behind = await in_vain(bus, Refund(account="a"))
        assert (behind.state, behind.position) == ("behind", 2)
        assert "which waits for its next attempt, due in " in str(behind)


@pytest.mark.promise("A timeout says where the command is")
async def test_the_look_never_hides_the_timeout(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look takes no longer than the caller waited, and its errors are not raised."""

    async def endless(*_: object) -> None:
        await asyncio.Event().wait()

    async def broken(*_: object) -> None:
        raise RuntimeError("no")

    async with sandbox.bus() as bus:
        monkeypatch.setattr(RedisLocator, "look", endless)
        began = time.monotonic()
        error = await in_vain(bus, Refund(account="a"), 0.2)
        assert (error.state, error.workers) == ("", None)
        assert time.monotonic() - began < 1.0
        monkeypatch.setattr(RedisLocator, "look", broken)
        assert (await in_vain(bus, Refund(account="a"), 0.05)).state == ""


async def test_a_warning_while_nobody_serves_a_call(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command_location, "_WARN_AFTER", 0.1)
    caplog.set_level(logging.WARNING, "command_bus.rpc")
    async with sandbox.bus() as bus:
        calls = [asyncio.create_task(bus.call(Refund(account=f"a-{n}"), timeout=10)) for n in range(5)]
        calls.append(asyncio.create_task(bus.call(Ping(), timeout=10)))
        await until(lambda: len(_warnings(caplog)) == 2)
        calls.append(asyncio.create_task(bus.call(Refund(account="later"), timeout=10)))
        watched = bus.sender._overdue
        await until(lambda: watched._number == len(calls))
        await until(lambda: not watched._waiting and watched._warner is not None and watched._warner.done())
        assert ["no live worker" in each for each in _warnings(caplog)] == [True, True]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert len(_warnings(caplog)) == 2  # once for each command, until a minute is over


async def test_calls_that_are_answered_share_one_timer(sandbox: Sandbox, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked at for their sake, and nothing is left of them."""
    gate.open.set()
    looks = 0

    async def workers(_: object) -> list[Any]:
        nonlocal looks
        looks += 1
        return []

    monkeypatch.setattr("command_bus.transport.redis.admin.type_records.RedisAnnouncements.workers", workers)
    async with sandbox.bus() as bus, bus.worker():
        await asyncio.gather(*(bus.call(Refund(account=f"a-{n}"), timeout=10) for n in range(50)))
        assert not bus.sender._overdue._waiting
        first = bus.sender._overdue._timer
        assert first is not None
        await bus.call(Refund(account="a"), timeout=10)
        assert bus.sender._overdue._timer is first
    assert first.cancelled()
    assert looks == 0


async def _told(bus: CommandBus, running: int) -> bool:
    return any(worker.running == running for worker in await bus.fleet.workers())


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "command_bus.rpc"]
