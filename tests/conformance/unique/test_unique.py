"""Unique keys: repeated triggers of an entity are folded, the first or the latest wins, and no key outlives what it is for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandCancelled,
    EntityId,
    EntityPolicy,
    Envelope,
    HandlerRegistry,
    InvalidCommand,
    QueueFull,
    RetryPolicy,
    Unique,
    UniqueKeyTaken,
    lanes,
)
from command_bus.transport.redis.maintenance.upkeep import sweep_page
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

pytestmark = pytest.mark.server

LATEST = Unique("k", wins="latest")
FIRST = Unique("k")


class Save(Command[int], entity="doc", retry=RetryPolicy(attempts=2, delay=0.2, jitter=0.0, give_up_on=(KeyError,))):
    doc: EntityId
    n: int = 0


class Reindex(Command[int], entity="doc", unique=Unique(wins="latest", until="started")):
    doc: EntityId
    n: int = 0


class Service:
    """A bus with handlers that a test holds, and what they ran."""

    def __init__(self, bus: CommandBus, sandbox: Sandbox) -> None:
        self.bus, self.sandbox = bus, sandbox
        self.ran: list[int] = []
        self.fail: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def handle(self, command: Any) -> int:
        self.ran.append(command.n)
        await self.gate.wait()
        if command.n in self.fail:
            raise RuntimeError("as asked")
        return int(command.n)

    async def send(self, n: int, unique: Unique | None = LATEST, **options: Any) -> Any:
        return await self.bus.dispatch(Save(doc="d", n=n), unique=unique, **options)

    async def keys(self) -> dict[str, str]:
        """Return the unique keys that are stored, with who holds them."""
        keys = self.bus.transport.keys.shards[0]  # type: ignore[attr-defined]
        client = self.sandbox.client()
        try:
            found: Any = await client.hgetall(keys.unique)  # type: ignore[misc]
        finally:
            await client.aclose()
        return {key.decode(): value.decode().rpartition("|")[2] for key, value in found.items()}

    async def runs(self, count: int) -> None:
        await until(lambda: len(self.ran) >= count)


@pytest.fixture
async def service(sandbox: Sandbox) -> AsyncIterator[Service]:
    registry = HandlerRegistry()
    async with sandbox.bus(registry=registry) as bus:
        service = Service(bus, sandbox)
        registry.handles(Save)(_handler(service, Save))
        registry.handles(Reindex)(_handler(service, Reindex))
        yield service


def _handler(service: Service, kind: type[Any]) -> Callable[..., Awaitable[int]]:
    async def handle(command: Any) -> int:
        return await service.handle(command)

    handle.__annotations__ = {"command": kind, "return": int}
    return handle


# What the receipt says.


async def test_the_first_wins_until_it_is_settled(service: Service) -> None:
    first = await service.send(1, FIRST)
    assert (first.status, first.other) == ("accepted", None)
    dropped = await service.send(2, FIRST)
    assert (dropped.status, dropped.other) == ("duplicate", first.command_id)
    service.gate.clear()
    async with service.bus.worker():
        await service.runs(1)
        assert (await service.send(3, FIRST)).other == first.command_id, "it runs, so its key is held"
        service.gate.set()
        await service.bus.wait_idle(5)
        assert (await service.send(4, FIRST)).status == "accepted"
        await service.bus.wait_idle(5)
    assert service.ran == [1, 4]
    assert await service.keys() == {}
    assert (await service.bus.stats()).folded == 2


async def test_until_started_one_waits_beside_the_one_that_runs(service: Service) -> None:
    waits = Unique("k", until="started")
    service.gate.clear()
    async with service.bus.worker():
        await service.send(1, waits)
        await service.runs(1)
        second = await service.send(2, waits)
        assert second.status == "accepted"
        assert (await service.send(3, waits)).other == second.command_id
        service.gate.set()
        await service.bus.wait_idle(5)
    assert service.ran == [1, 2]
    assert await service.keys() == {}


async def test_the_latest_replaces_the_one_that_waits_and_joins_the_tail(service: Service) -> None:
    first = await service.send(1)
    await service.send(2, None)
    third = await service.send(3)
    assert (third.status, third.other) == ("replaced", first.command_id)
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert service.ran == [2, 3]
    assert await service.keys() == {}
    assert (await service.bus.stats()).superseded == 1


async def test_what_runs_is_not_touched_and_one_waits_beside_it(service: Service) -> None:
    service.gate.clear()
    async with service.bus.worker():
        await service.send(1)
        await service.runs(1)
        assert (await service.send(2)).status == "accepted"
        assert (await service.send(3)).status == "replaced"
        service.gate.set()
        await service.bus.wait_idle(5)
    assert service.ran == [1, 3]


async def test_a_command_that_was_read_ahead_is_not_run_once_it_is_replaced(service: Service) -> None:
    service.gate.clear()
    for n, unique in ((1, None), (2, None), (3, LATEST), (4, None)):
        await service.send(n, unique)
    async with service.bus.worker():
        await service.runs(1)
        assert (await service.send(5)).status == "replaced"
        service.gate.set()
        await service.bus.wait_idle(5)
    assert service.ran == [1, 2, 4, 5]


@pytest.mark.parametrize("unique", [LATEST, Unique("k", until="started")])
async def test_a_head_that_waits_for_a_retry_counts_as_running(service: Service, unique: Unique) -> None:
    service.fail = {1}
    async with service.bus.worker():
        await service.send(1, unique)
        await service.send(9, None)
        await until(lambda: 1 in service.ran)
        await until(lambda: _state(service, "retrying"))
        assert (await service.send(2, unique)).status == "accepted"
        assert (await service.send(3, unique)).status == ("replaced" if unique is LATEST else "duplicate")
        service.fail = set()
        await service.bus.wait_idle(5)
    assert service.ran == [1, 1, 9, 3 if unique is LATEST else 2]
    assert await service.keys() == {}


async def _state(service: Service, state: str) -> bool:
    return (await service.bus.entity("doc", "d").show()).entity.state == state


async def test_a_class_has_its_key_by_its_wire_name(service: Service) -> None:
    sent = [await service.bus.dispatch(Reindex(doc=doc, n=n)) for n, doc in enumerate("aabb")]
    assert [each.status for each in sent] == ["accepted", "replaced"] * 2
    assert set(await service.keys()) == {"doc:a:Reindex", "doc:b:Reindex"}
    raw = await service.bus.dispatch_raw("doc", "a", "Reindex", {"doc": "a", "n": 7}, unique=LATEST)
    assert raw.status == "accepted", "without the class the key is what the dispatch says"
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert sorted(service.ran) == [1, 3, 7]


# Callers.


@pytest.mark.promise("One waits per key")
async def test_a_replaced_caller_is_told_at_once(service: Service) -> None:
    call = asyncio.create_task(service.bus.call(Reindex(doc="d", n=1), timeout=60, command_id="c-1"))
    await until(service.keys)
    later = await service.bus.dispatch(Reindex(doc="d", n=2))
    assert later.other == "c-1"
    with pytest.raises(CommandCancelled, match=later.command_id) as told:
        await asyncio.wait_for(call, 5)
    assert (told.value.code, told.value.command_id) == ("superseded", "c-1")
    with pytest.raises(CommandCancelled) as again:
        await service.bus.result("c-1", Reindex, timeout=0)
    assert again.value.code == "superseded"


async def test_the_result_of_a_folded_dispatch_is_that_of_the_other(service: Service) -> None:
    first = await service.send(5, FIRST, keep_result=True)
    folded = await service.send(6, FIRST, keep_result=True)
    async with service.bus.worker():
        assert await folded.result(timeout=5) == await first.result(timeout=5) == 5


async def test_a_call_that_is_folded_says_so(service: Service) -> None:
    class Poll(Command[int], entity="doc", unique=Unique()):
        doc: EntityId

    first = await service.bus.dispatch(Poll(doc="d"))
    with pytest.raises(UniqueKeyTaken, match=first.command_id) as taken:
        await service.bus.call(Poll(doc="d"), timeout=60)
    assert (taken.value.other, taken.value.retryable) == (first.command_id, True)


async def test_a_given_id_is_still_known(service: Service) -> None:
    await service.send(1, command_id="c-1")
    assert (await service.send(1, command_id="c-1")).status == "duplicate"
    assert (await service.send(2, command_id="c-2")).other == "c-1"
    again = await service.send(1, command_id="c-1")
    assert (again.status, again.other) == ("duplicate", None), "it was replaced: it is not run after all"


# Windows, delays, debounce.


async def test_a_window_holds_the_key_though_the_command_is_settled(service: Service) -> None:
    window = Unique("k", window=1.0)
    async with service.bus.worker():
        first = await service.send(1, window)
        await service.bus.wait_idle(5)
        assert (await service.send(2, window)).other == first.command_id
        assert await service.keys() != {}
        await until(lambda: _accepted(service, window))
        await service.bus.wait_idle(5)
    assert service.ran == [1, 3]
    await until(lambda: _swept(service))


async def _accepted(service: Service, unique: Unique) -> bool:
    return (await service.send(3, unique)).status == "accepted"


async def _swept(service: Service) -> bool:
    transport: Any = service.bus.transport
    keys = transport.keys.shards[0]
    await sweep_page(transport.connections.at(keys.prefix), keys, 0)
    return await service.keys() == {}


async def test_a_delayed_command_stands_for_its_key_before_and_after_it_is_due(service: Service) -> None:
    first = await service.send(1, FIRST, delay=0.1)
    assert (await service.send(2, FIRST)).other == first.command_id
    entity = service.bus.entity("doc", "d")
    await entity.pause()
    async with service.bus.worker():
        await until(lambda: _state(service, "paused"))
        await until(lambda: _lined_up(service))
        assert (await service.send(3, FIRST)).other == first.command_id
        await entity.resume()
        await service.bus.wait_idle(5)
    assert service.ran == [1]
    assert await service.keys() == {}


async def _lined_up(service: Service) -> bool:
    return (await service.bus.stats()).delayed == 0


async def test_debounce_puts_the_command_off_and_the_latest_payload_wins(service: Service) -> None:
    quiet = Unique("k", wins="latest", debounce=0.4)
    async with service.bus.worker():
        statuses = []
        for n in range(4):
            statuses.append((await service.send(n, quiet)).status)
            await asyncio.sleep(0.05)
        assert statuses == ["accepted", "replaced", "replaced", "replaced"]
        assert service.ran == []
        await service.runs(1)
        await service.bus.wait_idle(5)
    assert service.ran == [3]
    assert await service.keys() == {}


@pytest.mark.promise("One waits per key")
async def test_max_wait_bounds_a_storm(service: Service) -> None:
    storm = Unique("k", wins="latest", debounce=0.5, max_wait=0.8)
    loop = asyncio.get_running_loop()
    async with service.bus.worker():
        began, n = loop.time(), 0
        while not service.ran and loop.time() < began + 5:
            await service.send(n, storm)
            n += 1
            await asyncio.sleep(0.02)
        assert service.ran, "it was put off for as long as the storm lasted"
        assert loop.time() - began < 3
        last = n - 1
        await until(lambda: service.ran[-1] == last)
        await service.bus.wait_idle(5)
    assert await service.keys() == {}


async def test_one_that_cannot_be_put_off_any_more_keeps_its_place(service: Service) -> None:
    storm = Unique("k", wins="latest", debounce=0.1, max_wait=0.1)
    entity = service.bus.entity("doc", "d")
    await service.send(0, None)
    await entity.pause()
    async with service.bus.worker():
        await service.send(1, storm)
        await until(lambda: _lined_up(service))
        await asyncio.sleep(0.15)
        assert (await service.send(2, storm)).status == "accepted", "the first one keeps its place"
        await entity.resume()
        await service.bus.wait_idle(5)
    assert service.ran == [0, 1, 2]
    assert await service.keys() == {}


async def test_debounce_leaves_the_line_when_it_comes_again(service: Service) -> None:
    quiet = Unique("k", wins="latest", debounce=0.2)
    entity = service.bus.entity("doc", "d")
    await entity.pause()
    async with service.bus.worker():
        first = await service.send(1, quiet)
        await until(lambda: _lined_up(service))
        assert (await service.send(2, quiet)).other == first.command_id
        assert await entity.depth() == 1
        await entity.resume()
        await service.bus.wait_idle(5)
    assert service.ran == [2]
    assert await service.sandbox.entity_keys() == []


# Batches and limits.


async def test_a_batch_with_repeats_inside(service: Service) -> None:
    def save(n: int, unique: Unique | None) -> Envelope[Save]:
        return Envelope(Save(doc="d", n=n), unique=unique)

    result = await service.bus.dispatch_batch(
        [save(1, LATEST), save(2, None), save(3, LATEST), save(4, Unique("other")), save(5, Unique("other")), save(6, None)]
    )
    outcomes = result.outcomes
    assert [each.status for each in outcomes] == ["accepted", "accepted", "replaced", "accepted", "duplicate", "accepted"]
    assert (outcomes[2].other, outcomes[4].other) == (outcomes[0].command_id, outcomes[3].command_id)
    assert (result.accepted, result.replaced, result.duplicates, result.rejected) == (5, 1, 1, 0)
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert service.ran == [2, 3, 4, 6]


async def test_many_senders_at_once_leave_one(service: Service) -> None:
    receipts = await asyncio.gather(*(service.send(n) for n in range(50)))
    assert [each.status for each in receipts].count("accepted") == 1
    assert [each.other for each in receipts[1:]] == [each.command_id for each in receipts[:-1]]
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert service.ran == [49]


async def test_replacing_needs_no_room(sandbox: Sandbox) -> None:
    async with sandbox.bus(max_depth=1) as bus:
        for status in ("accepted", "replaced"):
            assert (await bus.dispatch(Save(doc="d"), unique=LATEST)).status == status
        assert (await bus.dispatch(Save(doc="d"), unique=LATEST)).status == "replaced"
        with pytest.raises(QueueFull):
            await bus.dispatch(Save(doc="d"), unique=Unique("another"))
        assert (await bus.dispatch(Save(doc="d"), unique=Unique("k"))).status == "duplicate"
        assert await bus.entity("doc", "d").depth() == 1


async def test_entities_of_a_lane_have_keys_of_their_own(sandbox: Sandbox) -> None:
    async with sandbox.bus(entities={"doc": EntityPolicy(mailbox=lanes(1))}) as bus:
        assert [(await bus.dispatch(Reindex(doc=doc))).status for doc in ("a", "b", "a")] == ["accepted", "accepted", "replaced"]
        assert await bus.entity("doc", "b").forget("Reindex")
        assert await bus.entity("doc", "a").purge() == 1
        assert not await bus.entity("doc", "a").forget("Reindex")


# No key stays behind.


async def test_cancelling_and_purging_release_the_key(service: Service) -> None:
    first = await service.send(1, FIRST, command_id="c-1")
    assert await service.bus.cancel(first.command_id)
    assert await service.keys() == {}
    assert (await service.send(2, Unique("k", window=60))).status == "accepted"
    assert (await service.send(3, Unique("later"), delay=60)).status == "accepted"
    assert await service.bus.entity("doc", "d").purge() == 2
    assert await service.keys() == {}
    assert await service.sandbox.entity_keys() == []


async def test_a_dead_letter_releases_the_key_and_its_replay_takes_it_again(service: Service) -> None:
    service.fail = {1}
    async with service.bus.worker():
        await service.send(1, FIRST)
        await service.bus.wait_idle(5)
    assert await service.keys() == {}
    (letter,) = [each async for each in service.bus.dead_letters.list()]
    replayed = await service.bus.dead_letters.replay(letter.id)
    assert list(await service.keys()) == ["doc:d:k"]
    assert (await service.send(2, FIRST)).other == replayed
    service.fail = set()
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert await service.keys() == {}


async def test_89_a_replay_whose_key_is_taken_waits_beside_the_other(service: Service) -> None:
    service.fail = {1}
    async with service.bus.worker():
        await service.send(1)
        await service.bus.wait_idle(5)
    service.fail = set()
    (letter,) = [each async for each in service.bus.dead_letters.list()]
    other = await service.send(2)
    await service.bus.dead_letters.replay(letter.id)
    assert list((await service.keys()).values()) == [other.command_id]
    assert (await service.send(3)).other == other.command_id
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert service.ran[-2:] == [1, 3]
    assert await service.keys() == {}


@pytest.mark.parametrize("how", ["discard", "replay"])
async def test_a_parked_command_holds_its_key_until_an_operator_decides(sandbox: Sandbox, how: str) -> None:
    registry = HandlerRegistry()
    failing = True

    @registry.handles(Save)
    async def save(command: Save) -> int:
        if failing:
            raise KeyError("no")
        return command.n

    async with sandbox.bus(registry=registry, entities={"doc": EntityPolicy(on_poison="park")}) as bus:
        service = Service(bus, sandbox)
        async with bus.worker():
            parked = await service.send(1, FIRST)
            await until(lambda: _state(service, "parked"))
            assert (await service.send(2, FIRST)).other == parked.command_id
            failing = False
            (letter,) = [each async for each in bus.dead_letters.list()]
            await getattr(bus.dead_letters, how)(letter.id)
            await bus.wait_idle(5)
        assert await service.keys() == {}


async def test_a_key_can_be_forgotten(service: Service) -> None:
    entity = service.bus.entity("doc", "d")
    await service.send(1, FIRST)
    assert await entity.forget("k")
    assert not await entity.forget("k")
    assert (await service.send(2, FIRST)).status == "accepted"
    async with service.bus.worker():
        await service.bus.wait_idle(5)
    assert service.ran == [1, 2]
    with pytest.raises(InvalidCommand, match="empty"):
        await entity.forget("")


async def test_the_view_names_the_keys(service: Service) -> None:
    await service.send(1, None)
    await service.send(2, FIRST)
    await service.send(3, Unique("later"), delay=60)
    found = await service.bus.entity("doc", "d").show()
    assert found.head is not None
    assert [each.unique for each in (found.head, *found.waiting)] == [None, "k", "later"]


async def test_events_tell_of_the_one_that_was_replaced(service: Service) -> None:
    await service.bus.events.watch("doc")
    first, second = await service.send(1), await service.send(2)
    events = [each async for each in service.bus.events(after="", follow=False)]
    assert [(each.kind, each.command_id, each.name, each.entity) for each in events] == [
        ("accepted", first.command_id, "Save", "doc:d"),
        ("accepted", second.command_id, "Save", "doc:d"),
        ("superseded", first.command_id, "Save", "doc:d"),
    ]
    await service.bus.events.unwatch("doc")
