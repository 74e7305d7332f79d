"""Ways into an entity's line, for a moment or at once: the rows and columns of `test_moments.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any
from zlib import crc32

from command_bus import Command, CommandBus, CommandContext, EntityId, Envelope, HandlerRegistry, Unique, every
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import IN_DISPATCH, WireEnvelope, pack_envelope
from command_bus.testing.simulated.live import LiveServer, Process
from command_bus.transport.ports.bulk import LoadItem, Opening, Version
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.maintenance.due_work import DueWork, Member
from command_bus.transport.redis.maintenance.relay import RelayJob
from command_bus.transport.unique_keys import LoadKey
from tests.conformance.put_service import until

__all__ = ["AT_ONCE", "LATER", "Gated", "Scene", "Send", "Step", "Way", "relay"]


class Step(Command[int], entity="line"):
    line: EntityId
    n: int


class Send(Command[None], entity="sender"):
    sender: EntityId
    line: str
    ns: list[int]
    delay: float = 0.0
    at: datetime | None = None
    hold: bool = False


class Call(Command[None], entity="caller", durable=True):
    caller: EntityId
    line: str
    n: int


class Gated(Process):
    """A process whose requests wait while its gate is shut, as in an outage."""

    def __init__(self, server: LiveServer) -> None:
        super().__init__(server)
        self.open = asyncio.Event()
        self.open.set()

    async def exchange(self, requests: list[list[bytes]]) -> list[Any]:
        await self.open.wait()
        return await super().exchange(requests)


class Scene:
    """A server whose time a test sets, a bus with two shards, and an entity's line. Its worker looks at what is due only while it may."""

    def __init__(self, registry: HandlerRegistry) -> None:
        self.held_at: float | None = None
        self.server = LiveServer(self._clock)
        self.sees = False
        self.looks: set[DueWork] = set()
        self.ran: list[int] = []
        self.gate = asyncio.Event()
        self.holding = False
        self.line = "a"
        self.bus: CommandBus
        self.process: Gated
        self._numbers = 0
        self._declare(registry)

    def _clock(self) -> float:
        return time.monotonic() if self.held_at is None else self.held_at

    def _declare(self, registry: HandlerRegistry) -> None:
        @registry.handles(Step)
        async def step(command: Step) -> int:
            self.ran.append(command.n)
            return command.n

        @registry.handles(Send)
        async def send(command: Send, context: CommandContext) -> None:
            for n in command.ns:
                context.send(Step(line=command.line, n=n), delay=command.delay, at=command.at)
            if command.hold:
                self.holding = True
                await self.gate.wait()

        @registry.handles(Call)
        async def call(command: Call, context: CommandContext) -> None:
            await context.call(Step(line=command.line, n=command.n))

    def hold(self) -> None:
        """Let the server's clock stand still, on a whole second."""
        self.held_at = int(time.monotonic() + self.server.offset + 1) + 0.0005 - self.server.offset

    def look(self) -> None:
        """Let the worker look at what is due, from now on."""
        self.sees = True
        for each in self.looks:
            each.wake()

    def jump(self, seconds: float) -> None:
        """Let the server's clock go ahead; what is due is due."""
        self.server.jump(seconds)

    def moment(self, seconds: float) -> datetime:
        """Return a moment from the server's now, on a whole second so that a millisecond has no part in it."""
        return datetime.fromtimestamp(int(self._clock() + self.server.offset + seconds), tz=UTC)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def home(self, kind: str, *, shard_of_line: bool) -> str:
        """Return an id of an entity in the shard of the line, or in the other."""
        keys = self.bus.session.redis.keys
        here = keys.shard_of(f"line:{self.line}")
        return next(
            each
            for each in (f"{kind}{n}-{self.number()}" for n in range(1000))
            if (keys.shard_of(f"{kind}:{each}") == here) is shard_of_line
        )


Way = Callable[[Scene, list[int], float], Awaitable[Any]]
"""Puts commands with these numbers into the line, in their order: so many seconds later, or 0: at once."""


def _id(scene: Scene, n: int) -> str:
    """Return an id whose bytes say the reverse of the number."""
    return f"{scene.line}-{999 - n}"


async def dispatch(scene: Scene, ns: list[int], delay: float) -> None:
    for n in ns:
        await scene.bus.dispatch(Step(line=scene.line, n=n), delay=delay)


async def given_id(scene: Scene, ns: list[int], delay: float) -> None:
    for n in ns:
        await scene.bus.dispatch(Step(line=scene.line, n=n), delay=delay, command_id=_id(scene, n))


async def at_moment(scene: Scene, ns: list[int], delay: float) -> None:
    at = scene.moment(delay or -5)
    for n in ns:
        await scene.bus.dispatch(Step(line=scene.line, n=n), at=at, command_id=_id(scene, n))


async def raw(scene: Scene, ns: list[int], delay: float) -> None:
    for n in ns:
        await scene.bus.dispatch_raw(
            "line", scene.line, "Step", {"line": scene.line, "n": n}, delay=delay, command_id=_id(scene, n)
        )


async def batch(scene: Scene, ns: list[int], delay: float) -> None:
    await scene.bus.dispatch_batch([Envelope(Step(line=scene.line, n=n), delay=delay, command_id=_id(scene, n)) for n in ns])


async def batch_at(scene: Scene, ns: list[int], delay: float) -> None:
    at = scene.moment(delay or -5)
    await scene.bus.dispatch_batch([Envelope(Step(line=scene.line, n=n), at=at, command_id=_id(scene, n)) for n in ns])


