"""A namespace in which every key that `docs/wire-format.md` names is in use, left by its workers in the middle of their work.

Whatever an entity still waits for may happen at once: a retry and a delayed command are due, a pause is over, a signal and a reply have come,
a schedule was triggered. So a worker that comes does all of it, and `Live.done` says what. Names of entities are tokens that appear in no
other text (`t07x`): what names one may concern that one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis import Redis

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    HandlerRegistry,
    Limit,
    Rate,
    RetryPolicy,
    Unique,
    every,
)
from command_bus.clock import mono
from command_bus.notifications import RedisNotifier
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.serialization.msgpack import pack
from command_bus.transport.interrupts import Interrupt
from command_bus.transport.ports.bulk import Opening, Version
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.maintenance.due_work import Member, PageResult
from command_bus.transport.redis.maintenance.relay import RelayJob
from command_bus.webhooks import Webhooks, new_secret

__all__ = ["NAMESPACE", "SHARDS", "Live", "Put", "leave_work", "live_bus", "until"]

NAMESPACE, SHARDS = "shop", 2
LATER = RetryPolicy(attempts=5, delay=300, jitter=0.0, max_delay=300)


class Put(Command[int], entity="box", retry=LATER):
    box: EntityId
    amount: int = 1


class Send(Command[None], entity="sender"):
    """Sends a `Put` to another entity, which is in another shard."""

    sender: EntityId
    to: str


class Sync(Command[None], entity="store", limits=(Limit("partner", key="partner"),), fair_by="partner"):
    store: EntityId
    partner: str


class Long(Command[str], entity="basket", durable=True):
    basket: EntityId
    waits: str


class Fail(Command[None], entity="failed", history="1 day", retry=RetryPolicy(attempts=1)):
    failed: EntityId


class Park(Command[None], entity="parked", on_poison="park", retry=RetryPolicy(attempts=1)):
    parked: EntityId


class Live:
    """The application: it fails while its namespace is made, and then does everything."""

    def __init__(self) -> None:
        self.registry = HandlerRegistry()
        self.done: set[str] = set()
        self.fails = False
        self.begun: set[str] = set()
        for message in (Put, Send, Sync, Long, Fail, Park):
            self.registry.handles(message)(getattr(self, message.__name__.lower()))

    async def put(self, command: Put) -> int:
        if self.fails and not str(command.box).startswith("now"):
            self.begun.add(str(command.box))
            raise OSError("not yet")
        self.done.add(str(command.box))
        return command.amount

    async def send(self, command: Send, context: CommandContext) -> None:
        context.send(Put(box=command.to))
        self.begun.add(str(command.sender))

    async def sync(self, command: Sync) -> None:
        if self.fails:
            await asyncio.Event().wait()
        self.done.add(str(command.store))

    async def long(self, command: Long, context: DurableContext) -> str:
        context.progress(0.5, "half")
        context.log("begun", of=1)
        await context.step("first", step)
        context.compensate(Put(box="never"))
        if command.waits == "sleep":
            await context.sleep(300)
        elif command.waits == "call":
            await context.call(Put(box=f"{command.basket}c"))
        else:
            await context.signal("go", timeout=86_400)
        self.done.add(str(command.basket))
        return command.waits

    async def fail(self, command: Fail) -> None:
        raise ValueError("it fails")

    async def park(self, command: Park) -> None:
        raise ValueError("it fails")


async def step() -> int:
    return 7


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    deadline = mono() + seconds
    while not condition():
        assert mono() < deadline, "it did not come to that"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def live_bus(url: str, live: Live, **options: Any) -> AsyncGenerator[CommandBus]:
    """Open a bus of the application, without a worker."""
    async with CommandBus(
        url, namespace=NAMESPACE, registry=live.registry, shards=SHARDS, lease=2.0, grace=0.0, unknown_grace=600, notifier=RedisNotifier(),
        **options,
    ) as bus:  # fmt: skip
        yield bus


async def leave_work(url: str) -> None:
    """Make the namespace."""
    live = Live()
    live.fails = True
    async with live_bus(url, live) as bus:
        await _before(bus)
        with Redis.from_url(url) as client:
            client.hset(ShardKeys(NAMESPACE, 0).flows, "most", 3)
            client.hset(ShardKeys(NAMESPACE, 1).flows, "most", 3)
        async with bus.worker():
            await _failed(bus, live)
        await _behind(bus)
    _by_hand(url)


async def _left(_: RelayJob, members: Sequence[Member]) -> PageResult:
    return PageResult(0, [member.name for member in members])


async def _before(bus: CommandBus) -> None:
    """Declare what is to be declared."""
    await bus.events.watch()
    await bus.limits.put("partner", Rate(10_000), concurrency=1)
    await bus.limits.put("store", Rate(10_000))
    await bus.fairness.put("acme", weight=2)
    await bus.audit.write("ada", "pause", target="box", why="a test", outcome="done")
    await bus.trends.keep(await bus.stats())
    await Webhooks(bus).put("hook", "https://127.0.0.1:1/hook", secret=new_secret(), kinds=["dead_lettered"], allow_private=True)


async def _failed(bus: CommandBus, live: Live) -> None:
    """Let commands fail, or be put off, whose entities then wait; and let some end."""
    await bus.dispatch_batch(Put(box=f"t0{number}x") for number in range(4))
    await bus.dispatch(Send(sender="t10x", to=_far("t10x", "t11x")))
    await bus.dispatch_batch(Sync(store=f"t5{number}x", partner=("acme", "umbra")[number % 2]) for number in range(6))
    await bus.dispatch(Long(basket="t12x", waits="sleep"), command_id="long-t12x")
    await bus.dispatch(Long(basket="t13x", waits="signal"), command_id="long-t13x")
    await bus.dispatch(Long(basket="t14x", waits="call"), command_id="long-t14x")
    await bus.dispatch(Long(basket="t15x", waits="signal"), command_id="long-t15x")
    await bus.dispatch_batch(Fail(failed=f"t2{number}x") for number in range(3))
    await bus.dispatch(Park(parked="t24x"))
    await bus.dispatch_raw("box", "t25x", "Unknown", {"box": "t25x"})
    await bus.dispatch(Put(box="now-1"), keep_result=True, command_id="kept")

    while True:
        found = Counter(entity.state for entity in (await bus.entities.list(limit=1000)).entities)
        if found["retrying"] >= 4 and found["suspended"] >= 4 and found["parked"] == 1 and "t10x" in live.begun:
            break
        await asyncio.sleep(0.01)
    relayed, RelayJob.perform = RelayJob.perform, _left  # type: ignore[method-assign, assignment]
    try:
        await bus.dispatch(Send(sender="t16x", to=_far("t16x", "t17x")))
        await until(lambda: "t16x" in live.begun)
        while await bus.entity("sender", "t16x").depth():
            await asyncio.sleep(0.005)
    finally:
        RelayJob.perform = relayed  # type: ignore[method-assign]


def _far(sender: str, to: str) -> str:
    """Return the name of an entity in another shard."""
    keys = KeySpace(NAMESPACE, SHARDS)
    names = (f"{to}{letter}" for letter in "abcdefgh")
    return next(name for name in names if keys.shard_of(f"box:{name}") != keys.shard_of(f"sender:{sender}"))


async def _behind(bus: CommandBus) -> None:
    """Send what no worker has seen."""
    await bus.dispatch_batch(Put(box=f"t3{number}x") for number in range(3))
    await bus.dispatch_batch(Put(box="t33x", amount=number) for number in range(3))
    for number in range(3):
        await bus.dispatch(Put(box=f"t4{number}x"), delay=0.01, command_id=f"later-t4{number}x")
    await bus.dispatch(Put(box="t43x"), delay=3600, command_id="later-t43x")
    await bus.dispatch(Put(box="t60x"), priority="high")
    await bus.dispatch(Put(box="t61x"), priority="low")
    await bus.dispatch(Put(box="t62x"), unique=Unique("only"))
    await bus.dispatch(Put(box="t63x"), unique=Unique("last", wins="latest", debounce=0.01), command_id="last-t63x")
    await bus.dispatch(Put(box="t64x"), command_id="marked", history="1 day")
    await bus.entity("box", "t65x").pause("a while", until=0.01)
    await bus.dispatch(Put(box="t65x"))
    await bus.entity("box", "t66x").pause("for ever")
    await bus.dispatch(Put(box="t66x"))
    await bus.entities.of("other").drain("closed")
    for name in ("t70x", "t71x"):
        await bus.schedules.put(name, Put(box=name), every(3600))
        await bus.schedules.trigger(name)
    await bus.schedules.put("t72x", Put(box="t72x"), every(3600))
    await bus.schedules.pause("t72x", "closed")
    await bus.commands.signal("long-t13x", "go", 1)
    version = Version("load")
    await bus.session.transport.bulk.open(version, Opening("a load", "us", 3_600_000, 3_600_000, 100))
    for name in ("t80x", "t81x"):
        mailbox, envelope = (
            f"box:{name}",
            WireEnvelope(name, "Put", "box", name, pack({"box": name}), 4 + 8, correlation_id="load"),
        )
        item = (mailbox, name, b"same", pack_envelope(envelope), name, 0, "", None)
        await bus.session.transport.bulk.load(version, bus.session.redis.keys.shard_of(mailbox), [item], suspects=())


def _by_hand(url: str) -> None:
    """Write what is there only for a moment: a lost worker, an interrupt, replies that nobody has read, a hint."""
    first = ShardKeys(NAMESPACE, 0)
    facts = {
        "name": "w",
        "host": "h",
        "pid": 1,
        "started_ms": 1,
        "seen_ms": 1,
        "concurrency": 1,
        "running": 1,
        "commands": ["Put"],
    }
    with Redis.from_url(url) as client:
        client.hset(first.workers, "w", pack(facts))
        client.hset(first.interrupts, "box:t99x", Interrupt("cancel", "7|1-1", asked_ms=1, by="ada", reason="a test").pack())
        client.lpush(first.inbox("lost"), pack([1, "x", 0, pack(1)]))
        client.set(first.hints + "box", 3)
        for shard in range(SHARDS):  # what waits is due
            due = ShardKeys(NAMESPACE, shard).due
            client.zadd(due, {member: 1 for member in client.zrange(due, 0, -1) if member[:2] == b"r:"})
        client.hset(first.fingerprints("load"), "0", "[1]")
        client.hset(first.sequences("load"), "t80x", 1)
        client.hset(first.homes("load"), "box:t80x", "run|0")
        client.hset(first.rejects("load"), "0", pack(["x"]))
