"""The harm that a stolen producer password can do, exactly as docs/security.md says: it has the rights that every producer needs.

An ACL covers commands and keys. It cannot forbid an argument of a command, nor distinguish entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from command_bus import CommandBus, HandlerRegistry, InvalidSettings, QueueFull, Unique
from command_bus.transport.redis.scripts import SCRIPTS
from tests.conformance.conftest import Starter
from tests.conformance.put_service import until
from tests.security.test_acl import Place, Work, made

KEYS = {"k": "a secret that is long enough for a key"}


@pytest.fixture
async def place(binary: Path, start: Starter) -> AsyncIterator[Place]:
    async with made(start(tcp=True, binary=binary), selectors=True) as found:
        yield found


class Handlers:
    """Notes what runs, and holds it until it is let go."""

    def __init__(self) -> None:
        self.registry = HandlerRegistry()
        self.numbers: list[int] = []
        self.now = self.most = 0
        self.free = asyncio.Event()
        self.free.set()

        @self.registry.handles(Work)
        async def work(command: Work) -> int:
            self.numbers.append(command.number)
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.free.wait()
            finally:
                self.now -= 1
            return command.number


def signing(place: Place, role: str, handlers: Handlers) -> CommandBus:
    required = {"require_signatures": True} if role == "worker" else {}
    return place.bus(role, registry=handlers.registry, signing_keys=KEYS, lease=60.0, **required)  # type: ignore[arg-type]


async def loaded(place: Place) -> None:
    async with place.bus("operator") as operator:
        await operator.session.redis.connections.script_cache.load()


async def test_it_loses_accepted_commands_signed_or_not(place: Place) -> None:
    """XADD trims the stream that it appends to, and no ACL forbids its arguments."""
    handlers = Handlers()
    await loaded(place)
    thief = place.client("producer")
    async with signing(place, "producer", handlers) as bus, signing(place, "worker", handlers) as workers:
        for number in range(3):
            await bus.dispatch(Work(line="a", number=number))
        for refused in (("XTRIM", "{shop:0}:m:line:a", "MAXLEN", "0"), ("DEL", "{shop:0}:m:line:a")):
            with pytest.raises(NoPermissionError):
                await thief.execute_command(*refused)
        await thief.xadd("{shop:0}:m:line:a", {"e": "x"}, maxlen=0, approximate=False)
        assert await place.admin.xlen("{shop:0}:m:line:a") == 0
        async with workers.worker():
            await bus.call(Work(line="b", number=9), timeout=30)
            await until(lambda: nothing_of(place, "line:a"))
        assert handlers.numbers == [9], "nothing tells of the three"
    await thief.aclose()


async def test_it_overwrites_a_command_that_is_alone_but_cannot_sign_it(place: Place) -> None:
    """Every producer writes `lone`; none reads it."""
    handlers = Handlers()
    await loaded(place)
    thief = place.client("producer")
    async with signing(place, "producer", handlers) as bus, signing(place, "worker", handlers) as workers:
        await bus.dispatch(Work(line="a", number=1))
        await thief.hset("{shop:0}:lone", "line:a", "x")
        with pytest.raises(NoPermissionError):
            await thief.hdel("{shop:0}:lone", "line:a")
        async with workers.worker():
            await until(lambda: nothing_of(place, "line:a"))
    assert handlers.numbers == []
    assert await place.admin.xlen("{shop:0}:dead") == 1
    await thief.aclose()


async def nothing_of(place: Place, mailbox: str) -> bool:
    return not await place.admin.hexists("{shop:0}:active", mailbox)


async def test_it_runs_an_entity_twice_at_once(place: Place) -> None:
    """Every producer writes the state of idle entities; what it writes over that of a busy one ends the lease."""
    handlers = Handlers()
    handlers.free.clear()
    thief = place.client("producer")
    async with signing(place, "worker", handlers) as workers, signing(place, "producer", handlers) as bus, workers.worker():
        await bus.dispatch(Work(line="a", number=1))
        await until(lambda: began(handlers, 1))
        seconds, _ = await thief.time()
        entry = f"{int(seconds) * 1000 + 60_000}-0"  # chosen, so that its record is there before a worker reads it
        await thief.hset("{shop:0}:active", "line:a", f"o|{entry}|||0|0|")
        await thief.xadd("{shop:0}:ready", {"e": "line:a"}, id=entry)
        await until(lambda: began(handlers, 2))
        handlers.free.set()
    assert (handlers.numbers[:2], handlers.most) == ([1, 1], 2)
    await thief.aclose()


async def began(handlers: Handlers, count: int) -> bool:
    return len(handlers.numbers) >= count


async def test_a_thief_repeats_ids_suppresses_ids_and_reads_replies(place: Place) -> None:
    handlers = Handlers()
    thief = place.client("producer")
    async with signing(place, "worker", handlers) as workers, signing(place, "producer", handlers) as bus, workers.worker():
        await bus.call(Work(line="a", number=1), command_id="order-1", timeout=30)
        assert b"order-1" in bytes(await thief.get("{shop:0}:k:order-1") or b"")  # type: ignore[arg-type]
        await thief.set("{shop:0}:k:order-1", "", px=1)
        await until(lambda: nothing_at(place, "{shop:0}:k:order-1"))
        assert (await bus.dispatch(Work(line="a", number=1), command_id="order-1")).status == "accepted"
        await until(lambda: began(handlers, 2))
        await thief.set("{shop:0}:k:order-2", (await place.admin.get("{shop:0}:k:order-1")) or b"")
        assert (await bus.dispatch(Work(line="a", number=1), command_id="order-2")).status == "duplicate"
        await thief.hset("{shop:0}:unique", "line:b:k", f"0-0|{2**53}||||Work|none")  # type: ignore[misc]
        assert (await bus.dispatch(Work(line="b", number=1), unique=Unique("k"))).other == "none"
    assert handlers.numbers == [1, 1]
    await thief.aclose()


async def nothing_at(place: Place, key: str) -> bool:
    return not await place.admin.exists(key)


async def test_it_fills_lines_beyond_their_limits(place: Place) -> None:
    await loaded(place)
    thief = place.client("producer")
    async with place.bus("producer", max_depth=2) as bus:
        await bus.dispatch(Work(line="a", number=1))
        for _ in range(10):
            await thief.xadd("{shop:0}:m:line:a", {"e": "x"})
        assert await place.admin.xlen("{shop:0}:m:line:a") == 10
    await thief.aclose()


async def test_it_has_all_senders_refused(place: Place) -> None:
    await loaded(place)
    thief = place.client("producer")
    async with place.bus("producer") as bus:
        await bus.dispatch(Work(line="a", number=1))
        await thief.hincrby("{shop:0}:stats", "depth", 1_000_000)
        with pytest.raises(QueueFull):
            await bus.dispatch(Work(line="b", number=1))
    await thief.aclose()


async def test_it_records_settings_that_all_clients_must_agree_with(place: Place) -> None:
    """Only of what is not recorded yet: nothing that is can be changed."""
    thief = place.client("producer")
    assert await thief.hsetnx("{shop:0}:meta", "mailbox:line", "lanes:7")
    with pytest.raises(NoPermissionError):
        await thief.hset("{shop:0}:meta", "mailbox:line", "per_entity")
    async with place.bus("producer") as bus:
        with pytest.raises(InvalidSettings, match="lanes"):
            await bus.dispatch(Work(line="a", number=1))
    await thief.aclose()


async def test_it_reaches_the_namespace_in_every_database_of_the_server(place: Place) -> None:
    """A user's patterns name keys, not databases."""
    await place.admin.execute_command("SELECT", "5")
    await place.admin.xadd("{shop:0}:m:line:a", {"e": "x"})
    thief = place.client("producer")
    await thief.execute_command("SELECT", "5")
    assert await thief.xlen("{shop:0}:m:line:a") == 1
    await thief.aclose()