async def urgent(scene: Scene, ns: list[int], delay: float) -> None:
    for n in ns:
        await scene.bus.dispatch(Step(line=scene.line, n=n), delay=delay, command_id=_id(scene, n), priority="high")


async def first_wins(scene: Scene, ns: list[int], delay: float) -> None:
    for n in ns:
        await scene.bus.dispatch(Step(line=scene.line, n=n), delay=delay, command_id=_id(scene, n), unique=Unique(f"k{n}"))


async def debounced(scene: Scene, ns: list[int], delay: float) -> None:
    for n in ns:
        unique = Unique(f"k{n}", wins="latest", debounce=delay or None)
        await scene.bus.dispatch(Step(line=scene.line, n=n), command_id=_id(scene, n), unique=unique)


async def sent(scene: Scene, ns: list[int], delay: float, *, here: bool = True, at: bool = False) -> None:
    sender = scene.home("sender", shard_of_line=here)
    command = Send(
        sender=sender, line=scene.line, ns=ns, delay=0.0 if at else delay, at=scene.moment(delay or -5) if at else None
    )
    await scene.bus.call(command, timeout=30)


async def sent_at(scene: Scene, ns: list[int], delay: float) -> None:
    await sent(scene, ns, delay, at=True)


async def relayed(scene: Scene, ns: list[int], delay: float) -> None:
    await sent(scene, ns, delay, here=False)
    await relay(scene)


async def relayed_at(scene: Scene, ns: list[int], delay: float) -> None:
    await sent(scene, ns, delay, here=False, at=True)
    await relay(scene)


async def relay(scene: Scene) -> None:
    """Let the worker relay what waits for the line's shard, although it looks at nothing else that is due."""
    keys = scene.bus.session.redis.keys
    there = keys.shard_of(f"line:{scene.line}")
    job = RelayJob(Connections(Process(scene.server)), keys, keys.shards[1 - there])
    assert (await job.perform([Member(f"o:{there}", 1.0)])).left == []


async def rescheduled(scene: Scene, ns: list[int], delay: float) -> None:
    at = scene.moment(delay)
    for n in ns:
        await scene.bus.dispatch(Step(line=scene.line, n=n), delay=delay + 1000 - n, command_id=_id(scene, n))
    for n in reversed(ns):
        assert await scene.bus.commands.reschedule(_id(scene, n), at=at)


async def called(scene: Scene, ns: list[int], delay: float) -> None:
    for n in ns:
        before = (await scene.bus.stats()).accepted
        await scene.bus.dispatch(Call(caller=scene.home("caller", shard_of_line=True), line=scene.line, n=n))
        await until(partial(_accepted, scene, before + 2))


async def _accepted(scene: Scene, count: int) -> bool:
    return (await scene.bus.stats()).accepted >= count


async def fired(scene: Scene, ns: list[int], delay: float) -> None:
    for n in ns:
        name = f"s{scene.number()}"
        await scene.bus.schedules.put(name, Step(line=scene.line, n=n), every(1_000_000))
        await scene.bus.schedules.trigger(name)
        await scene.bus.schedules.firing.fire_due([name])
        await scene.bus.schedules.remove(name)


def _item(scene: Scene, n: int, unique: Unique | None) -> LoadItem:
    builder = EnvelopeBuilder(scene.bus.settings)
    out = builder.of_item(Envelope(Step(line=scene.line, n=n), command_id=_id(scene, n), unique=unique))
    mailbox = builder.build(out).mailbox
    envelope = WireEnvelope(
        out.command_id, out.name, out.entity_type, out.entity_id, out.payload, IN_DISPATCH, options=out.options or None
    )
    key = None if unique is None else LoadKey.of(unique, out.name, mailbox, scene.line)
    return mailbox, out.command_id, crc32(out.payload).to_bytes(4, "big"), pack_envelope(envelope), scene.line, 0, "", key


async def loaded(scene: Scene, ns: list[int], delay: float, unique: Callable[[int], Unique | None] = lambda n: None) -> None:
    version, dispatches = Version(f"d{scene.number()}"), scene.bus.session.transport.bulk
    await dispatches.open(version, Opening())
    items = [_item(scene, n, unique(n)) for n in ns]
    await dispatches.load(version, scene.bus.session.redis.keys.shard_of(items[0][0]), items)


async def loaded_unique(scene: Scene, ns: list[int], delay: float) -> None:
    await loaded(scene, ns, delay, lambda n: Unique(f"k{n}", wins="latest", debounce=delay or None))


async def loaded_mixed(scene: Scene, ns: list[int], delay: float) -> None:
    """Load rows of which every other one has a unique key, in one request."""
    await loaded(scene, ns, delay, lambda n: Unique(f"k{n}") if n % 2 else None)


LATER: dict[str, Way] = {
    "dispatch": dispatch,
    "dispatch with an id": given_id,
    "dispatch at": at_moment,
    "dispatch_raw": raw,
    "dispatch_batch": batch,
    "dispatch_batch at": batch_at,
    "high priority": urgent,
    "unique, the first wins": first_wins,
    "debounced": debounced,
    "context.send": sent,
    "context.send at": sent_at,
    "context.send to another shard": relayed,
    "context.send to another shard at": relayed_at,
    "reschedule": rescheduled,
    "load, debounced": loaded_unique,
}
"""Each way to name a moment."""

AT_ONCE: dict[str, Way] = {
    **{name: way for name, way in LATER.items() if way is not rescheduled},
    "context.call": called,
    "schedule": fired,
    "load": loaded,
    "load, some unique": loaded_mixed,
}
"""Each way into the line at once."""
