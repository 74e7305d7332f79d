"""The cost of a notifier: a counter and a line in the log, whatever it does. And what is refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, InvalidCommand, InvalidSettings, SyncCommandBus
from command_bus.notifications import ALL_TYPES, Ground, NatsNotifier, Notice, RedisNotifier, Topic
from command_bus.notifications.delivery import Announcer
from command_bus.notifications.notices import NoticeKind, pack_notice, unpack_notice
from command_bus.testing import TestBus
from command_bus.transport.redis.memory import MemoryClients

registry = HandlerRegistry()


class Pack(Command[int], entity="order"):
    order: EntityId


@registry.handles(Pack)
async def pack(command: Pack) -> int:
    return 1


class Broken:
    """A notifier, and its link, that hangs or fails as long as it is told to."""

    kinds: frozenset[NoticeKind] = frozenset({"work", "settled"})
    settled: frozenset[str] | None = None

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self.sent: list[Notice] = []

    def link(self, ground: Ground) -> Broken:
        return self

    async def publish(self, notices: Sequence[Notice]) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        self.sent += notices

    async def consume_hint(self, entity_type: str | None) -> bool:
        return True

    async def subscribe(self, topic: Topic) -> None: ...

    async def unsubscribe(self, topic: Topic) -> None: ...

    async def close(self) -> None: ...


def in_memory(notifier: Any) -> CommandBus:
    return CommandBus.in_memory(registry=registry, notifier=notifier)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_of_one_turn_leaves_as_one_notice() -> None:
    notifier = Broken()
    async with in_memory(notifier) as bus:
        await bus.dispatch(Pack(order="first"))  # agrees on the entity type, for which those behind it would wait
        await asyncio.gather(*(bus.dispatch(Pack(order=f"{number}")) for number in range(50)))
    assert sum(each.commands for each in notifier.sent) == 51
    assert len(notifier.sent) < 5, "the first, and those that came while it was under way"


async def test_what_is_noted_last_leaves_as_the_bus_closes() -> None:
    notifier = Broken()
    announcer = Announcer(notifier.publish)
    announcer.work("order")
    await announcer.close()
    announcer.work("order")
    await turns()
    assert [each.commands for each in notifier.sent] == [1]


async def test_a_notifier_that_fails_costs_a_counter_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "command_bus.notifications")
    notifier = Broken()
    notifier.error = OSError("no way")
    async with in_memory(notifier) as bus, bus.worker():
        for number in range(5):
            assert await bus.call(Pack(order=f"{number}"), timeout=5) == 1
        async with asyncio.timeout(5):
            while bus.notifier.figures.failed < 2:
                await asyncio.sleep(0.01)
        notifier.error = None
        async with asyncio.timeout(5):
            while not notifier.sent:
                await asyncio.sleep(0.01)
        assert notifier.sent[0] == Notice("work", "order", commands=5), "work is kept, the others are left out"
        assert bus.notifier.figures.left_out > 0
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0].partition(";")[0] for text in texts] == [
        "notices cannot be sent, and are tried again",
        "notices are sent again",
    ]


async def test_a_notifier_that_hangs_delays_nothing_and_not_the_end_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.notifications.delivery._FAREWELL", 0.05)
    notifier = Broken()
    notifier.hangs = True
    async with in_memory(notifier) as bus, bus.worker():
        for number in range(5):
            assert await bus.call(Pack(order=f"{number}"), timeout=5) == 1
    assert bus.notifier.figures.failed == 1
    assert bus.notifier.figures.left_out >= 1


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.notifications.delivery._MOST_NOTED", 3)
    notifier = Broken()
    announcer = Announcer(notifier.publish)
    for number in range(5):
        announcer.work(f"t{number}")
        announcer.work("t0")
        announcer.tell(Notice("settled", "order", f"{number}"))
    await turns()
    assert (announcer.sent, announcer.left_out) == (6, 4)
    assert notifier.sent[0] == Notice("work", "t0", commands=6)
    await announcer.close()


async def test_without_a_notifier_nothing_is_in_the_way() -> None:
    async with in_memory(None) as plain, in_memory(Broken()) as telling:
        assert type(plain.transport.producer).__name__ == "StreamProducer"
        assert type(telling.transport.producer).__name__ == "ReportingProducer"


async def test_a_bus_opens_again_with_its_notifier() -> None:
    bus = in_memory(RedisNotifier())
    for _ in range(2):
        async with bus, bus.notifier.listen("work") as woken:
            await bus.dispatch(Pack(order="1"))
            async with asyncio.timeout(5):
                assert await anext(woken) == "order"


async def test_a_blocking_bus_tells_too() -> None:
    notifier = Broken()

    def send() -> None:
        with SyncCommandBus("redis://unused", clients=MemoryClients(), registry=registry, notifier=notifier) as bus:
            bus.dispatch(Pack(order="1"))

    await asyncio.to_thread(send)
    assert [each.entity_type for each in notifier.sent] == ["order"]


async def test_a_test_bus_tells_nobody() -> None:
    notifier = Broken()
    async with TestBus(registry, notifier=notifier) as bus:
        await bus.dispatch(Pack(order="1"))
        await bus.run_until_idle()
    assert notifier.sent == []


def test_a_notice_survives_its_bytes() -> None:
    for notice in (
        Notice("work", None, commands=7),
        Notice("settled", "order", "ü\n", "c-1", "Pack", status="completed"),
        Notice("lease_lost", "order", None, worker="w"),
    ):
        assert unpack_notice(pack_notice(notice)) == notice
    assert b"status" not in pack_notice(Notice("work", "order", commands=1))


async def test_170_notifications_that_cannot_be_are_refused() -> None:
    for kinds in ((), ("works",), "settle"):
        with pytest.raises(InvalidSettings, match="kinds of notices"):
            RedisNotifier(kinds=kinds)  # type: ignore[arg-type]
    wrong_names: list[Any] = [(), "", {""}, {7}, {Pack}]
    for names in wrong_names:
        with pytest.raises(InvalidSettings, match="give wire names of commands"):
            RedisNotifier(kinds={"settled"}, settled=names)
    with pytest.raises(InvalidSettings, match="the kind 'settled' is not told"):
        RedisNotifier(settled={"Pack"})
    for ttl in (0.0, 0.5, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidSettings, match="hint_ttl"):
            RedisNotifier(hint_ttl=ttl)
    client: Any = Broken()
    for prefix in ("", "shop.", ".shop", "shop..eu", "shop eu", "shop.*", "shop.>", "x" * 101, "caf\u00e9"):
        with pytest.raises(InvalidSettings, match="prefix"):
            NatsNotifier(client, prefix=prefix)
    with pytest.raises(InvalidSettings, match=r"nats\.connect"):
        NatsNotifier("nats://localhost")  # type: ignore[arg-type]
    async with in_memory(None) as bus:
        with pytest.raises(InvalidSettings, match="notifier=RedisNotifier"):
            async with bus.notifier.listen("work"):
                pass
        with pytest.raises(InvalidSettings, match="notifier=RedisNotifier"):
            await bus.notifier.consume_hint("order")
    async with in_memory(RedisNotifier()) as bus:
        with pytest.raises(InvalidSettings, match="kinds of notices"):
            bus.notifier.listen("works")  # type: ignore[call-overload]
        for wrong in ("or:der", ALL_TYPES, ""):
            with pytest.raises(InvalidCommand, match="entity type"):
                bus.notifier.listen("work", types={wrong})
            with pytest.raises(InvalidCommand, match="entity type"):
                await bus.notifier.consume_hint(wrong)