async def test_it_finds_no_entity_and_no_command_that_it_does_not_know(place: Place) -> None:
    thief = place.client("producer")
    for request in (
        ("KEYS", "*"), ("SCAN", "0"), ("HSCAN", "{shop:0}:active", "0"), ("HGETALL", "{shop:0}:active"), ("HKEYS", "{shop:0}:active"),
        ("XRANGE", "{shop:0}:ready", "-", "+"), ("XREAD", "STREAMS", "{shop:0}:ready", "0"), ("XRANGE", "{shop:0}:m:line:a", "-", "+"),
        ("XRANGE", "{shop:0}:events", "-", "+"), ("HSCAN", "{shop:0}:delayed", "0"),
        ("HGETALL", "{shop:0}:lone"), ("HGET", "{shop:0}:lone", "line:a"), ("HKEYS", "{shop:0}:lone"),
        ("HGET", "{shop:0}:delayed", "c"), ("ZRANGE", "{shop:0}:due", "0", "-1"), ("ZRANGEBYSCORE", "{shop:0}:due", "-inf", "+inf"),
        ("ZSCAN", "{shop:0}:due", "0"), ("ZPOPMIN", "{shop:0}:due"), ("ZRANDMEMBER", "{shop:0}:due"), ("ZRANGE", "{shop:0}:line", "0", "-1"),
        ("HGETALL", "{shop:0}:unique"), ("HKEYS", "{shop:0}:flows"), ("HGETALL", "{shop:0}:schedules"), ("HGETALL", "{shop:0}:paused"),
        ("XRANGE", "{shop:0}:dead", "-", "+"), ("XINFO", "STREAM", "{shop:0}:ready", "FULL"),
    ):  # fmt: skip
        with pytest.raises(NoPermissionError):
            await thief.execute_command(*request)
    await thief.aclose()


