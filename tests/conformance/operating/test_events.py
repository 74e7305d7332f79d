"""Events: each change of commands of watched types is published once, in order, by the step that makes it. Over every server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import aclosing
from typing import Any

import pytest

from command_bus import (
    BusClosed,
    Command,
    CommandBus,
    CommandCancelled,
    CommandRejected,
    EntityId,
    EntityPolicy,
    InvalidCommand,
    InvalidSettings,
    Reject,
    RetryPolicy,
    lanes,
)
from command_bus.admin.events import BEGINNING, CommandEvent
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Add(Command[int], entity="sum", retry=RetryPolicy(attempts=2, delay=0.01), on_poison="park"):
    name: EntityId
    number: int


class Count(Command[int], entity="other", retry=RetryPolicy(attempts=1)):
    name: EntityId
    number: int


class Free(Command[None]):
    number: int


class Order(Command[int], entity="order"):
    number: EntityId


@pytest.fixture
def gate(sandbox: Sandbox) -> asyncio.Event:
    """Shut, it keeps what has number 9 running. 0 is refused, below zero fails."""
    gate = asyncio.Event()
    gate.set()

    async def run(number: int) -> int:
        if number == 9:
            await gate.wait()
        if number == 0:
            raise Reject("nothing to add")
        if number < 0:
            raise OSError("no paper")
        return number

    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        return await run(command.number)

    @sandbox.registry.handles(Count)
    async def count(command: Count) -> int:
        return await run(command.number)

    @sandbox.registry.handles(Free)
    async def free(command: Free) -> None: ...

    @sandbox.registry.handles(Order)
    async def order(command: Order) -> int:
        return 1

    return gate


async def kept(bus: CommandBus, *arguments: Any, **options: Any) -> list[CommandEvent]:
    return [event async for event in bus.events(*arguments, after=options.pop("after", BEGINNING), follow=False, **options)]


def story(events: list[CommandEvent]) -> dict[str, list[str]]:
    """Return the kinds of events of each entity, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for event in events:
        found[event.entity].append(event.kind)
    return dict(found)


