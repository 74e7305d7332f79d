"""Least privilege: each role does all of its work under its own user, and is refused the rest. Checked on real servers, with and without selectors.

Whatever a role lacked would show in the server's ACL log, which must hold nothing of our own requests at the end.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    CommandFailed,
    CommandRejected,
    CommandTimeout,
    Draining,
    EntitiesStopped,
    EntityId,
    Envelope,
    HandlerRegistry,
    InvalidSettings,
    Reject,
    RetryPolicy,
    TransportUnavailable,
    UnsuitableServer,
)
from command_bus.admin.events import BEGINNING
from command_bus.embedded import EmbeddedServer
from command_bus.spark.target import Target, connection_to
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.partition import Reject as RowReject
from command_bus.transport.bulk import Opening, Version
from command_bus.transport.redis.acl import Role, acl_lines
from tests.conformance.scene import until
from tests.security.conftest import Starter

NAMESPACE = "shop"
ROLES: tuple[Role, ...] = ("producer", "worker", "operator", "pipeline")
# By the client library, for appendfsync, and BLMPOP in lines for 6.2, which does not know it; a refusal is taken. 6.2 names no subcommands.
TRIED = {"client|setinfo", "client", "config|get", "config", "blmpop"}


class Work(Command[int], entity="line", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0.0)):
    line: EntityId
    number: int


class Relay(Command[int], entity="sender"):
    sender: EntityId


class Park(Command[None], entity="line", retry=RetryPolicy(attempts=1), on_poison="park"):
    line: EntityId


def registry() -> HandlerRegistry:
    handlers = HandlerRegistry()

    @handlers.handles(Work)
    async def work(command: Work) -> int:
        if command.number == -1:
            raise OSError("broken")
        if command.number == -2:
            raise Reject("no")
        return command.number

    @handlers.handles(Park)
    async def park(command: Park) -> None:
        raise OSError("broken")

    @handlers.handles(Relay)
    async def relay(command: Relay, context: CommandContext) -> int:
        await context.dispatch(Work(line="relayed", number=1), command_id=f"of-{context.command_id}")
        await context.dispatch(Work(line="relayed", number=2), delay=0.01)
        return await context.call(Work(line="relayed", number=3), timeout=10)

    return handlers


@dataclass
class Place:
    """A server on which each role has a user."""

    server: EmbeddedServer
    password: str
    admin: Redis
    selectors: bool

    def url(self, role: Role) -> str:
        return f"redis://command_bus-{NAMESPACE}-{role}:{self.password}@{self.server.url.partition('//')[2]}"

    def bus(self, role: Role, **settings: Any) -> CommandBus:
        return CommandBus(
            self.url(role), **{"namespace": NAMESPACE, "registry": registry(), "dispatch_timeout": 15.0, **settings}
        )

    def client(self, role: Role) -> Redis:
        client: Redis = Redis.from_url(self.url(role))
        return client

    async def denied(self) -> list[Any]:
        """What was refused so far, leaving out what is only tried."""
        entries: Any = await self.admin.acl_log()
        return [
            (entry["reason"], entry["object"], entry["username"], entry["context"])
            for entry in entries
            if entry["object"] not in TRIED and not _looked_for_its_place(entry) and not _came_before_the_workers(entry)
        ]


def _looked_for_its_place(entry: Any) -> bool:
    """A producer whose call timed out tries once to read its line; it may not read mailboxes."""
    return entry["username"].endswith("-producer") and ("}:m:" in entry["object"] or entry["object"] == "xrange")


def _came_before_the_workers(entry: Any) -> bool:
    """Who sends tries once per request to load scripts that are missing; it may not."""
    return entry["username"].endswith(("-producer", "-pipeline")) and entry["object"] in ("script|load", "script")


@pytest.fixture(params=["selectors", "patterns"])
async def place(request: pytest.FixtureRequest, binary: Path, start: Starter) -> AsyncIterator[Place]:
    async with made(start(tcp=True, binary=binary), selectors=request.param == "selectors") as found:
        yield found


@asynccontextmanager
async def made(server: EmbeddedServer, *, selectors: bool, **options: Any) -> AsyncIterator[Place]:
    admin: Redis = Redis.from_url(server.url)
    found = Place(server, secrets.token_urlsafe(16), admin, selectors)
    for role in ROLES:
        for line in acl_lines(role, NAMESPACE, password=found.password, selectors=selectors, **options):
            await admin.execute_command(*line.split(" "))
    try:
        yield found
    finally:
        print("refused:", await found.denied())  # what a failing test lacked
        await admin.aclose()


@pytest.mark.parametrize("shards", [1, 3])
async def test_each_role_does_its_work(place: Place, shards: int) -> None:
    async with (
        place.bus("producer", shards=shards) as producer,
        place.bus("operator", shards=shards) as operator,
        place.bus("worker", shards=shards, lease=2.0) as workers,
    ):
        async with workers.worker():
            await producer_works(producer)
            await operator.wait_idle(10)
            letters = [letter async for letter in operator.dead_letters.list()]
            assert [letter.reason for letter in letters] == ["failed"] * 2
            await operator.dead_letters.replay(letters[0].id)
            await operator.dead_letters.discard(letters[1].id)
            await until(lambda: letters_of(operator))
            await operator_works(operator, producer)
            await operator.wait_idle(10)
        stats = await operator.stats()
        assert (stats.depth, stats.accepted > 300) == (0, True)
        assert await workers.stats() == stats, "its /metrics shows them"
    assert await place.denied() == []


async def test_each_role_does_its_work_on_the_oldest_server(oldest: Path, start: Starter) -> None:
    async with made(start(tcp=True, binary=oldest), selectors=False) as place:
        async with (
            place.bus("producer") as producer,
            place.bus("operator") as operator,
            place.bus("worker", lease=2.0) as workers,
            workers.worker(),
        ):
            await producer_works(producer)
            await operator.wait_idle(10)
            await operator.dead_letters.purge()
            await operator_works(operator, producer)
            await operator.wait_idle(10)
        assert await place.denied() == []


async def letters_of(bus: CommandBus) -> list[Any]:
    return [letter async for letter in bus.dead_letters.list()]


async def producer_works(bus: CommandBus) -> None:
    await bus.ping()
    await bus.dispatch(Work(line="a", number=1), command_id="given")
    await bus.dispatch(Work(line="a", number=1), command_id="given")
    await bus.dispatch(Work(line="a", number=2), delay=0.05, headers={"a": "b"}, expires=60)
    batch = await bus.dispatch_batch(Work(line=f"l{number % 9}", number=number) for number in range(300))
    assert batch.accepted == 300
    assert await asyncio.gather(*(bus.call(Work(line=f"c{n}", number=n), timeout=10) for n in range(20))) == list(range(20))
    assert await bus.call(Work(line="a", number=1), command_id="given", timeout=10) == 1
    assert await bus.call(Relay(sender="s"), timeout=10) == 3
    assert await bus.result("given", Work, timeout=5) == 1
    with pytest.raises(CommandRejected):
        await bus.call(Work(line="a", number=-2), timeout=10)
    for _ in range(2):
        with pytest.raises(CommandFailed):
            await bus.call(Work(line="a", number=-1), timeout=10)


async def operator_works(operator: CommandBus, producer: CommandBus) -> None:
    await operator.events.watch("line")
    line = operator.entity("line", "held")
    assert await line.pause("to look at it")
    for number in range(3):
        await producer.dispatch(Work(line="held", number=number), command_id=f"held-{number}")
    await producer.dispatch(Work(line="held", number=9), delay=60, command_id="later")
    assert await operator.cancel("later")
    with pytest.raises(EntitiesStopped):
        await operator.wait_idle(5)
    assert await line.depth() == 3
    assert await operator.cancel("held-1")
    await producer.dispatch(Work(line="held", number=9), delay=60)
    assert await line.purge() == 3
    assert await line.resume()
    await producer.dispatch(Park(line="parked"))
    await producer.dispatch(Work(line="parked", number=5))
    (parked,) = await until(lambda: parked_of(operator))
    await operator.dead_letters.replay(parked.id)
    (parked,) = await until(lambda: parked_of(operator))
    await operator.dead_letters.discard(parked.id)
    await operator.dead_letters.replay_all(reason="failed")
    await operator.dead_letters.purge()
    await operator_works_on_a_type(operator, producer)


async def operator_works_on_a_type(operator: CommandBus, producer: CommandBus) -> None:
    lines = operator.entities.of("line")
    assert await lines.pause("to look at it")
    await producer.dispatch(Work(line="held", number=1))
    await producer.dispatch(Work(line="held", number=1), delay=60)
    assert [hold.what for hold in await operator.entities.holds()] == ["all line"]
    assert "line:held" in [entity.name for entity in (await lines.list(states={"paused"})).entities]
    assert (await operator.entity("line", "held").show()).entity.depth == 2
    assert await operator.fleet.workers()
    assert await operator.fleet.command("Work") is not None
    assert await lines.purge() >= 2
    assert await lines.drain()
    with pytest.raises(Draining):
        await producer.dispatch(Work(line="held", number=1))
    assert await lines.resume()
    told = {event.kind async for event in operator.events(after=BEGINNING, follow=False)}
    assert told >= {"accepted", "started", "completed", "paused", "resumed", "draining", "cancelled"}
    following = asyncio.ensure_future(anext(aiter(operator.events())))
    assert await lines.pause()
    while not following.done():
        await lines.resume()
        await asyncio.wait({following}, timeout=0.05)
        await lines.pause()
    assert (await following).entity == "all line"
    assert await lines.resume()
    await operator.events.unwatch("line")
    assert await operator.events.watched() == {}
    await operator.events.watch("line", "other")
    await operator.events.unwatch()
    await operator_looks(operator, producer)


async def operator_looks(operator: CommandBus, producer: CommandBus) -> None:
    await producer.dispatch(Work(line="only-later", number=1), delay=60)
    page = await operator.entities.of("line").list()
    assert [entity.due_ms is not None for entity in page.entities if entity.entity_id == "only-later"] == [True]
    assert (await operator.entity("line", "only-later").show()).entity.due_ms
    assert await operator.entity("line", "only-later").purge() == 1
    assert await operator.dead_letters.oldest() is None
    assert await operator.dead_letters.count() == {}
    assert {command.name for command in await operator.fleet.commands()} == {"Work", "Park", "Relay"}
    await producer.dispatch_raw("lime", "a", "Work", {}, delay=60)
    assert await operator.entities.of("lime").purge() == 1
    assert await operator.entities.forget_type("lime")
    assert "lime" not in {each.name for each in await operator.entities.types()}


async def parked_of(bus: CommandBus) -> list[Any]:
    return [letter for letter in await letters_of(bus) if letter.parked]


async def test_a_producer_is_told_why_its_call_had_no_answer(place: Place) -> None:
    """Where the command is, but for its place in a line, whose commands it may not read."""
    async with place.bus("producer") as producer, place.bus("worker") as workers, place.bus("operator") as operator:
        async with workers.worker():  # loads the scripts
            await producer.call(Work(line="b", number=1), timeout=10)
        with pytest.raises(CommandTimeout) as alone:
            await producer.call(Work(line="a", number=1), timeout=0.3)
        assert (alone.value.state, alone.value.workers, alone.value.position) == ("no_worker", 0, 1)
        async with workers.worker():
            await operator.wait_idle(10)
            await operator.entity("line", "a").pause()
            for _ in range(2):
                with pytest.raises(CommandTimeout) as held:
                    await producer.call(Work(line="a", number=1), timeout=0.3)
                assert (held.value.state, held.value.handlers) == ("paused", 1)
            await producer.dispatch(Park(line="b"))
            await until(lambda: parked_of(operator))
            with pytest.raises(CommandTimeout) as behind:
                await producer.call(Work(line="b", number=1), timeout=0.3)
            assert behind.value.state == "parked"
    assert await place.denied() == []


async def test_a_worker_takes_over_what_another_left(place: Place) -> None:
    """Its lease is over, and it is told apart by what it had started."""
    async with place.bus("producer") as producer, place.bus("operator") as operator:
        began = asyncio.Event()
        hangs = HandlerRegistry()

        @hangs.handles(Work)
        async def hang(command: Work) -> int:
            began.set()
            await asyncio.sleep(60)
            return 0

        lost = place.bus("worker", lease=0.5, registry=hangs)
        await lost.open()
        gone = lost.worker()
        await gone.start()
        for number in range(3):
            await producer.dispatch(Work(line="a", number=number))
        await began.wait()
        assert gone._parts is not None
        gone._parts.side.leases._stopping = True  # it renews no more, as if it were killed
        for task in gone._parts.side.consumer.running:
            task.cancel()
        await gone._parts.side.consumer.stop_reading()
        async with place.bus("worker", lease=0.5) as workers, workers.worker():
            await operator.wait_idle(15)
        await gone.stop(grace=0)
        await lost.close()
        assert (await operator.stats()).completed == 3
    assert await place.denied() == []


async def test_an_operator_aborts_what_a_worker_runs(place: Place) -> None:
    """Both sides of it: a handler that can be cancelled, and one that has to be given up."""
    began: list[str] = []
    hangs, free = HandlerRegistry(), asyncio.Event()

    @hangs.handles(Work)
    async def hang(command: Work) -> int:
        began.append(str(command.line))
        while not free.is_set() and len(began) < 4:
            with suppress(asyncio.CancelledError) if command.line == "b" else nullcontext():
                await free.wait()
        return 0

    sides = place.bus("producer"), place.bus("operator"), place.bus("worker", registry=hangs)
    async with sides[0] as producer, sides[1] as operator, sides[2] as workers, workers.worker():
        for line, force in (("a", False), ("b", True)):
            await producer.dispatch(Work(line=line, number=1))
            await until(lambda line=line: line in began)
            assert (await operator.entity("line", line).abort("it hangs", force=force)).result == "ended"
        free.set()
        await operator.wait_idle(10)
    assert await place.denied() == []


async def test_a_pipeline_loads_dispatches_and_reads_their_outcomes(place: Place) -> None:
    target = Target(place.url("pipeline"), NAMESPACE)
    rows = [Envelope(Work(line=f"l{n % 3}", number=n), command_id=f"d-{n}") for n in range(50)]
    version = Version("d", 0)

    def load() -> None:
        for _ in range(2):  # as Spark runs a task again
            with PartitionDispatcher(target, dispatch_id="d", opening=Opening(what="w", keep_ms=60_000)) as dispatcher:
                dispatcher.dispatch_batch(rows)
                dispatcher.reject(RowReject.of(command_id="x", command="Work", entity=None, reason="invalid", error="no", row={}))
        link = connection_to(target)
        link.wait(link.transport.bulk.commit(version, "{}", 60_000))

    async def read() -> list[str]:
        """All that the Spark side asks of the transport."""
        bus = place.bus("pipeline")
        async with bus:
            transport = bus.session.redis
            assert (await bus.stats()).accepted > 50
            dispatches, outcomes = transport.bulk, transport.bulk.outcomes
            assert await dispatches.names() == ["d"]
            assert await dispatches.facts("d") is not None
            assert len([row async for row in dispatches.rejects("d")]) == 1
            assert await transport.announcements.described("Work") is not None
            streams = await outcomes.streams([("d", 0)])
            assert streams[0] is not None
            assert await outcomes.ends("d", 0, "-", "+") is not None
            await outcomes.skip("d", 0, "", "+", 10)
            assert [page async for page in transport.entities.pages(0)]
            assert [page async for page in transport.mailboxes.contents(0)]
            assert await transport.dead_letters.newest(0) is not None
            assert await transport.dead_letters.page(0, "", "+", 10)
            page = await outcomes.page("d", 0, "", "+", 100)
            return [str(record) for record in page.records] if hasattr(page, "records") else [str(page)]

    async with place.bus("worker") as workers, workers.worker(), place.bus("operator") as operator:
        await asyncio.to_thread(load)
        await operator.wait_idle(10)
        assert (await operator.stats()).completed == 50
        async with place.bus("producer") as producer:
            await producer.dispatch(Work(line="bad", number=-1))
            await until(lambda: letters_of(operator))
            await operator.entity("line", "waits").pause()
            await producer.dispatch(Work(line="waits", number=1))
            await producer.dispatch(Work(line="waits", number=1), delay=60)
        assert await read()
        await asyncio.to_thread(connection_to(target).close)
    assert await place.denied() == []


EVERYONE_IS_REFUSED = (
    ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SCAN", "0"), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "maxmemory", "1"), ("SHUTDOWN",),
    ("MONITOR",), ("CLIENT", "LIST"), ("CLIENT", "KILL", "TYPE", "normal"), ("ACL", "LIST"), ("SLOWLOG", "GET"),
    ("SCRIPT", "FLUSH"), ("FUNCTION", "LIST"), ("EVAL", "return 1", "0"), ("SAVE",), ("REPLICAOF", "NO", "ONE"), ("MIGRATE", "h", "1", "k", "0", "1"),
    ("GET", "elsewhere"), ("SET", "elsewhere", "1"), ("DEL", "elsewhere"), ("XADD", "{other:0}:m:line:a", "*", "e", "x"),
    ("HGET", "{shopping:0}:meta", "protocol"), ("XRANGE", "{other:0}:dead", "-", "+"), ("DEL", "{shop:0}:meta"), ("DEL", "{shop:0}:ready"),
    ("XTRIM", "{shop:0}:m:line:a", "MAXLEN", "0"), ("XTRIM", "{shop:0}:ready", "MAXLEN", "0"), ("DEL", "{shop:0}:dead"),
    ("XGROUP", "DESTROY", "{shop:0}:ready", "workers"), ("RENAME", "{shop:0}:ready", "{shop:0}:m:x"), ("PUBLISH", "c", "m"),
)  # fmt: skip
REFUSED: dict[Role, tuple[tuple[str, ...], ...]] = {
    "producer": (
        ("DEL", "{shop:0}:m:line:a"), ("XDEL", "{shop:0}:m:line:a", "1-1"), ("XRANGE", "{shop:0}:m:line:a", "-", "+"),
        ("XRANGE", "{shop:0}:dead", "-", "+"), ("XADD", "{shop:0}:dead", "*", "e", "x"), ("DEL", "{shop:0}:k:c-1"),
        ("HDEL", "{shop:0}:active", "line:a"), ("HSCAN", "{shop:0}:active", "0"), ("HGETALL", "{shop:0}:active"),
        ("SET", "{shop:0}:fence", "0"), ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "{shop:0}:ready", ">"),
        ("XCLAIM", "{shop:0}:ready", "workers", "me", "0", "1-1"), ("XACK", "{shop:0}:ready", "workers", "1-1"),
        ("XDEL", "{shop:0}:ready", "1-1"), ("XRANGE", "{shop:0}:ready", "-", "+"), ("LPUSH", "{shop:0}:in:p", "x"),
        ("HSET", "{shop:0}:commands", "Work", "x"), ("HSETNX", "{shop:0}:commands", "Work", "x"), ("HGETALL", "{shop:0}:commands"),
        ("HSET", "{shop:0}:paused", "*", "p|0|"), ("HDEL", "{shop:0}:paused", "line:a"), ("HGETALL", "{shop:0}:paused"),
        ("HSET", "{shop:0}:stats", "depth", "0"), ("HGETALL", "{shop:0}:stats"), ("HSET", "{shop:0}:parked", "line:a", "x"),
        ("HSET", "{shop:0}:meta", "shards", "2"), ("HGETALL", "{shop:0}:meta"), ("HGET", "{shop:0}:delayed", "c-1"),
        ("ZREM", "{shop:0}:due", "d:c-1"), ("XRANGE", "{shop:0}:events", "-", "+"), ("HSET", "{shop:0}:watched", "line", "9"),
        ("HSET", "{shop:0}:workers", "w", "x"), ("HGETALL", "{shop:0}:b:d"),
        ("HSET", "{shop:0}:interrupts", "line:a", "x"), ("HGETALL", "{shop:0}:interrupts"),
    ),
    "pipeline": (
        ("DEL", "{shop:0}:m:line:a"), ("XDEL", "{shop:0}:m:line:a", "1-1"), ("XADD", "{shop:0}:dead", "*", "e", "x"),
        ("XDEL", "{shop:0}:dead", "1-1"), ("XACK", "{shop:0}:ready", "workers", "1-1"),
        ("SET", "{shop:0}:fence", "0"), ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "{shop:0}:ready", ">"), ("LPUSH", "{shop:0}:in:p", "x"),
        ("XDEL", "{shop:0}:ready", "1-1"), ("HDEL", "{shop:0}:active", "line:a"),
        ("HSET", "{shop:0}:paused", "*", "p|0|"), ("HDEL", "{shop:0}:paused", "*"), ("HSET", "{shop:0}:parked", "line:a", "x"),
        ("HSET", "{shop:0}:commands", "Work", "x"), ("HSETNX", "{shop:0}:commands", "Work", "x"), ("HSET", "{shop:0}:stats", "depth", "0"),
        ("XADD", "{shop:0}:b:d:out", "*", "r", "x"), ("XTRIM", "{shop:0}:b:d:out", "MAXLEN", "0"),
    ),
    "worker": (
        ("XRANGE", "{shop:0}:dead", "-", "+"), ("XDEL", "{shop:0}:dead", "1-1"), ("HSET", "{shop:0}:meta", "shards", "2"),
        ("HGETALL", "{shop:0}:meta"), ("SET", "{shop:0}:m:line:a", "x"), ("XTRIM", "{shop:0}:dead", "MAXLEN", "0"),
        ("HSET", "{shop:0}:paused", "*", "p|0|"), ("HDEL", "{shop:0}:paused", "*"), ("HSET", "{shop:0}:stats", "depth", "0"),
        ("HSET", "{shop:0}:b:d", "done", "9"), ("HSET", "{shop:0}:watched", "line", "9"),
    ),
    "operator": (
        ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "{shop:0}:ready", ">"), ("XCLAIM", "{shop:0}:ready", "workers", "me", "0", "1-1"),
        ("SET", "{shop:0}:fence", "0"), ("BRPOP", "{shop:0}:in:p", "1"), ("HSET", "{shop:0}:workers", "w", "x"),
        ("HSET", "{shop:0}:commands", "Work", "x"), ("HSETNX", "{shop:0}:commands", "Work", "x"),
        ("HSET", "{shop:0}:parked", "line:a", "x"), ("HSET", "{shop:0}:stats", "depth", "0"), ("ZADD", "{shop:0}:due", "0", "r:line:a"),
    ),
}  # fmt: skip
# Where rights do not differ by key: what no key of the role may be done to.
REFUSED_WITHOUT_SELECTORS: dict[Role, tuple[str, ...]] = {
    "producer": ("XRANGE", "XDEL", "XACK", "XREADGROUP", "XCLAIM", "XTRIM", "HSCAN", "HDEL", "LPUSH", "ZREM", "UNLINK"),
    "pipeline": ("XDEL", "XACK", "XREADGROUP", "XCLAIM", "XTRIM", "LPUSH", "ZREM"),
    "worker": ("XREVRANGE", "UNLINK", "PERSIST"),
    "operator": ("XREADGROUP", "XCLAIM", "XTRIM", "BRPOP", "ZADD", "UNLINK"),
}
ARITY = {"PERSIST": 1}  # how many words follow, where the server counts them before it looks at rights


_DENIED = r"(?i)permission|NOPERM|ACL failure|can't access|can't run|not allowed from script"
_TOLD = r"refuses this user|may not load"


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_is_refused_the_rest(binary: Path, start: Starter, role: Role) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        client = place.client(role)
        for request in (*EVERYONE_IS_REFUSED, *REFUSED[role]):
            with pytest.raises(NoPermissionError):
                await client.execute_command(*request)
        script = "return redis.call(unpack(ARGV))"  # a script reaches no further than its caller
        sha = await place.admin.script_load(script)
        for request in REFUSED[role]:
            key = next(word for word in request if word.startswith("{shop"))
            with pytest.raises((NoPermissionError, ResponseError), match=_DENIED):
                await client.evalsha(sha, 1, key, *request)
        await client.aclose()


PATTERNS_REFUSE = tuple(request for request in EVERYONE_IS_REFUSED if not any("{shop:0}" in word for word in request))


@pytest.mark.parametrize("role", ROLES)
async def test_plain_patterns_refuse_other_namespaces_and_the_server(binary: Path, start: Starter, role: Role) -> None:
    async with made(start(tcp=True, binary=binary), selectors=False) as place:
        client = place.client(role)
        for request in PATTERNS_REFUSE:
            with pytest.raises(NoPermissionError):
                await client.execute_command(*request)
        await client.aclose()


async def test_a_bus_of_another_namespace_is_refused_at_the_start(place: Place) -> None:
    with pytest.raises(UnsuitableServer, match="refuses this user"):
        async with place.bus("producer", namespace="shop2"):
            pass


async def test_a_producer_cannot_do_what_an_operator_does(binary: Path, start: Starter) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place, place.bus("producer") as producer:
        async with place.bus("worker") as workers, workers.worker():  # loads the scripts
            await producer.call(Work(line="b", number=1), timeout=30)
        await producer.dispatch(Work(line="a", number=1), command_id="c-1")
        line = producer.entity("line", "a")
        for act in (producer.cancel("c-1"), producer.stats(), line.pause(), line.purge(), producer.dead_letters.purge()):
            with pytest.raises((UnsuitableServer, TransportUnavailable), match=_TOLD):
                await act
        async with place.bus("worker") as workers, workers.worker():
            assert await producer.result("c-1", Work, timeout=5) == 1, "nothing of it was cancelled or paused"


async def test_without_selectors_a_role_lacks_what_none_of_its_work_needs(oldest: Path, start: Starter) -> None:
    async with made(start(tcp=True, binary=oldest), selectors=False) as place:
        for role in ROLES:
            client = place.client(role)
            for command in REFUSED_WITHOUT_SELECTORS[role]:
                rest = ("{shop:0}:active", "-", "+", "1", "1-1")
                words = ("GROUP", "workers", "me", "STREAMS", "{shop:0}:active", ">") if command == "XREADGROUP" else rest
                with pytest.raises(NoPermissionError):
                    await client.execute_command(command, *words[: ARITY.get(command, 9)])
            await client.aclose()


@pytest.mark.parametrize("role", ["producer", "pipeline"])
async def test_who_sends_waits_for_a_worker_to_load_the_scripts(binary: Path, start: Starter, role: Role) -> None:
    """On a new server, and after it lost them: refused with a reason, or accepted once; never lost."""
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        async with place.bus(role, dispatch_timeout=0.5) as impatient:
            with pytest.raises(TransportUnavailable, match="a worker of this version does") as refused:
                await impatient.dispatch(Work(line="a", number=0), command_id="refused")
            assert not refused.value.outcome_unknown, "it was certainly not accepted"
        async with place.bus(role, dispatch_timeout=60) as patient, place.bus("worker") as workers:
            waiting = asyncio.ensure_future(patient.call(Work(line="a", number=1), timeout=60))
            await until(lambda: tried_to_load(place, role))
            async with workers.worker():
                assert await waiting == 1
                await place.admin.script_flush()
                assert await patient.call(Work(line="a", number=2), timeout=60) == 2, "the worker brought them back"
            await place.admin.script_flush()  # and nobody is there
            later = asyncio.ensure_future(patient.dispatch(Work(line="a", number=3), command_id="later"))
            async with workers.worker():
                assert (await later).status == "accepted"
                assert await patient.result("later", Work, timeout=60) == 3
                assert (await workers.stats()).accepted == 3


async def tried_to_load(place: Place, role: Role) -> bool:
    return any(entry["object"] == "script|load" and entry["username"].endswith(role) for entry in await place.admin.acl_log())


async def test_a_producer_opens_where_the_ready_stream_was_deleted(place: Place) -> None:
    """It may not look at mailboxes that lost their activation; workers do."""
    async with place.bus("worker") as workers, place.bus("operator") as operator, place.bus("producer") as producer:
        async with workers.worker():
            await producer.call(Work(line="a", number=1), timeout=30)
        await producer.dispatch(Work(line="a", number=2), command_id="c-2")
        await place.admin.delete("{shop:0}:ready")
        async with place.bus("producer") as another:
            await another.dispatch(Work(line="b", number=1))
        async with place.bus("pipeline") as another:
            await another.dispatch(Work(line="c", number=1))
        async with workers.worker():
            await operator.wait_idle(60)
            assert await producer.result("c-2", Work, timeout=30) == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"role": "admin"},
        {"namespace": "a b"},
        {"namespace": "*"},
        {"user": ""},
        {"user": "a b"},
        {"password": "a b"},
        {"password": "a\n+@all"},
    ],
)
def test_what_would_break_out_of_the_line_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        acl_lines(**{"role": "producer", "namespace": "shop", **bad})


def test_a_user_without_a_password_is_off() -> None:
    (line,) = acl_lines("producer", "shop", user="jo")
    assert line.startswith("ACL SETUSER jo reset off resetchannels -@all ")
    assert " on " not in line
    assert "nopass" not in line
