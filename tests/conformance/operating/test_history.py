"""The history: every end of a command that asked for it is kept, once, and read by its id or by a search; nothing of any other."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from command_bus import (
    BadResult,
    Command,
    CommandBus,
    CommandCancelled,
    CommandFailed,
    CommandRejected,
    EntityId,
    EntityPolicy,
    Envelope,
    History,
    InvalidSettings,
    Reject,
    RetryPolicy,
    Unique,
)
from command_bus.admin.history import HistoryEntry
from tests.conformance.conftest import Sandbox

ONCE = RetryPolicy(attempts=1)


class Charge(Command[int], entity="account", history="30 days", retry=ONCE):
    account: EntityId
    cents: int = 0


class Parked(Command[int], entity="account", history=History("1 h", payload=True), retry=ONCE, on_poison="park"):
    account: EntityId
    cents: int = 0


class Quiet(Command[int], entity="account", retry=ONCE):
    account: EntityId


class Silent(Command[int], entity="account", history=False, retry=ONCE):
    account: EntityId


def registered(sandbox: Sandbox) -> None:
    async def handle(command: Any) -> int:
        cents = getattr(command, "cents", 1)
        if cents == 0:
            raise Reject("nothing to charge", code="empty")
        if cents < 0:
            raise ValueError("below zero")
        return int(cents) + 1

    for kind in (Charge, Parked, Quiet, Silent):
        sandbox.registry.handles(kind)(handle)


async def keys_of_history(sandbox: Sandbox) -> list[str]:
    return [key for key in await sandbox.keys() if ":history" in key]


async def all_of(bus: CommandBus, **filters: Any) -> list[HistoryEntry]:
    page = await bus.history.search(**filters)
    assert not page.cut
    assert page.cursor is None
    return list(page.entries)


@pytest.mark.promise("One end in the history")
async def test_the_step_that_settles_keeps_the_end(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with sandbox.bus() as bus, bus.worker() as worker:
        await bus.dispatch(Charge(account="a-1", cents=5), command_id="c-1")
        await bus.dispatch(Charge(account="a-1", cents=0), command_id="c-2")
        await bus.dispatch(Charge(account="a-1", cents=-1), command_id="c-3")
        assert await bus.call(Charge(account="a-1", cents=7), command_id="c-4") == 8
        generated = await bus.dispatch(Charge(account="a-2", cents=6))
        await bus.wait_idle(10)
        done, refused, failed, called = [await bus.history.get(f"c-{number}") for number in range(1, 5)]
        assert done is not None
        assert refused is not None
        assert failed is not None
        assert called is not None
        assert (done.status, done.reply, done.error, done.attempts, done.worker) == ("completed", 6, None, 1, worker.name)
        assert (done.name, done.entity_type, done.entity_id, done.payload) == ("Charge", "account", "a-1", None)
        assert 0 < done.accepted_ms <= done.started_ms <= done.settled_ms
        assert (refused.status, refused.reply) == ("rejected", None)
        assert isinstance(refused.error, CommandRejected)
        assert refused.error.code == "empty"
        assert failed.status == "dead_lettered"
        assert isinstance(failed.error, CommandFailed)
        assert called.reply == 8
        found = await bus.history.get(generated.command_id)
        assert found is not None
        assert found.reply == 7
        assert await bus.history.get("unknown") is None
        assert (await bus.stats()).history == 5


@pytest.mark.promise("One end in the history")
async def test_without_a_history_nothing_is_written(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Quiet(account="a-1"), command_id="c-1")
        assert await bus.call(Quiet(account="a-1"), command_id="c-2") == 2
        await bus.dispatch(Charge(account="a-1", cents=5), command_id="c-3", history=False)
        await bus.wait_idle(10)
        assert await bus.history.get("c-1") is None
    assert await keys_of_history(sandbox) == []


async def test_dispatch_class_entity_type_and_bus_in_this_order(sandbox: Sandbox) -> None:
    registered(sandbox)
    policies = {"account": EntityPolicy(history="1 h")}
    async with aclosing(sandbox.client()) as client, sandbox.bus(entities=policies, history="2 h") as bus, bus.worker():
        await bus.dispatch(Charge(account="a", cents=1), command_id="class")
        await bus.dispatch(Charge(account="a", cents=1), command_id="dispatch", history=History("5 m", 10))
        await bus.dispatch(Quiet(account="a"), command_id="type")
        await bus.dispatch(Silent(account="a"), command_id="none")
        await bus.dispatch_raw("account", "a", "Quiet", {"account": "a"}, command_id="raw")
        await bus.dispatch_raw("account", "a", "Quiet", {"account": "a"}, command_id="raw none", history=False)
        await bus.dispatch_batch([Quiet(account="a"), Envelope(Quiet(account="a"), "batch", history=False)])
        await bus.wait_idle(10)
        entries = await client.xrange(bus.transport.keys.shards[0].history)  # type: ignore[attr-defined]
        ages = [(fields[b"i"].decode(), int(fields[b"a"]), int(fields[b"n"])) for _, fields in entries]
    hour = 3_600_000
    assert ages[:4] == [
        ("class", 720 * hour, 100_000),
        ("dispatch", 300_000, 10),
        ("type", hour, 100_000),
        ("raw", hour, 100_000),
    ]
    assert [age[1:] for age in ages[4:]] == [(hour, 100_000)]


@pytest.mark.promise("One end in the history")
async def test_what_operators_end_is_kept_too(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with sandbox.bus() as bus:
        for number in range(3):
            await bus.dispatch(Charge(account="a-1", cents=1), command_id=f"c-{number}")
        await bus.dispatch(Charge(account="a-1", cents=1), command_id="later", delay=100)
        await bus.dispatch(Charge(account="a-1", cents=1), command_id="old", expires=0.001)
        assert await bus.cancel("c-1")
        assert await bus.cancel("later")
        async with bus.worker():
            await bus.wait_idle(10)
        await bus.dispatch(Charge(account="a-2", cents=1), command_id="purged")
        assert await bus.entity("account", "a-2").purge() == 1
        ends = {entry.command_id: entry for entry in await all_of(bus)}
    assert {name: entry.status for name, entry in ends.items()} == {
        "c-0": "completed",
        "c-1": "cancelled",
        "c-2": "completed",
        "later": "cancelled",
        "old": "expired",
        "purged": "cancelled",
    }
    cancelled = ends["c-1"]
    assert isinstance(cancelled.error, CommandCancelled)
    assert (cancelled.attempts, cancelled.worker, cancelled.started_ms) == (0, "", 0)
    assert cancelled.accepted_ms > 0
    assert ends["later"].accepted_ms == 0


@pytest.mark.promise("One end in the history")
async def test_a_letter_leaves_one_end(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with sandbox.bus() as bus, bus.worker() as worker:
        for name in ("replayed", "discarded"):
            await bus.dispatch(Parked(account=name, cents=-1), command_id=name)
        await bus.dispatch(Charge(account="again", cents=-1), command_id="again")
        await _until_letters(bus, 3)
        parked = await bus.history.get("replayed")
        assert parked is not None
        assert (parked.status, parked.payload) == ("parked", {"account": "replayed", "cents": -1})
        async for letter in bus.dead_letters.list():
            if letter.command_id == "discarded":
                await bus.dead_letters.discard(letter.id)
            else:
                payload = {"account": letter.command_id, "cents": 3}
                await bus.dead_letters.replay(letter.id, payload=payload)
        await bus.wait_idle(10)
        ends = {entry.command_id: entry for entry in await all_of(bus)}
        assert (await bus.stats()).history == 3
    assert {name: entry.status for name, entry in ends.items()} == {
        "replayed": "completed",
        "again": "completed",
        "discarded": "discarded",
    }
    discarded = ends["discarded"]
    assert (discarded.attempts, discarded.worker) == (1, worker.name)
    assert 0 < discarded.accepted_ms <= discarded.started_ms <= discarded.settled_ms
    assert ends["replayed"].payload == {"account": "replayed", "cents": 3}


async def _until_letters(bus: CommandBus, count: int) -> None:
    async with asyncio.timeout(10):
        while (await bus.stats()).dead_letters < count:
            await asyncio.sleep(0.01)


async def test_one_that_is_replaced_has_ended(sandbox: Sandbox) -> None:
    registered(sandbox)
    latest = Unique("k", wins="latest")
    async with sandbox.bus() as bus:
        await bus.dispatch(Charge(account="a", cents=1), unique=latest, command_id="c-1")
        await bus.dispatch(Charge(account="a", cents=2), unique=latest, command_id="c-2", history=False)
        await bus.dispatch(Charge(account="a", cents=3), unique=latest, command_id="c-3")
        await bus.dispatch(Charge(account="a", cents=4), unique=latest, command_id="c-4", delay=100)
        await bus.dispatch(Charge(account="a", cents=5), unique=latest, command_id="c-5")
        async with bus.worker():
            await bus.wait_idle(10)
        entries = {entry.command_id: entry for entry in await all_of(bus)}
    assert {name: entry.status for name, entry in entries.items()} == {
        "c-1": "superseded",
        "c-3": "superseded",
        "c-4": "superseded",
        "c-5": "completed",
    }
    assert isinstance(entries["c-1"].error, CommandCancelled)
    assert entries["c-1"].error.code == "superseded"
    assert (entries["c-1"].name, entries["c-1"].entity_id) == ("Charge", "a")
    assert entries["c-1"].accepted_ms > 0
    assert entries["c-4"].accepted_ms == 0


@pytest.mark.promise("One end in the history")
async def test_too_old_and_too_many_go_with_their_ids(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with aclosing(sandbox.client()) as client, sandbox.bus() as bus, bus.worker():
        keys = bus.transport.keys.shards[0]  # type: ignore[attr-defined]
        for number in range(9):
            await bus.call(Charge(account="a", cents=1), command_id=f"c-{number}", history=History("1 h", 3))
        assert [entry.command_id for entry in await all_of(bus)] == ["c-8", "c-7", "c-6"]
        assert sorted(await client.hkeys(keys.history_ids)) == [b"c-6", b"c-7", b"c-8"]
        assert 0 < await client.pttl(keys.history) <= 3_600_000
        assert 0 < await client.pttl(keys.history_ids) <= 3_600_000
        await bus.call(Charge(account="a", cents=1), command_id="short", history=History(0.05))
        assert await client.pttl(keys.history) > 3_000_000, "a shorter one ends nothing"
        await asyncio.sleep(0.06)
        assert await bus.history.get("short") is None
        assert "short" not in [entry.command_id for entry in await all_of(bus)]
        for number in range(4):
            await bus.call(Charge(account="a", cents=1), command_id=f"d-{number}", history=History("1 h", 3))
        assert await client.xlen(keys.history) == 3
        assert await client.hlen(keys.history_ids) == 3


async def test_an_append_deletes_two_that_are_over(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with aclosing(sandbox.client()) as client, sandbox.bus() as bus, bus.worker():
        keys = bus.transport.keys.shards[0]  # type: ignore[attr-defined]
        await asyncio.gather(*(bus.call(Charge(account=f"a-{n}", cents=1), history=History(1.5)) for n in range(5)))
        await bus.call(Charge(account="a", cents=1), history="1 h")
        assert await client.xlen(keys.history) == 6
        await asyncio.sleep(1.51)
        for left in (5, 4, 4):
            await bus.call(Charge(account="a", cents=1), history="1 h")
            assert await client.xlen(keys.history) == await client.hlen(keys.history_ids) == left


async def test_a_large_number_is_not_cut_by_a_smaller_one(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with sandbox.bus() as bus, bus.worker():
        for number in range(5):
            await bus.call(Charge(account="a", cents=1), command_id=f"many-{number}", history=History("1 h", 100))
        for number in range(3):
            await bus.call(Charge(account="a", cents=1), command_id=f"few-{number}", history=History("1 h", 1))
        assert len(await all_of(bus, limit=50)) == 8


async def test_search_filters_and_pages_newest_first(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with sandbox.bus(shards=3) as bus, bus.worker():
        for number in range(1, 30):
            await bus.call(Charge(account=f"a-{number % 7}", cents=number), command_id=f"c-{number}")
        middle = await bus.history.get("c-15")
        assert middle is not None
        everything = await all_of(bus)
        ids = [entry.command_id for entry in everything]
        assert sorted(ids) == sorted(f"c-{number}" for number in range(1, 30))
        ended = [entry.settled_ms for entry in everything]
        assert ended == sorted(ended, reverse=True)
        found = await all_of(bus, entity=("account", "a-3"))
        assert [entry.command_id for entry in found] == ["c-24", "c-17", "c-10", "c-3"]
        since, until = middle.settled_at, middle.settled_at + timedelta(milliseconds=1)
        assert "c-15" in [entry.command_id for entry in await all_of(bus, since=since, until=until)]
        assert "c-15" not in [entry.command_id for entry in await all_of(bus, until=since)]
        assert await all_of(bus, name="Other") == []
        assert await all_of(bus, entity_type="other") == []
        assert await all_of(bus, status="rejected") == []
        assert len(await all_of(bus, status="completed", entity_type="account", name="Charge")) == 29
        assert await all_of(bus, since=datetime.now(UTC) + timedelta(hours=1)) == []
        pages, cursor = [], None
        while True:
            page = await bus.history.search(limit=4, cursor=cursor)
            pages += [entry.command_id for entry in page.entries]
            assert not page.cut
            cursor = page.cursor
            if cursor is None:
                break
        assert pages == ids
        cut = await bus.history.search(name="Other", scan=10)
        assert cut.cut
        assert cut.entries == ()
        rest = await bus.history.search(cursor=cut.cursor)
        assert [entry.command_id for entry in rest.entries] == ids[10:]


@pytest.mark.parametrize(
    "filters", [{"until": datetime(1970, 1, 1, tzinfo=UTC)}, {"until": datetime(1900, 1, 1, tzinfo=UTC)}, {"cursor": "0-0-0"}]
)
@pytest.mark.parametrize("shards", [1, 2])
async def test_nothing_stands_before_the_first_moment(sandbox: Sandbox, filters: dict[str, Any], shards: int) -> None:
    registered(sandbox)
    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.call(Charge(account="a-1", cents=1), timeout=10)
        page = await bus.history.search(**filters)
    assert (page.entries, page.cut, page.cursor) == ((), False, None)


@pytest.mark.parametrize(
    ("filters", "named"),
    [
        ({"status": "finished"}, "dead_lettered"),
        ({"limit": 0}, "limit"),
        ({"scan": 0}, "scan"),
        ({"cursor": "here"}, "cursor"),
        ({"entity": "a-1"}, "entity="),
        ({"entity": ("account", "")}, "entity id"),
        ({"entity_type": "a b"}, "entity type"),
        ({"entity": ("account", "a-1"), "entity_type": "account"}, "entity or entity_type"),
    ],
)
async def test_120_wrong_filters_are_refused(sandbox: Sandbox, filters: dict[str, Any], named: str) -> None:
    async with sandbox.bus() as bus:
        with pytest.raises(InvalidSettings, match=named):
            await bus.history.search(**filters)


async def test_a_dispatch_with_a_wrong_history_is_refused(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        for wrong in ("soon", True, 30):
            with pytest.raises(InvalidSettings, match="30 days"):
                await bus.dispatch(Quiet(account="a"), history=wrong)  # type: ignore[arg-type]
        assert (await bus.stats()).accepted == 0


class Cipher:
    """Turns bytes around, and checks what they are bound to."""

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        return aad[::-1] + data[::-1]

    def decrypt(self, data: bytes, aad: bytes) -> bytes:
        assert data.startswith(aad[::-1])
        return data[len(aad) :][::-1]


async def test_what_is_encrypted_stays_so(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with aclosing(sandbox.client()) as client, sandbox.bus(cipher=Cipher()) as bus, bus.worker():
        await bus.dispatch(Parked(account="secret-account", cents=77), command_id="c-1")
        await bus.wait_idle(10)
        entry = await bus.history.get("c-1")
        assert entry is not None
        assert (entry.reply, entry.payload) == (78, {"account": "secret-account", "cents": 77})
        keys = bus.transport.keys.shards[0]  # type: ignore[attr-defined]
        entries: Any = await client.xrange(keys.history)
        assert len(entries) == 1
        assert b"cents" not in entries[0][1][b"r"]
    async with sandbox.bus() as other:
        entry = await other.history.get("c-1")
        assert entry is not None
        assert isinstance(entry.error, BadResult)
        assert (entry.reply, entry.payload, entry.status) == (None, None, "completed")


async def test_121_entries_of_others_do_no_harm(sandbox: Sandbox) -> None:
    registered(sandbox)
    async with aclosing(sandbox.client()) as client, sandbox.bus() as bus, bus.worker():
        keys = bus.transport.keys.shards[0]  # type: ignore[attr-defined]
        await client.xadd(keys.history, {"x": "y"})
        await client.hset(keys.history_ids, "c-9", "no id")
        assert await bus.call(Charge(account="a", cents=1), command_id="c-1") == 2
        assert [entry.command_id for entry in await all_of(bus)] == ["c-1"]
        assert await bus.history.get("c-9") is None
        await client.delete(keys.history)
        await client.set(keys.history, "text")
        assert await bus.call(Charge(account="a", cents=1), command_id="c-2") == 2, "a key of another type stops no settlement"


async def test_the_extent_of_a_history_is_that_of_each_shard(sandbox: Sandbox) -> None:
    """`doctor` asks for it."""
    registered(sandbox)
    async with sandbox.bus(shards=2) as bus, bus.worker():
        for number in range(20):
            await bus.call(Charge(account=f"a-{number}", cents=1), history=History("1 h", 100 + number))
        extents = await bus.session.transport.operator.history.extents(3)
        ends = {entry.settled_ms for entry in await all_of(bus, limit=50)}
    assert [each.shard for each in extents] == [0, 1]
    assert sum(each.ends for each in extents) == 20
    oldest = [bounds for each in extents for bounds in each.oldest]
    assert len(oldest) == 6
    assert {bounds.age_ms for bounds in oldest} == {3_600_000}
    assert 100 in {bounds.number for bounds in oldest}
    assert {bounds.settled_ms for bounds in oldest} <= ends
    for each in extents:
        assert list(each.oldest) == sorted(each.oldest)
        assert 0 <= each.now_ms - each.oldest[0].settled_ms < 60_000
