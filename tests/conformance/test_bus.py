"""The facade: its life, middleware, blocking callers, many calls."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus import (
    BusClosed,
    Command,
    CommandBus,
    CommandContext,
    CommandTimeout,
    EntityId,
    Envelope,
    HandlerRegistry,
    InvalidCommand,
    Middleware,
    RegistrationError,
    SyncCommandBus,
    TransportUnavailable,
    UnknownCommand,
)
from command_bus.embedded import EmbeddedServer
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.transport.steps import Cancellation, Cause
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import held_by, reader_of, side_of


class Add(Command[int], entity="sum"):
    sum_id: EntityId
    number: int


class Sums:
    def __init__(self, registry: HandlerRegistry) -> None:
        self.sums: dict[str, int] = {}
        self.headers: list[dict[str, str]] = []

        @registry.handles(Add)
        async def add(command: Add, context: CommandContext) -> int:
            key = str(command.sum_id)
            self.headers.append(dict(context.headers))
            self.sums[key] = self.sums.get(key, 0) + command.number
            return self.sums[key]


async def test_a_bus_that_is_not_open_refuses(sandbox: Sandbox) -> None:
    bus = sandbox.bus()
    for attempt in (
        lambda: bus.dispatch(Add(sum_id="a", number=1)),
        lambda: bus.call(Add(sum_id="a", number=1)),
        lambda: bus.dispatch_batch([Add(sum_id="a", number=1)]),
        bus.stats,
    ):
        with pytest.raises(BusClosed, match="not open"):
            await attempt()
    async with bus:
        await bus.dispatch(Add(sum_id="a", number=1))
        await bus.close()
        await bus.close()
        with pytest.raises(BusClosed, match="closed"):
            await bus.dispatch(Add(sum_id="a", number=1))
    async with bus:  # as an application that starts again
        await bus.dispatch(Add(sum_id="a", number=1))


async def test_ping_and_repr(sandbox: Sandbox) -> None:
    bus = sandbox.bus()
    assert "not open" in repr(bus)
    async with bus:
        assert 0 < await bus.ping() < 5
        assert "open" in repr(bus)
    assert "closed" in repr(bus)


async def test_middleware_sees_every_dispatch_and_every_attempt(sandbox: Sandbox) -> None:
    sums = Sums(sandbox.registry)
    log: list[str] = []

    class Trace(Middleware):
        async def dispatch(self, outgoing: OutgoingMessage, proceed: Callable[[OutgoingMessage], Awaitable[Any]]) -> Any:
            outgoing.headers["trace"] = "t-1"
            log.append(f"send {outgoing.name}")
            return await proceed(outgoing)

        async def handle(self, command: Any, context: CommandContext, proceed: Callable[[], Awaitable[Any]]) -> Any:
            log.append(f"before {context.headers['trace']}")
            try:
                return await proceed()
            finally:
                log.append("after")

    async with sandbox.bus(middleware=[Trace()]) as bus, bus.worker():
        assert await bus.call(Add(sum_id="a", number=2), timeout=5) == 2
        batch = await bus.dispatch_batch([Add(sum_id="a", number=1)])
        assert batch.accepted == 1
        await bus.wait_idle(5)
    assert log == ["send Add", "before t-1", "after", "send Add", "before t-1", "after"]
    assert sums.headers == [{"trace": "t-1"}, {"trace": "t-1"}]


async def test_two_classes_with_one_wire_name_are_refused(sandbox: Sandbox) -> None:
    class Other(Command[int], entity="sum", name="Add"):
        sum_id: EntityId

    async with sandbox.bus() as bus:
        await bus.dispatch(Add(sum_id="a", number=1))
        with pytest.raises(RegistrationError, match="wire name 'Add'"):
            await bus.dispatch(Other(sum_id="a"))


async def test_five_thousand_calls_share_a_few_connections(sandbox: Sandbox) -> None:
    Sums(sandbox.registry)
    count = 5000 if sandbox.name != "memory" else 500
    async with sandbox.bus() as bus, bus.worker():
        results = asyncio.gather(*(bus.call(Add(sum_id=f"s{n % 50}", number=1), timeout=60) for n in range(count)))
        if sandbox.name != "memory":
            client = sandbox.client()
            await asyncio.sleep(0.2)
            assert len(await client.client_list()) < 40
            await client.aclose()
        assert sum(await results) == 50 * sum(range(1, count // 50 + 1))


async def test_results_can_be_read_later(sandbox: Sandbox) -> None:
    Sums(sandbox.registry)
    async with sandbox.bus() as bus:
        with pytest.raises(UnknownCommand):
            await bus.result("unheard-of")
        await bus.dispatch(Add(sum_id="a", number=4), command_id="later")
        with pytest.raises(CommandTimeout):
            await bus.result("later")
        async with bus.worker():
            assert await bus.result("later", Add, timeout=5) == 4


async def test_raw_dispatch_needs_no_class(sandbox: Sandbox) -> None:
    sums = Sums(sandbox.registry)
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch_raw("sum", 7, "Add", {"sum_id": 7, "number": 3})
        await bus.wait_idle(5)
        assert sums.sums == {"7": 3}
        for arguments in (("sum", None, "Add", {}), ("su m", "7", "Add", {}), ("sum", "7", "", {}), ("sum", "7", "Add", [1])):
            with pytest.raises(InvalidCommand):
                await bus.dispatch_raw(*arguments)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tcp_server() -> Any:
    with EmbeddedServer.start(tcp=True) as server:
        yield server


def _in_child(url: str, bus: SyncCommandBus, answers: Any) -> None:
    answers.put(bus.dispatch(Add(sum_id="forked", number=1)).status)
    bus.close()
    os._exit(0)  # pytest's own clean-up does not survive a fork


async def test_blocking_callers_in_threads_and_forked_processes(tcp_server: EmbeddedServer) -> None:
    registry = HandlerRegistry()
    sums = Sums(registry)
    async with CommandBus(tcp_server.url, namespace="sync", registry=registry) as bus, bus.worker():

        def use() -> None:
            with SyncCommandBus(tcp_server.url, namespace="sync") as blocking:
                assert blocking.dispatch(Add(sum_id="a", number=1)).status == "accepted"
                assert blocking.call(Add(sum_id="a", number=1), timeout=10) == 2
                batch = blocking.dispatch_batch(Envelope(Add(sum_id="a", number=1), command_id=f"b{n}") for n in range(10))
                assert batch.accepted == 10
                threads = [threading.Thread(target=blocking.dispatch, args=(Add(sum_id="t", number=1),)) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                blocking.wait_idle(10)
                context = multiprocessing.get_context("fork")
                answers = context.SimpleQueue()
                child = context.Process(target=_in_child, args=(tcp_server.url, blocking, answers))
                child.start()
                child.join(20)
                assert answers.get() == "accepted"
                assert child.exitcode == 0
                assert blocking.ping() > 0
                blocking.wait_idle(10)
            with pytest.raises(BusClosed):
                blocking.ping()

        await asyncio.get_running_loop().run_in_executor(None, use)
    assert sums.sums == {"a": 12, "t": 8, "forked": 1}


async def test_an_absent_server_fails_fast_and_comes_back(tcp_server: EmbeddedServer) -> None:
    loop = asyncio.get_running_loop()
    with EmbeddedServer.start(tcp=True) as server:
        async with CommandBus(server.url, namespace="gone", dispatch_timeout=0.5) as bus:
            server.kill()
            began = loop.time()
            with pytest.raises(TransportUnavailable):
                await bus.dispatch(Add(sum_id="a", number=1))
            with pytest.raises((TransportUnavailable, CommandTimeout)):
                await bus.call(Add(sum_id="a", number=1), timeout=0.3)
            assert loop.time() - began < 3
            server.restart()
            assert (await bus.dispatch(Add(sum_id="a", number=1))).status == "accepted"
    with pytest.raises(TransportUnavailable):
        async with CommandBus(server.url, namespace="gone", dispatch_timeout=0.3):
            pass


@pytest.mark.promise("A worker is cut off from Redis")
async def test_a_worker_that_lost_its_lease_does_not_start_the_command_again(tcp_server: EmbeddedServer) -> None:
    """Cut off for longer than its lease, a worker cancels its handler; back again, it finds the activation pending in its own name."""
    registry = HandlerRegistry()
    starts: list[int] = []

    class Pay(Command[None], entity="sum", delivery="at_most_once"):
        sum_id: EntityId

    @registry.handles(Pay)
    async def pay(command: Pay, context: CommandContext) -> None:
        starts.append(context.attempt)
        await asyncio.sleep(60)

    async with CommandBus(tcp_server.url, namespace="sight", registry=registry, lease=0.9) as bus, bus.worker() as worker:
        await bus.dispatch(Pay(sum_id="a"))
        while not starts:
            await asyncio.sleep(0.01)
        keeper = side_of(worker).leases
        (lease,) = held_by(worker).values()
        keeper.drop(lease)  # as if it could not be renewed: the handler is cancelled, the activation stays pending
        assert lease.cancel is not None
        lease.cancel(Cancellation(Cause.LOST, "it could not be renewed in time"))
        reader = reader_of(worker)
        await asyncio.sleep(0.05)
        await reader._adopt()
        await bus.wait_idle(10)
        (letter,) = [letter async for letter in bus.dead_letters.list()]
    assert starts == [1]
    assert letter.reason == "interrupted"


async def test_a_burst_of_first_dispatches_keeps_the_order_of_the_calls(sandbox: Sandbox) -> None:
    """The first command of an entity type asks the server about it; those behind it must not be overtaken by newcomers."""
    seen: list[int] = []

    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        seen.append(command.number)
        return 0

    async with sandbox.bus() as bus:
        tasks = []
        for number in range(200):
            tasks.append(asyncio.create_task(bus.dispatch(Add(sum_id="a", number=number))))
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        async with bus.worker():
            await bus.wait_idle(10)
    assert seen == list(range(200))
