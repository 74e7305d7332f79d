"""Refusals of each role of the ACL, and a bus without the rights it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from command_bus import (
    CommandBus,
    HandlerRegistry,
    TransportUnavailable,
    UnsuitableServer,
)
from command_bus.transport.redis.acl import Role, acl_lines
from tests.conformance.conftest import Starter
from tests.conformance.put_service import until
from tests.security.acl_users import NAMESPACE, ROLES, Place, Trip, Work, made


@pytest.fixture(params=["selectors", "patterns"])
async def place(request: pytest.FixtureRequest, binary: Path, start: Starter) -> AsyncIterator[Place]:
    async with made(start(tcp=True, binary=binary), selectors=request.param == "selectors") as found:
        yield found


EVERYONE_IS_REFUSED = (
    ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SCAN", "0"), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "maxmemory", "1"), ("SHUTDOWN",),
    ("MONITOR",), ("CLIENT", "LIST"), ("CLIENT", "KILL", "TYPE", "normal"), ("ACL", "LIST"), ("SLOWLOG", "GET"),
    ("SCRIPT", "FLUSH"), ("FUNCTION", "LIST"), ("EVAL", "return 1", "0"), ("SAVE",), ("REPLICAOF", "NO", "ONE"), ("MIGRATE", "h", "1", "k", "0", "1"),
    ("GET", "elsewhere"), ("SET", "elsewhere", "1"), ("DEL", "elsewhere"), ("XADD", "{other:0}:m:line:a", "*", "e", "x"),
    ("HGET", "{shopping:0}:meta", "protocol"), ("XRANGE", "{other:0}:dead", "-", "+"), ("DEL", "{shop:0}:meta"), ("DEL", "{shop:0}:ready"),
    ("DEL", "{shop:0}:dead"),
    ("XGROUP", "DESTROY", "{shop:0}:ready", "workers"), ("RENAME", "{shop:0}:ready", "{shop:0}:m:x"), ("PUBLISH", "c", "m"),
)  # fmt: skip


REFUSED: dict[Role, tuple[tuple[str, ...], ...]] = {
    "producer": (
        ("XTRIM", "{shop:0}:m:line:a", "MAXLEN", "0"), ("XTRIM", "{shop:0}:ready", "MAXLEN", "0"),
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
        ("XTRIM", "{shop:0}:m:line:a", "MAXLEN", "0"), ("XTRIM", "{shop:0}:ready", "MAXLEN", "0"),
        ("DEL", "{shop:0}:m:line:a"), ("XDEL", "{shop:0}:m:line:a", "1-1"), ("XADD", "{shop:0}:dead", "*", "e", "x"),
        ("XDEL", "{shop:0}:dead", "1-1"), ("XACK", "{shop:0}:ready", "workers", "1-1"),
        ("SET", "{shop:0}:fence", "0"), ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "{shop:0}:ready", ">"), ("LPUSH", "{shop:0}:in:p", "x"),
        ("XDEL", "{shop:0}:ready", "1-1"), ("HDEL", "{shop:0}:active", "line:a"),
        ("HSET", "{shop:0}:paused", "*", "p|0|"), ("HDEL", "{shop:0}:paused", "*"), ("HSET", "{shop:0}:parked", "line:a", "x"),
        ("HSET", "{shop:0}:commands", "Work", "x"), ("HSETNX", "{shop:0}:commands", "Work", "x"), ("HSET", "{shop:0}:stats", "depth", "0"),
        ("XTRIM", "{shop:0}:b:d:out", "MAXLEN", "0"),
    ),
    "worker": (
        ("XRANGE", "{shop:0}:dead", "-", "+"), ("XDEL", "{shop:0}:dead", "1-1"), ("HSET", "{shop:0}:meta", "shards", "2"),
        ("HGETALL", "{shop:0}:meta"), ("SET", "{shop:0}:m:line:a", "x"), ("XTRIM", "{shop:0}:dead", "MAXLEN", "0"),
        ("HSET", "{shop:0}:paused", "*", "p|0|"), ("HSET", "{shop:0}:b:d", "done", "9"), ("HSET", "{shop:0}:watched", "line", "9"),
    ),
    "operator": (
        ("XTRIM", "{shop:0}:m:line:a", "MAXLEN", "0"), ("XTRIM", "{shop:0}:ready", "MAXLEN", "0"),
        ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "{shop:0}:ready", ">"), ("XCLAIM", "{shop:0}:ready", "workers", "me", "0", "1-1"),
        ("SET", "{shop:0}:fence", "0"), ("BRPOP", "{shop:0}:in:p", "1"), ("HSET", "{shop:0}:workers", "w", "x"),
        ("HSET", "{shop:0}:commands", "Work", "x"), ("HSETNX", "{shop:0}:commands", "Work", "x"),
        ("HSET", "{shop:0}:parked", "line:a", "x"),
    ),
}  # fmt: skip
# An owner closes the counters' hash before it deletes it.
REFUSED["owner"] = tuple(each for each in REFUSED["operator"] if each[:2] != ("HSET", "{shop:0}:stats"))
REFUSED["relay"] = REFUSED["producer"]
REFUSED["gateway"] = tuple(each for each in REFUSED["operator"] if each[0] != "BRPOP")
MAY_SCAN: tuple[Role, ...] = ("owner",)
"""Who deletes a namespace has to find its keys."""


def refused_to(role: Role, requests: tuple[tuple[str, ...], ...] = EVERYONE_IS_REFUSED) -> list[tuple[str, ...]]:
    """Return which of these requests a role may not send."""
    return [request for request in requests if request[0] != "SCAN" or role not in MAY_SCAN]


# Where rights do not differ by key: what no key of the role may be done to.
REFUSED_WITHOUT_SELECTORS: dict[Role, tuple[str, ...]] = {
    "producer": ("XRANGE", "XDEL", "XACK", "XREADGROUP", "XCLAIM", "XTRIM", "HSCAN", "HDEL", "LPUSH", "UNLINK"),
    "pipeline": ("XDEL", "XACK", "XREADGROUP", "XCLAIM", "XTRIM", "LPUSH"),
    "relay": ("XRANGE", "XDEL", "XACK", "XREADGROUP", "XCLAIM", "XTRIM", "HSCAN", "LPUSH", "UNLINK"),
    "worker": ("UNLINK",),
    "operator": ("XREADGROUP", "XCLAIM", "XTRIM", "BRPOP", "UNLINK"),
    "gateway": ("XREADGROUP", "XCLAIM", "XTRIM", "UNLINK"),
    "owner": ("XREADGROUP", "XCLAIM", "XTRIM", "BRPOP"),
}


_DENIED = r"(?i)permission|NOPERM|ACL failure|can't access|can't run|not allowed from script"


_TOLD = r"refuses this user|may not load"


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_is_refused_the_rest(binary: Path, start: Starter, role: Role) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        client = place.client(role)
        for request in (*refused_to(role), *REFUSED[role]):
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
        for request in refused_to(role, PATTERNS_REFUSE):
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
                    await client.execute_command(command, *words)
            await client.aclose()


@pytest.mark.promise("The scripts are gone and a sender may not load them")
@pytest.mark.parametrize("role", ["producer", "pipeline"])
async def test_senders_wait_for_a_worker_to_load_the_scripts(binary: Path, start: Starter, role: Role) -> None:
    """On a new server, and after it lost them: refused with a reason, or accepted once; never lost."""
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        async with place.bus(role, dispatch_timeout=0.5) as impatient:
            with pytest.raises(TransportUnavailable, match="start a worker of this version") as refused:
                await impatient.dispatch(Work(line="a", number=0), command_id="refused")
            assert not refused.value.outcome_unknown, "it was certainly not accepted"
        async with place.bus(role, dispatch_timeout=60) as patient, place.bus("worker") as workers:
            waiting = asyncio.ensure_future(patient.call(Work(line="a", number=1), timeout=60))
            await until(lambda: tried_to_load(place, role))
            async with workers.worker():
                assert await waiting == 1
                await place.admin.script_flush()
                assert await patient.call(Work(line="a", number=2), timeout=60) == 2, "the worker brought them back"
            await place.admin.script_flush()  # and no worker is there
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


async def test_a_worker_that_may_not_trim_a_mailbox_ends_no_lease(binary: Path, start: Starter) -> None:
    """Of an ACL that lacks XTRIM there: a lease that ended would let settled commands start again."""
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        (whole,) = acl_lines("worker", NAMESPACE, password=place.password)
        lacking = whole.replace("+xread +xtrim", "+xread")
        assert lacking != whole
        await place.admin.execute_command(*lacking.split(" "))
        handlers, ran = HandlerRegistry(), list[int]()

        @handlers.handles(Work)
        async def work(command: Work) -> int:
            ran.append(command.number)
            if command.number == 2 and ran.count(2) == 1:
                raise OSError("broken")
            return command.number

        async with place.bus("worker", registry=handlers, lease=0.5) as workers:
            await workers.dispatch_batch([Work(line="a", number=number) for number in (1, 2, 3)])
            async with workers.worker():
                await until(lambda: refused_to_trim(place))
                assert ran[:2] == [1, 2]
                assert (await workers.stats()).depth >= 2, "the command that waits for its retry was not given up"
                await place.admin.execute_command(*whole.split(" "))
                await until(lambda: is_idle(workers))
        assert ran.count(1) == 1, "it was settled before"
        assert list(dict.fromkeys(ran)) == [1, 2, 3]
        assert ran.count(3) == 1


async def test_a_worker_of_older_rights_reads_what_is_stored_one_by_one(binary: Path, start: Starter) -> None:
    """Of an ACL that was written before workers read side records together."""
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        (whole,) = acl_lines("worker", NAMESPACE, password=place.password)
        older = whole.replace("~{shop:*}:x:* +hget +hmget +hgetall +hlen", "~{shop:*}:x:* +hget +hmget")
        assert older != whole
        await place.admin.execute_command(*older.split(" "))
        async with place.bus("worker") as workers, workers.worker():
            await workers.dispatch(Trip(trip="a"), command_id="a")
            assert await workers.commands.signal("a", "go", 7)
            assert await workers.result("a", Trip, timeout=30) == 9


async def refused_to_trim(place: Place) -> bool:
    return any(
        entry["object"].endswith(":m:line:a") and entry["username"].endswith("worker") for entry in await place.admin.acl_log()
    )


async def is_idle(bus: CommandBus) -> bool:
    return (await bus.stats()).depth == 0
