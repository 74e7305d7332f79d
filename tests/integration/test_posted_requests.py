"""Requests that were posted without a task, while the connection is cut, stalls and breaks in the middle of an answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from command_bus.errors import TransportUnavailable
from tests.chaos.proxy import Mode, Proxy
from tests.selection import quick

registry = HandlerRegistry()
handled: list[tuple[str, int]] = []


class Put(Command[int], entity="box"):
    box: EntityId
    value: int


@registry.handles(Put)
async def put(command: Put) -> int:
    handled.append((command.box, command.value))
    return command.value


FAULTS: list[tuple[Mode, float]] = [
    ("cut_reply", 0), ("chop", 3), ("blackhole_reply", 0), ("refuse", 0), ("chop", 1), ("blackhole", 0), ("delay", 0.05),
]  # fmt: skip
each_fault = pytest.mark.parametrize("fault", quick(FAULTS, FAULTS[:4]), ids=[f"{mode} {amount:g}" for mode, amount in FAULTS])


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tcp=True) as started:
        yield started


@pytest.fixture
async def proxy(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    handled.clear()
    host, port = server.url.removeprefix("redis://").split(":")
    passing = Proxy((host, int(port)))
    await passing.start()
    yield passing
    await passing.stop()


@pytest.fixture
def namespace() -> str:
    return f"posted-{secrets.token_hex(4)}"


async def interrupt(proxy: Proxy, mode: Mode, amount: float, seconds: float = 0.3) -> None:
    """Let connections fail for a while; then end what is left of them, as a network does that comes back."""
    proxy.set(mode, amount)
    if mode == "refuse":
        proxy.reset()
    await asyncio.sleep(seconds)
    proxy.set("pass")
    if mode.startswith("blackhole"):
        proxy.reset()


@each_fault
async def test_each_command_is_accepted_once_and_in_order(
    server: EmbeddedServer, proxy: Proxy, namespace: str, fault: tuple[Mode, float]
) -> None:
    async with CommandBus(url=proxy.url, namespace=namespace, dispatch_timeout=20.0) as bus:
        await bus.dispatch(Put(box="a", value=0))  # connects: what follows is posted
        failing = asyncio.create_task(interrupt(proxy, *fault))
        for value in range(1, 60):
            await asyncio.gather(bus.dispatch(Put(box="a", value=value)), bus.dispatch(Put(box=f"b{value}", value=value)))
            await asyncio.sleep(0.003)
        await failing
    async with CommandBus(url=server.url, namespace=namespace, registry=registry) as bus, bus.worker():
        await bus.wait_idle(20)
    assert [value for box, value in handled if box == "a"] == list(range(60))
    assert sorted(value for box, value in handled if box != "a") == list(range(1, 60))


@each_fault
async def test_each_command_is_handled_once_and_in_order(
    server: EmbeddedServer, proxy: Proxy, namespace: str, fault: tuple[Mode, float]
) -> None:
    async with (
        CommandBus(url=server.url, namespace=namespace) as watching,
        CommandBus(url=proxy.url, namespace=namespace, registry=registry) as bus,
    ):
        await watching.dispatch_batch(Put(box=f"b{number % 3}", value=number) for number in range(300))
        async with bus.worker():
            while len(handled) < 20:
                await asyncio.sleep(0)
            await interrupt(proxy, *fault)
            await watching.wait_idle(20)
    assert len(handled) == 300, "no lease was lost: none starts twice"
    for box in range(3):
        assert [value for name, value in handled if name == f"b{box}"] == list(range(box, 300, 3))


@each_fault
async def test_each_call_gets_its_reply(server: EmbeddedServer, proxy: Proxy, namespace: str, fault: tuple[Mode, float]) -> None:
    async with (
        CommandBus(url=server.url, namespace=namespace, registry=registry) as working,
        working.worker(),
        CommandBus(url=proxy.url, namespace=namespace, call_timeout=20.0, dispatch_timeout=20.0) as bus,
    ):
        assert await bus.call(Put(box="a", value=0)) == 0
        failing = asyncio.create_task(interrupt(proxy, *fault))
        for value in range(1, 12):
            assert await asyncio.gather(*(bus.call(Put(box=f"{each}", value=value)) for each in range(4))) == [value] * 4
            await asyncio.sleep(0.02)
        await failing


async def test_who_waits_too_long_learns_that_it_may_be_accepted(server: EmbeddedServer, proxy: Proxy, namespace: str) -> None:
    async with CommandBus(url=proxy.url, namespace=namespace, dispatch_timeout=0.3) as bus:
        await bus.dispatch(Put(box="a", value=0))
        proxy.set("blackhole_reply")
        with pytest.raises(TransportUnavailable) as raised:
            await bus.dispatch(Put(box="a", value=1))
        assert raised.value.outcome_unknown
        proxy.set("pass")  # the first answer comes late, and belongs to no caller
        await bus.dispatch(Put(box="a", value=2))
    async with CommandBus(url=server.url, namespace=namespace, registry=registry) as bus, bus.worker():
        await bus.wait_idle(20)
    assert handled == [("a", 0), ("a", 1), ("a", 2)]


async def test_a_bus_that_is_closed_waits_for_what_is_posted(server: EmbeddedServer, proxy: Proxy, namespace: str) -> None:
    async with CommandBus(url=proxy.url, namespace=namespace, dispatch_timeout=20.0) as bus:
        await bus.dispatch(Put(box="a", value=0))
        proxy.set("delay", 0.2)
        late = asyncio.create_task(bus.dispatch(Put(box="a", value=1)))
        await asyncio.sleep(0.01)
    assert (await late).status == "accepted"


async def test_a_bus_that_is_closed_while_nothing_answers_ends_in_time(proxy: Proxy, namespace: str) -> None:
    async with CommandBus(url=proxy.url, namespace=namespace, dispatch_timeout=0.5) as bus:
        await bus.dispatch(Put(box="a", value=0))
        proxy.set("blackhole")
        late = asyncio.create_task(bus.dispatch(Put(box="a", value=1)))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            await bus.close()
    with pytest.raises(TransportUnavailable) as raised:
        await late
    assert raised.value.outcome_unknown