async def test_it_lists_who_waits_in_the_line(place: Place) -> None:
    """It fills the ready stream from the line, where priorities or shares are in use: so it reads tenants, and entities that wait."""
    handlers = Handlers()
    await loaded(place)
    async with place.bus("producer", registry=handlers.registry) as bus:
        await place.admin.hset("{shop:0}:flows", mapping={"c0": "0", "most": "1"})  # type: ignore[misc]
        for number in range(3):
            await bus.dispatch(Work(line=f"secret-{number}", number=number), priority="high")
    thief = place.client("producer")
    assert await thief.zrangebyscore("{shop:0}:turns", "-inf", "+inf")
    members: Any = await thief.zrangebylex("{shop:0}:line", "-", "+")
    assert any(b"line:secret-" in member for member in members)
    await thief.aclose()


ENDLESS = "redis.call('HSET', KEYS[1], 'f', 'v') while true do end"


@pytest.mark.parametrize("role", ["producer", "pipeline"])
async def test_it_loads_no_script_that_would_stop_the_server(place: Place, role: str) -> None:
    thief = place.client(role)  # type: ignore[arg-type]
    for request in (
        ("SCRIPT", "LOAD", ENDLESS), ("EVAL", ENDLESS, "1", "{shop:0}:active"), ("FUNCTION", "LOAD", "#!lua name=x\n"),
        ("FCALL", "x", "0"), ("EVAL_RO", "while true do end", "0"), ("SCRIPT", "FLUSH"), ("SCRIPT", "KILL"),
    ):  # fmt: skip
        with pytest.raises(NoPermissionError):
            await thief.execute_command(*request)
    with pytest.raises(NoScriptError):
        await thief.evalsha("0" * 40, 1, "{shop:0}:active")
    await thief.aclose()


async def test_the_runs_of_a_load_are_no_more_than_its_commands(place: Place) -> None:
    """Otherwise a few hundred kilobytes keep the server busy for as long as the sender likes: the script trusts no count."""
    await loaded(place)
    load = next(script for script in SCRIPTS if script.name == "bulk_load")
    thief = place.client("pipeline")
    await thief.hset("{shop:0}:b:d", "open", "0")
    keys = [
        f"{{shop:0}}:{name}"
        for name in (
            "ready",
            "active",
            "stats",
            "paused",
            "later",
            "b:d",
            "b:d:ids",
            "b:d:seq",
            "watched",
            "arrivals",
            "b:d:home",
            "lone",
            "flows",
            "turns",
            "line",
        )
    ]
    runs = b"\xff\xff\xff\xff" * 4
    arguments = ("0", "100", "100", "10", "1000", "0", "0", runs, b"\0\0\0\0", "", "", "", b"\x96\x01\xa1x")
    with pytest.raises(ResponseError, match="more commands than there are"):
        await thief.evalsha(load.sha, len(keys), *keys, *arguments)
    await thief.aclose()


async def test_a_pipeline_invents_and_deletes_outcomes(place: Place) -> None:
    """It may append to all that a dispatch keeps: rows that are no commands, and the ends of folded ones."""
    outcomes = "{shop:0}:b:load-1:out"
    async with place.client("pipeline") as thief, place.client("producer") as other:
        await thief.xadd(outcomes, {"o": "invented"})
        assert await place.admin.xlen(outcomes) == 1
        with pytest.raises(NoPermissionError):
            await other.unlink(outcomes)
        await thief.unlink(outcomes)
        assert await place.admin.exists(outcomes) == 0


async def test_with_the_right_to_load_scripts_it_stops_the_server(binary: Path, start: Starter) -> None:
    """Show why senders lack it unless they are given it: nothing but an end of the server ends such a script."""
    server = start(tcp=True, binary=binary, config={"lua-time-limit": "50"})
    async with made(server, selectors=True, load_scripts=True) as place:
        thief = place.client("producer")
        sha = await thief.script_load(ENDLESS)
        stuck = asyncio.ensure_future(thief.evalsha(sha, 1, "{shop:0}:active"))
        try:
            await until(lambda: busy(place))
            with pytest.raises(ResponseError, match="UNKILLABLE"):
                await place.admin.script_kill()
        finally:
            server.kill()
            await asyncio.gather(stuck, return_exceptions=True)
            await thief.aclose()
            server.restart()
            await place.admin.connection_pool.disconnect()


async def busy(place: Place) -> bool:
    try:
        await place.admin.exists("x")
    except ResponseError as error:
        return "BUSY" in str(error)
    return False