async def test_unwatched_types_publish_no_events(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.events.watched() == {}
        await bus.call(Add(name="a", number=1))
        assert await kept(bus) == []
        assert not [key for key in await sandbox.keys() if key.endswith((":events", ":watched"))]
        await bus.events.watch("other")
        await bus.call(Add(name="a", number=1))
        assert await kept(bus) == []


@pytest.mark.promise("Events are in order")
@pytest.mark.parametrize("shards", [1, 3])
async def test_the_events_of_a_command_are_in_order(sandbox: Sandbox, gate: asyncio.Event, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus:
        await bus.events.watch("sum", "other")
        assert await bus.events.watched() == {"other": 10_000, "sum": 10_000}
        await bus.dispatch_batch(
            [Add(name="a", number=1), Count(name="b", number=-1), Add(name="a", number=2), Add(name="c", number=-1)]
        )
        async with bus.worker() as worker:
            with pytest.raises(CommandRejected):
                await bus.call(Add(name="d", number=0))
            await bus.call(Add(name="e", number=5), command_id="mine")
            parked = [letter async for letter in _letters(bus, 2)]
            events = await kept(bus)
        assert story(events) == {
            "sum:a": ["accepted", "accepted", "started", "completed", "started", "completed"],
            "other:b": ["accepted", "started", "dead_lettered"],
            "sum:c": ["accepted", "started", "retried", "started", "parked"],
            "sum:d": ["accepted", "started", "rejected"],
            "sum:e": ["accepted", "started", "completed"],
        }
        [mine, started, completed] = [event for event in events if event.command_id == "mine"]
        assert (mine.entity_type, mine.entity_id, mine.name, mine.attempt, mine.worker) == ("sum", "e", "Add", 0, "")
        assert (started.attempt, started.worker) == (1, worker.name)
        assert started.fence == completed.fence > 0
        assert mine.at_ms <= started.at_ms <= completed.at_ms
        [retried] = [event for event in events if event.kind == "retried"]
        assert (retried.attempt, 0 <= (retried.delay or 0) <= 0.1) == (1, True)
        assert {letter.name for letter in parked} == {"Add", "Count"}


async def _letters(bus: CommandBus, many: int) -> Any:
    async def there() -> bool:
        return sum((await bus.dead_letters.count()).values()) == many

    await until(there)
    async for letter in bus.dead_letters.list():
        yield letter


async def test_operations_publish_events(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus:
        await bus.events.watch("sum", "other")
        await bus.entity("sum", "a").pause("ticket 4711")
        await bus.entities.of("sum").drain("month end")
        await bus.entities.of("sum").drain("month end")
        await bus.entities.of("sum").resume()
        await bus.entities.pause("all of it")
        await bus.entities.resume()
        await bus.entity("sum", "a").resume()
        done = [(event.kind, event.entity, event.reason) for event in await kept(bus)]
        assert done == [
            ("paused", "sum:a", "ticket 4711"),
            ("draining", "all sum", "month end"),
            ("resumed", "all sum", ""),
            ("paused", "everything", "all of it"),
            ("resumed", "everything", ""),
            ("resumed", "sum:a", ""),
        ]
        after = (await kept(bus))[-1].cursor
        for name in ("a", "b"):
            await bus.dispatch(Add(name=name, number=-1))
        await bus.dispatch(Count(name="x", number=-1))
        async with bus.worker():
            letters = {letter.entity_id: letter.id async for letter in _letters(bus, 3)}
        await bus.dead_letters.replay(letters["a"])
        await bus.dead_letters.discard(letters["b"])
        await bus.dead_letters.discard(letters["x"])
        await bus.dispatch(Count(name="x", number=1), delay=3600.0)
        await bus.entity("other", "x").purge()
        receipt = await bus.dispatch(Add(name="c", number=1), command_id="c-1")
        await bus.cancel(receipt.command_id)
        told = [(event.kind, event.entity) for event in await kept(bus, after=after)]
        assert [event for event in told if event[0] not in ("accepted", "started", "retried")] == [
            *[each for each in told if each[0] in ("parked", "dead_lettered")],
            ("replayed", "sum:a"),
            ("discarded", "sum:b"),
            ("discarded", "other:x"),
            ("cancelled", "other:x"),
            ("cancelled", "sum:c"),
        ]
        [late] = [event for event in await kept(bus, after=after) if event.kind == "accepted" and event.delay]
        assert late.delay == 3600
        cancelled = [event.command_id for event in await kept(bus, after=after) if event.kind == "cancelled"]
        assert cancelled == [late.command_id, "c-1"]


async def test_a_stopping_worker_publishes_its_interruptions(sandbox: Sandbox, gate: asyncio.Event) -> None:
    gate.clear()
    async with sandbox.bus() as bus:
        await bus.events.watch()
        assert await bus.events.watched() == {"*": 10_000}
        await bus.dispatch(Add(name="a", number=9))
        async with bus.worker(grace=0.0) as worker:

            async def running() -> bool:
                return "started" in [event.kind for event in await kept(bus)]

            await until(running)
        [event] = [event for event in await kept(bus) if event.kind == "interrupted"]
        assert (event.entity, event.attempt, event.worker) == ("sum:a", 1, worker.name)


async def test_a_reader_follows_from_now_on_and_goes_on_behind_a_cursor(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus(shards=3) as bus, bus.worker():
        await bus.events.watch("sum")
        await bus.call(Add(name="before", number=1))
        first: list[CommandEvent] = []
        async with aclosing(bus.events("sum", kinds={"completed"})) as events:  # type: ignore[type-var]
            reading = asyncio.ensure_future(anext(events))
            while not reading.done():
                await bus.call(Add(name="a", number=1))
                await asyncio.wait({reading}, timeout=0.05)
            first.append(await reading)
        assert first[0].entity == "sum:a"
        await bus.call(Add(name="later", number=2))
        rest = await kept(bus, after=first[0].cursor)
        assert story(rest)["sum:later"] == ["accepted", "started", "completed"]
        assert "sum:before" not in story(rest)


async def test_closing_the_bus_ends_event_readers(sandbox: Sandbox, gate: asyncio.Event) -> None:
    bus = sandbox.bus()
    await bus.open()
    await bus.events.watch()

    async def follow() -> list[CommandEvent]:
        return [event async for event in bus.events(after=BEGINNING)]

    following = asyncio.ensure_future(follow())
    await bus.dispatch(Add(name="a", number=1))
    await asyncio.sleep(0.05)
    await bus.close()
    assert [event.kind for event in await asyncio.wait_for(following, 5.0)] in ([], ["accepted"])


async def test_events_of_lanes_unordered_commands_and_long_ids(sandbox: Sandbox, gate: asyncio.Event) -> None:
    long = "ü" * 400
    async with sandbox.bus(entities={"order": EntityPolicy(mailbox=lanes(2))}) as bus, bus.worker():
        await bus.events.watch("order", "sum", None)
        assert await bus.events.watched() == {"order": 10_000, "sum": 10_000, None: 10_000}
        await bus.call(Free(number=1))
        await bus.call(Order(number="o-1"))
        await bus.call(Add(name=long, number=1))
        await bus.call(Add(name="a:{b}\n\0", number=1))
        events = await kept(bus)
        assert [event.kind for event in events] == ["accepted", "started", "completed"] * 4
        assert [(event.entity_type, event.entity_id) for event in events[::3]] == [
            (None, None),
            ("order", "o-1"),
            ("sum", long),
            ("sum", "a:{b}\n\0"),
        ]
        assert [event.name for event in events[::3]] == ["Free", "Order", "Add", "Add"]
        assert len(await kept(bus, "order")) == 3


async def test_about_so_many_are_kept_and_unwatching_ends_it(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus:
        await bus.events.watch("other", kept=200)
        await bus.dispatch_batch(Count(name="a", number=number) for number in range(1, 1001))
        found = await kept(bus)
        assert 200 <= len(found) < 400
        await bus.events.unwatch("other", "sum")
        assert await bus.events.watched() == {}
        await bus.dispatch(Count(name="a", number=1))
        assert len(await kept(bus)) == len(found)
        streams = [key for key in await sandbox.keys() if key.endswith((":events", ":arrivals"))]
        client = sandbox.client()
        for stream in streams:
            assert 0 < await client.pttl(stream) <= 24 * 3600 * 1000
        await bus.events.watch("other")
        assert [await client.pttl(stream) for stream in streams] == [-1]
        await client.aclose()


async def test_what_is_no_envelope_is_told_by_its_mailbox(sandbox: Sandbox, gate: asyncio.Event) -> None:
    for garbage in (b"", b"\x97", b"\x97\x01\xd9", b"\x97\x01\xda\xff\xff", b"\x97\x01\xa4abcd\x01", bytes(range(256))):
        async with sandbox.bus() as bus:
            await bus.events.watch("other")
            shard = bus.session.redis.keys.shards[0]
            client = sandbox.client()
            await client.xadd(shard.mailbox("other:g"), {"e": garbage})  # type: ignore[dict-item]
            ready = await client.xadd(shard.ready, {"e": "other:g"})
            await client.hset(shard.active, "other:g", f"r|{ready.decode()}|||0|0|")  # type: ignore[misc]
            before = len(await kept(bus))
            async with bus.worker():

                async def buried(before: int = before) -> bool:
                    return len(await kept(bus)) >= before + 2

                await until(buried)
            told = (await kept(bus))[before:]
            assert [(event.kind, event.entity, event.entity_id) for event in told] == [
                ("started", "other:g", "g"),
                ("dead_lettered", "other:g", "g"),
            ]
            await client.aclose()


async def test_a_broken_event_stream_harms_no_command(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.events.watch("sum")
        client = sandbox.client()
        await client.set(bus.session.redis.keys.shards[0].events, "no stream")
        assert await bus.call(Add(name="a", number=1)) == 1
        await client.delete(bus.session.redis.keys.shards[0].events)
        await client.delete(bus.session.redis.keys.shards[0].watched)
        await client.set(bus.session.redis.keys.shards[0].watched, "no hash")
        assert await bus.call(Add(name="a", number=1)) == 1
        await client.aclose()


async def test_bad_arguments_say_what_to_do(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus(shards=2) as bus:
        with pytest.raises(InvalidSettings, match="kinds: gone: one of accepted"):
            bus.events(kinds={"gone"})  # type: ignore[arg-type]
        with pytest.raises(InvalidCommand):
            bus.events("a:b")
        with pytest.raises(InvalidCommand):
            await bus.events.watch("a:b")
        with pytest.raises(InvalidSettings, match="kept = 0"):
            await bus.events.watch("sum", kept=0)
        for cursor in ("x", "1-0", "1-0,2-0,3-0", "1-0,x", "5-,1-0", "-5,1-0", "9" * 30 + "-0,1-0", "\uff11-0,1-0"):
            with pytest.raises(InvalidSettings, match="not the cursor of an event of this bus, which has 2 shards"):
                await kept(bus, after=cursor)


async def test_the_cancellation_of_a_call_is_an_event(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus:
        await bus.events.watch("sum")
        calling = asyncio.ensure_future(bus.call(Add(name="a", number=1), command_id="c-1"))

        async def waits() -> bool:
            return bool(await kept(bus))

        await until(waits)
        await bus.cancel("c-1")
        with pytest.raises(CommandCancelled):
            await calling
        assert [event.kind for event in await kept(bus)] == ["accepted", "cancelled"]


async def test_a_reader_ends_whenever_the_bus_is_closed(sandbox: Sandbox, gate: asyncio.Event) -> None:
    """Also when it has only begun: before it has asked where the streams end, while it asks, and before its tasks have run."""
    for turns in range(12):
        bus = sandbox.bus()
        await bus.open()

        async def follow(bus: CommandBus = bus) -> None:
            async for _ in bus.events():
                pass

        following = asyncio.ensure_future(follow())
        for _ in range(turns):
            await asyncio.sleep(0)
        await bus.close()
        await asyncio.wait({following}, timeout=5.0)
        assert following.done(), f"still reading after {turns} turns"
        assert following.exception() is None or isinstance(following.exception(), BusClosed)


async def test_the_types_that_are_watched_share_what_is_kept(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus:
        await bus.events.watch("sum", kept=5_000)
        await bus.events.watch("other", kept=10)
        await bus.dispatch_batch(Add(name="a", number=number) for number in range(1, 1001))
        await bus.dispatch_batch(Count(name="a", number=number) for number in range(1, 11))
        assert len(await kept(bus)) == 1010
        assert await bus.events.watched() == {"other": 10, "sum": 5_000}
        await bus.events.unwatch()
        assert await bus.events.watched() == {}


@pytest.mark.parametrize("shards", [1, 3])
async def test_an_operation_on_all_shards_is_one_event(sandbox: Sandbox, gate: asyncio.Event, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus:
        await bus.events.watch("sum")
        await bus.entities.of("sum").pause()
        await bus.entities.pause()
        await bus.entities.of("sum").resume()
        assert [(event.kind, event.entity) for event in await kept(bus)] == [
            ("paused", "all sum"),
            ("paused", "everything"),
            ("resumed", "all sum"),
        ]


@pytest.mark.promise("Events are in order")
async def test_a_failed_step_publishes_no_event(sandbox: Sandbox, gate: asyncio.Event) -> None:
    """The key of the dead letters has another type: the step is repeated until it is repaired."""
    async with sandbox.bus() as bus:
        await bus.events.watch("other")
        client = sandbox.client()
        await client.set(bus.session.redis.keys.shards[0].dead, "no stream")
        await bus.dispatch(Count(name="a", number=-1))
        async with bus.worker():

            async def stuck() -> bool:
                return [event.kind for event in await kept(bus)] == ["accepted", "started"]

            await until(stuck)
            await asyncio.sleep(0.1)
            assert await stuck()
            await client.delete(bus.session.redis.keys.shards[0].dead)
            [letter] = [letter async for letter in _letters(bus, 1)]
        *_, last = await kept(bus)
        assert (last.kind, last.letter_id) == ("dead_lettered", letter.id)
        await client.aclose()


async def test_the_letters_of_events_can_be_decided_about(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus(shards=3) as bus, bus.worker():
        await bus.events.watch("sum", "other")
        await bus.dispatch_batch([Add(name="a", number=-1), Count(name="b", number=-1)])
        ids = {letter.id async for letter in _letters(bus, 2)}
        assert {event.letter_id for event in await kept(bus, kinds={"parked", "dead_lettered"})} == ids
        for letter in sorted(ids):
            await bus.dead_letters.discard(letter)
        assert {event.letter_id for event in await kept(bus, kinds="discarded")} == ids


async def test_what_has_no_entity_can_be_chosen(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.events.watch("sum", None)
        await bus.call(Free(number=1))
        await bus.call(Add(name="a", number=1))
        assert {event.name for event in await kept(bus, None)} == {"Free"}
        assert {event.name for event in await kept(bus, "sum")} == {"Add"}
        assert {event.name for event in await kept(bus, "sum", None)} == {"Add", "Free"}


async def test_what_is_kept_ends_although_more_happens(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus() as bus:
        await bus.events.watch("sum")
        await bus.dispatch_batch(Add(name="a", number=1) for _ in range(600))
        found = 0
        async for _ in bus.events(after=BEGINNING, follow=False):
            found += 1
            if found % 100 == 1:
                await bus.dispatch_batch(Add(name="a", number=1) for _ in range(200))
        assert found == 600
        assert [event async for event in bus.events(follow=False)] == []


async def test_a_refused_command_publishes_no_event(sandbox: Sandbox, gate: asyncio.Event) -> None:
    async with sandbox.bus(max_depth=3) as bus:
        await bus.events.watch("sum")
        result = await bus.dispatch_batch(Add(name="a", number=number) for number in range(1, 6))
        assert result.accepted == 3
        await bus.dispatch(Add(name="b", number=1), command_id="b-1")
        await bus.dispatch(Add(name="b", number=1), command_id="b-1")
        assert [(event.kind, event.entity) for event in await kept(bus)] == [("accepted", "sum:a")] * 3 + [("accepted", "sum:b")]
