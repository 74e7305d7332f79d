"""The unique keys that an entity holds, as operators see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import Command, EntityId, EntityPolicy, Envelope, InvalidSettings, Unique, lanes
from command_bus.transport.redis.admin.mailboxes import state_of
from command_bus.transport.redis.mailbox_record import parse_record
from command_bus.transport.unique_keys import Stander
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness
from tests.conformance.unique import test_unique
from tests.conformance.unique.test_unique import FIRST, Save, Service
from tests.conformance.unique.test_unique_steps import send, submission

pytestmark = pytest.mark.server
service = test_unique.service


class Swim(Command[None], entity="pool"):
    pool: EntityId


async def test_the_keys_that_an_entity_holds_are_listed(service: Service) -> None:
    """Also that of a settled command whose window is open; not those of other entities, whatever their ids look like."""
    bus = service.bus
    done = await service.send(1, Unique("w*[1]", window=300))
    free = await service.send(2, Unique("free"))
    await bus.dispatch(Save(doc="d*", n=0), unique=Unique("other"))
    await bus.dispatch(Save(doc="d:d", n=0), unique=Unique("other"))
    scope = bus.entity("doc", "d")
    async with bus.worker():
        await bus.wait_idle(10)
        service.gate.clear()
        runs = await service.send(3, Unique("runs"))
        await service.runs(5)
        waits = await service.send(4, Unique("waits", wins="latest"))
        later = await service.send(5, Unique("later", wins="latest", debounce=300, max_wait=600))
        client = service.sandbox.client()
        held: Any = bus.transport.keys.shards[0].unique  # type: ignore[attr-defined]
        await client.hset(held, "doc:d:stale", "1-0|||g||Save|gone")  # type: ignore[misc]
        await client.aclose()
        page = await scope.unique_keys()
        found = {each.key: (each.state, each.command_id) for each in page.keys}
        times = {each.key: (each.window_ms is not None, each.latest_ms is not None) for each in page.keys}
        short = await scope.unique_keys(limit=2)
        service.gate.set()
    assert found == {
        "w*[1]": ("settled", done.command_id),
        "runs": ("started", runs.command_id),
        "waits": ("waiting", waits.command_id),
        "later": ("delayed", later.command_id),
    }, free
    assert times == {"w*[1]": (True, False), "runs": (False, False), "waits": (False, False), "later": (False, True)}
    assert page.complete
    assert {each.name for each in page.keys} == {"Save"}
    assert ([each.key for each in short.keys], short.complete) == (["later", "runs"], False)
    assert (await bus.entity("doc", "unknown").unique_keys()).keys == []


async def test_a_listing_of_keys_ends_with_its_scan(service: Service) -> None:
    await service.bus.dispatch_batch(Envelope(Save(doc=f"e{n}", n=n), unique=Unique("k")) for n in range(3000))
    page = await service.bus.entity("doc", "e1").unique_keys(scan=500)
    assert not page.complete
    assert len((await service.bus.entity("doc", "e1").unique_keys()).keys) == 1


async def test_a_command_that_waits_for_a_retry_still_holds_its_key_as_started(service: Service) -> None:
    service.fail = {1}
    async with service.bus.worker():
        await service.send(1, FIRST)
        await service.runs(1)
        async with asyncio.timeout(10):
            while (await service.bus.entity("doc", "d").show()).entity.state != "retrying":
                await asyncio.sleep(0.01)
        assert [each.state for each in (await service.bus.entity("doc", "d").unique_keys()).keys] == ["started"]


async def test_the_keys_of_an_entity_whose_id_looks_like_a_pattern(service: Service) -> None:
    for doc in ("*", "[de]", "d", "d?"):
        await service.bus.dispatch(Save(doc=doc), unique=Unique(f"of {doc}"))
    for doc in ("*", "[de]", "d", "d?"):
        assert [each.key for each in (await service.bus.entity("doc", doc).unique_keys()).keys] == [f"of {doc}"]


@pytest.mark.parametrize(
    ("record", "state", "late"),
    [
        (b"", "settled", "settled"),
        (b"o|5-0|||0|0|", "settled", "settled"),
        (b"h|9-0|1|5-0|1|7|w", "started", "started"),
        (b"h|9-0|1|4-0|1|7|w", "waiting", "settled"),
        (b"h|9-0|1|6-0|1|7|w", "settled", "settled"),
        (b"w||||1|7||started=5-0", "started", "started"),
        (b"w||||0|7||started=5-0", "started", "settled"),  # given back unrun
        (b"w||||0|-7||started=5-0", "started", "started"),  # replayed, or woken after a snooze
        (b"r||||1|-7|", "waiting", "waiting"),  # of another release: nobody knows whether it is the head
        (b"w||||1|7||started=4-0", "waiting", "settled"),
        (b"r|9-0|||0|0|", "waiting", "settled"),
        (b"r|9-0|||0|0||started=5-0", "waiting", "settled"),
        (b"zz|9-0|||0|0|", "started", "started"),
    ],
)
async def test_where_a_command_is_that_holds_a_key(harness: TransportHarness, record: bytes, state: str, late: str) -> None:
    """Also of one whose deadline has passed: 10 ms behind its place. A dispatch sees it as the list does."""
    keys = {ttl: Stander("5-0", 0, 0, True, "", "Save", "c-1", ttl_ms=ttl) for ttl in (None, 10, 10**15)}
    found = [state_of(stander, parse_record(record or None), 100, delayed=False) for stander in keys.values()]
    assert found == [state, late, state]
    delayed = keys[10]._replace(place="d")
    assert [state_of(delayed, parse_record(record or None), 100, delayed=each) for each in (True, False)] == [
        "delayed",
        "settled",
    ]
    for (ttl, stander), expected in zip(keys.items(), found, strict=True):
        if record:
            await harness.client.hset(harness.shard.active, "box:a", record)  # type: ignore[misc]
        await harness.client.hset(harness.shard.unique, "box:a:k", f"5-0|||{stander.names}")  # type: ignore[misc]
        answer = await send(harness, submission(f"c-{ttl}", FIRST))
        assert (answer == "u") == (expected != "settled"), ttl
        await harness.client.delete(harness.shard.active, harness.shard.mailbox("box:a"))


async def test_the_keys_of_a_namespace_are_listed_page_by_page(sandbox: Sandbox) -> None:
    """Over shards and lanes, each once, in order, of one type or all; not those that nobody holds."""
    settings = {"entities": {"pool": EntityPolicy(mailbox=lanes(2))}, "shards": 4}
    async with sandbox.bus(**settings) as bus:
        names = [f"d{number:03}" for number in range(130)] + ["x:y/z", "*"]
        await bus.dispatch_batch(Envelope(Save(doc=name), unique=Unique("k:1")) for name in names)
        await bus.dispatch(Save(doc="d000"), unique=Unique("later", wins="latest", debounce=300))
        await bus.dispatch_batch(Envelope(Swim(pool=name), unique=Unique("k")) for name in ("a", "b" * 600))
        client, first = sandbox.client(), bus.transport.keys.shards[0]  # type: ignore[attr-defined]
        await client.hset(first.unique, "doc:d:stale", "1-0|||g||Save|gone")  # type: ignore[misc]
        await client.hset(first.unique, "another program's", "1|||||Save|x")  # type: ignore[misc]
        await client.aclose()
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await bus.entities.unique_keys(limit=20, cursor=cursor)
            assert page.complete
            assert len(page.keys) <= 20
            found += page.keys
            cursor, pages = page.cursor, pages + 1
        assert pages == 7
        docs = [(each.entity_id, each.key) for each in found if each.entity_type == "doc"]
        assert sorted(docs) == sorted([(name, "k:1") for name in names] + [("d000", "later")])
        assert {(each.entity_id, each.key) for each in found if each.entity_type == "pool"} == {("a", "k"), (None, "k")}
        assert {each.key: each.state for each in found} == {"k:1": "waiting", "k": "waiting", "later": "delayed"}
        only = await bus.entities.of("pool").unique_keys()
        assert ({each.entity_id for each in only.keys}, len(only.keys), only.cursor) == ({"a", None}, 2, None)
        assert (await bus.entities.of("other").unique_keys()).keys == []
        assert (await bus.entities.unique_keys(limit=135)).cursor is None
        assert (await bus.entities.unique_keys(limit=134)).cursor is not None
        for wrong in ({"limit": 0}, {"scan": 0}, {"cursor": "no cursor"}, {"cursor": (await bus.entities.list(limit=1)).cursor}):
            with pytest.raises(InvalidSettings):
                await bus.entities.unique_keys(**wrong)  # type: ignore[arg-type]


async def test_a_listing_of_all_keys_says_that_it_did_not_look_at_all(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        await bus.dispatch_batch(Envelope(Save(doc=f"e{n}", n=n), unique=Unique("k")) for n in range(3000))
        assert not (await bus.entities.unique_keys(scan=500)).complete
        page = await bus.entities.unique_keys(limit=2000)
        assert (page.complete, len(page.keys), page.cursor is None) == (True, 2000, False)
