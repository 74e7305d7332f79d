"""A settled command holds its key to the end of its window and no longer, whatever its entity waits for by then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    EntityId,
    EntityPolicy,
    Envelope,
    InvalidCommand,
    Limit,
    Rate,
    RetryPolicy,
    Snooze,
    Unique,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

_WINDOW = 1.0


class Render(Command[int], entity="doc", unique=Unique("k", window=_WINDOW)):
    doc: EntityId


class Next(Command[int], entity="doc", retry=RetryPolicy(attempts=9, delay=30, jitter=0)):
    doc: EntityId
    way: str


_SLOW = {"doc": EntityPolicy(limits=(Limit(rate=Rate(1, per=30.0, burst=1), scope="entity"),))}


@pytest.mark.parametrize("way", ["paused", "snoozed", "retried", "limited", "idle"])
async def test_a_settled_command_holds_its_key_for_its_window(sandbox: Sandbox, way: str) -> None:
    options: dict[str, Any] = {"entities": _SLOW} if way == "limited" else {}
    ran: list[str] = []

    @sandbox.registry.handles(Render)
    async def render(command: Render) -> int:
        ran.append("render")
        return 1

    @sandbox.registry.handles(Next)
    async def follow(command: Next, context: CommandContext) -> int:
        ran.append(command.way)
        if command.way == "snoozed":
            raise Snooze(30)
        raise ConnectionError(command.way)

    async with sandbox.bus(**options) as bus:
        first = await bus.dispatch(Render(doc="d"))
        if way != "idle":
            await bus.dispatch(Next(doc="d", way=way))
        async with bus.worker():
            await until(lambda: len(ran) == (2 if way in ("snoozed", "retried", "paused") else 1))
            if way == "paused":
                await bus.entity("doc", "d").pause()
            assert (await bus.dispatch(Render(doc="d"))).other == first.command_id, "within its window"
            (held,) = (await bus.entity("doc", "d").unique_keys()).keys
            assert held.state == "settled"
            await asyncio.sleep(_WINDOW + 0.2)
            assert (await bus.entity("doc", "d").unique_keys()).keys == []
            again = await bus.dispatch(Render(doc="d"))
            assert (again.status, again.other) == ("accepted", None)


class Alarm(Command[int], entity="doc"):
    doc: EntityId


_EXTENDED = Unique("k", window=0.6, extend=True)


async def held_until(bus: CommandBus, key: str = "d") -> int:
    (held,) = (await bus.entity("doc", key).unique_keys()).keys
    assert held.window_ms is not None
    return held.window_ms


@pytest.mark.parametrize("place", ["waiting", "delayed", "settled"])
async def test_who_is_dropped_begins_the_window_again(sandbox: Sandbox, place: str) -> None:
    @sandbox.registry.handles(Alarm)
    async def alarm(command: Alarm) -> int:
        return 1

    async with sandbox.bus() as bus:
        first = await bus.dispatch(Alarm(doc="d"), unique=_EXTENDED, delay=60 if place == "delayed" else None)
        if place == "settled":
            async with bus.worker():
                await bus.wait_idle(10)
        for number in range(4):  # each comes within the window of the one before, and the last ones beyond the first's
            before = await held_until(bus)
            await asyncio.sleep(0.25)
            if number % 2:
                again = await bus.dispatch(Alarm(doc="d"), unique=_EXTENDED)
                assert (again.status, again.other) == ("duplicate", first.command_id)
            else:
                assert (await bus.dispatch_batch([Envelope(Alarm(doc="d"), unique=_EXTENDED)])).duplicates == 1
            assert await held_until(bus) > before
        if place == "settled":
            await asyncio.sleep(0.8)
            assert (await bus.dispatch(Alarm(doc="d"), unique=_EXTENDED)).status == "accepted"


async def test_max_wait_bounds_the_window_of_what_is_dropped(sandbox: Sandbox) -> None:
    @sandbox.registry.handles(Alarm)
    async def alarm(command: Alarm) -> int:
        return 1

    storm, ends = Unique("k", window=0.3, extend=True, max_wait=0.7), list[str]()
    async with sandbox.bus() as bus, bus.worker():
        for _ in range(14):
            ends.append((await bus.dispatch(Alarm(doc="d"), unique=storm)).status)
            await asyncio.sleep(0.1)
    assert ends[0] == "accepted"
    assert ends.count("accepted") in (2, 3), "one run in 0.7 s"
    assert "accepted" not in ends[1:5]


async def test_a_delay_is_not_bounded_by_the_window(sandbox: Sandbox) -> None:
    @sandbox.registry.handles(Alarm)
    async def alarm(command: Alarm) -> int:
        return 1

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Alarm(doc="d"), unique=Unique("k", window=0.1, extend=True, max_wait=0.2), delay=60)
        await asyncio.sleep(0.5)
        assert (await bus.stats()).delayed == 1


async def test_of_the_keys_without_it_the_window_stays(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch(Alarm(doc="d"), unique=Unique("k", window=60))
        before = await held_until(bus)
        assert (await bus.dispatch(Alarm(doc="d"), unique=Unique("k", window=90))).status == "duplicate"
        assert await held_until(bus) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"extend": True}, "give window="),
        ({"window": 5, "extend": True, "max_wait": 4}, "not below window"),
        ({"window": 5, "max_wait": 9}, "bounds `debounce` or `extend`"),
        ({"window": 5, "extend": 1}, "True or False"),
        ({"wins": "latest", "extend": True}, "give window="),
    ],
)
def test_what_no_window_is(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidCommand, match=text):
        Unique("k", **options)


async def test_the_latest_replaces_one_whose_window_is_bounded(sandbox: Sandbox) -> None:
    """The bound of a window is none of the wait: it would leave two that wait under one key."""
    async with sandbox.bus() as bus:
        first = await bus.dispatch(Alarm(doc="d"), unique=Unique("k", window=0.1, extend=True, max_wait=0.1))
        await asyncio.sleep(0.3)
        second = await bus.dispatch(Alarm(doc="d"), unique=Unique("k", wins="latest"))
        assert (second.status, second.other) == ("replaced", first.command_id)
        assert (await bus.stats()).depth == 1


@pytest.mark.parametrize("way", ["purge", "cancel", "forget"])
async def test_an_end_by_hand_frees_a_key_in_its_window(sandbox: Sandbox, way: str) -> None:
    """As BullMQ#2716 asked of the key of a removed job."""
    async with sandbox.bus() as bus:
        await bus.dispatch(Alarm(doc="d"), unique=_EXTENDED, command_id="first")
        await bus.dispatch(Alarm(doc="d"), unique=_EXTENDED)
        entity = bus.entity("doc", "d")
        await (entity.purge() if way == "purge" else bus.cancel("first") if way == "cancel" else entity.forget("k"))
        assert (await bus.dispatch(Alarm(doc="d"), unique=_EXTENDED)).status == "accepted"


async def test_a_run_longer_than_its_window_holds_its_key(sandbox: Sandbox) -> None:
    """As of activejob-uniqueness#83 and sidekiq-unique-jobs#255, whose locks ended while their job ran."""
    free = asyncio.Event()

    @sandbox.registry.handles(Alarm)
    async def alarm(command: Alarm) -> int:
        await free.wait()
        return 1

    short = Unique("k", window=0.1, extend=True)
    async with sandbox.bus() as bus, bus.worker():
        first = await bus.dispatch(Alarm(doc="d"), unique=short)
        await asyncio.sleep(0.4)
        assert (await bus.dispatch(Alarm(doc="d"), unique=short)).other == first.command_id
        free.set()
        await bus.wait_idle(10)
        await asyncio.sleep(0.3)
        assert (await bus.dispatch(Alarm(doc="d"), unique=short)).status == "accepted"
