"""Costs of a command that can be counted: script calls, commands inside them, round trips, bytes. No time is measured.

A change that increases one of them fails here, on any machine. The limits are what was counted when they were written,
with a little room for what depends on timing (how many steps meet in one request). Who lowers a cost lowers its limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from command_bus import Command, CommandBus, EntityId, Envelope, HandlerRegistry
from command_bus.embedded import EmbeddedServer

COUNT = 4000
NAMESPACE = "costs"

pytestmark = [pytest.mark.server]
registry = HandlerRegistry()


class Note(Command[int], entity="box"):
    box: EntityId
    number: int
    text: str = "x" * 60


@registry.handles(Note)
async def note(command: Note) -> int:
    return command.number


@dataclass(frozen=True)
class Spent:
    """Per command: calls of the server's commands by name, and bytes that it received and sent."""

    calls: dict[str, float]
    received: float
    sent: float

    @property
    def requests(self) -> float:
        """Script calls and blocking reads: what a client waits for."""
        return sum(self.calls.get(name, 0.0) for name in ("evalsha", "xreadgroup", "blmpop"))

    def inside(self, *names: str) -> float:
        return sum(self.calls.get(name, 0.0) for name in names)


class Meter:
    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url, protocol=2)

    def begin(self) -> None:
        self.client.config_resetstat()

    def spent(self, commands: int) -> Spent:
        info: Any = self.client.info("everything")
        calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in info.items() if name.startswith("cmdstat_")}
        return Spent(
            {name: count / commands for name, count in calls.items()},
            info["total_net_input_bytes"] / commands,
            info["total_net_output_bytes"] / commands,
        )


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest.fixture
def meter(server: EmbeddedServer) -> Meter:
    meter = Meter(server.url)
    meter.client.flushall()
    return meter


def bus_on(server: EmbeddedServer) -> CommandBus:
    return CommandBus(server.url, namespace=NAMESPACE, registry=registry, max_depth=COUNT)


def notes(entities: int, count: int = COUNT) -> list[Note]:
    return [Note(box=f"e{number % entities}", number=number) for number in range(count)]


@pytest.mark.parametrize(("entities", "inside", "hset"), [(10, 8.2, 0.2), (200, 8.1, 2.01)])
async def test_one_dispatch_is_one_round_trip(
    server: EmbeddedServer, meter: Meter, entities: int, inside: float, hset: float
) -> None:
    """Into a mailbox, or as the only command of its entity: then its record and the envelope are two fields."""
    async with bus_on(server) as bus:
        await bus.dispatch(Note(box="warm", number=0))
        meter.begin()
        for each in notes(entities, 200):
            await bus.dispatch(each)
        spent = meter.spent(200)
    assert spent.requests == 1
    assert spent.inside("set", "get", "exists", "hget", "hmget", "hincrby", "xlen", "xadd") <= inside
    assert spent.inside("hset") <= hset
    assert spent.received <= 500


@pytest.mark.parametrize(("entities", "inside"), [(10, 1.1), (1000, 2.3), (COUNT, 1.1)])
async def test_a_batch(server: EmbeddedServer, meter: Meter, entities: int, inside: float) -> None:
    """An XADD per command, and XLEN for an entity that was not idle; one more XADD and HSET for one whose only command gets a stream."""
    async with bus_on(server) as bus:
        await bus.dispatch(Note(box="warm", number=0))
        meter.begin()
        batch = await bus.dispatch_batch(notes(entities))
        spent = meter.spent(COUNT)
    assert batch.accepted == COUNT
    assert spent.requests <= 1 / 500
    assert spent.inside("xadd", "xlen", "set", "get", "hset", "hexists", "hget", "hmget") <= inside
    assert spent.inside("set") <= 0.01, "a generated id has no mark"
    assert spent.received <= 170


async def test_a_batch_with_given_ids_has_one_mark_more_each(server: EmbeddedServer, meter: Meter) -> None:
    async with bus_on(server) as bus:
        meter.begin()
        await bus.dispatch_batch(Envelope(each, command_id=f"order-{each.number:08d}") for each in notes(10))
        spent = meter.spent(COUNT)
    assert 1 <= spent.inside("set") <= 1.01
    assert spent.inside("xadd", "xlen", "get") <= 1.1


@pytest.mark.parametrize(
    ("entities", "own", "shared"),
    [
        (1000, 0.12, 0.7),  # one of four is read from `lone`
        (COUNT, 0.12, 0.42),
    ],
)
async def test_a_drain(server: EmbeddedServer, meter: Meter, entities: int, own: float, shared: float) -> None:
    """Scripts of one entity are called for each command, shared ones once per request.

    How many commands share a request depends on how busy the machine is: the best of three drains counts.
    """
    drains = []
    for _ in range(3):
        async with bus_on(server) as bus:
            await bus.dispatch_batch(notes(entities))
            meter.begin()
            async with bus.worker(concurrency=100):
                await bus.wait_idle(30)
                drains.append(meter.spent(COUNT))
    spent = min(drains, key=lambda drain: drain.requests)
    assert spent.inside("xdel", "xrange", "hexists", "set") <= own, "XRANGE in the look for entities without an activation"
    assert (
        spent.inside("xread", "hget", "hmget", "hset", "hdel", "del", "xack", "xclaim", "xtrim", "hincrby", "evalsha") <= shared
    )
    assert spent.requests <= 0.1
    assert spent.received <= 215, "a usual step names its record and what that becomes"
    assert spent.sent <= 255


async def test_a_call(server: EmbeddedServer, meter: Meter) -> None:
    """Enqueue, read, start, settle, and the pop of the reply: five requests, of which two are scripts of the worker."""
    async with bus_on(server) as bus, bus.worker():
        await bus.call(Note(box="warm", number=0))
        await bus.session.redis.connections.script_cache.load()  # which the worker else does within its first second
        meter.begin()
        for each in notes(10, 200):
            await bus.call(each)
        spent = meter.spent(200)
    assert spent.requests <= 5.1
    assert spent.inside("evalsha") <= 3.02
    assert spent.received <= 2100, "1,935, and what the worker asks beside it in two seconds of a slow machine"
    assert spent.inside("set") <= 4.1, "the producer's answer, the fence, twice the mark"


@pytest.mark.parametrize(("each", "limit"), [(1, 300), (10, 240)])
async def test_bytes_in_memory(server: EmbeddedServer, meter: Meter, each: int, limit: float) -> None:
    """Of one command of each entity, and of ten, with `stream-node-max-bytes 512`."""
    async with bus_on(server) as bus:
        await bus.dispatch(Note(box="warm", number=0))
        before = meter.client.info("memory")["used_memory"]
        await bus.dispatch_batch(notes(COUNT // each))
        per_command = (meter.client.info("memory")["used_memory"] - before) / COUNT
    assert per_command <= limit
