"""`shards=` counts when a namespace is made. A client that opens it later follows what is recorded, whatever the settings say. Over every server.

temporal#61: a number that each process took from its own settings; nv-config-manager#277: one that was derived from the number of replicas, where
none was set. marshal#52, kafka-pixy#17: workers that go on with the number of before read a part, and say nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from command_bus import BusSettings, Command, CommandBus, EntityId, InvalidSettings
from command_bus.transport.redis import namespace as namespace_module
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.namespace import RESERVED
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

Seen = list[tuple[str, int]]


class Add(Command[int], entity="sum"):
    name: EntityId
    number: int = 0


class Swap(Command[int], entity="sum", across_shards=True):
    one: EntityId
    other: EntityId
    number: int = 0


@pytest.fixture
def seen(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Return what ran, by entity, in its order."""
    monkeypatch.setattr(namespace_module, "_warned", set())
    found: Seen = []

    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        await asyncio.sleep(0)
        found.append((str(command.name), command.number))
        return command.number

    @sandbox.registry.handles(Swap)
    async def swap(command: Swap) -> int:
        found.extend((str(each), command.number) for each in (command.one, command.other))
        return command.number

    return found


async def made(sandbox: Sandbox, shards: int) -> None:
    async with sandbox.bus(shards=shards):
        pass


async def meta_of(sandbox: Sandbox, **changes: str) -> dict[str, str]:
    """Return the namespace's record, after a change by hand."""
    client = sandbox.client()
    key = KeySpace(sandbox.namespace, 1).shards[0].meta
    if changes:
        await client.hset(key, mapping=changes)  # type: ignore[misc]
    found = await client.hgetall(key)  # type: ignore[misc]
    await client.aclose()
    return {name.decode(): value.decode() for name, value in found.items()}


async def shards_of_keys(sandbox: Sandbox) -> set[int]:
    return {int(key.partition("}")[0].rpartition(":")[2]) for key in await sandbox.keys()}


@pytest.mark.parametrize("shards", [1, 3])
async def test_all_follow_what_is_recorded(sandbox: Sandbox, seen: Seen, shards: int) -> None:
    await made(sandbox, shards)
    entities = [f"e{number}" for number in range(12)]
    async with sandbox.bus(shards=5) as one, sandbox.bus() as two, sandbox.bus(shards=2) as worker, worker.worker():
        for number in range(10):
            await (one, two)[number % 2].dispatch_batch(Add(name=each, number=number) for each in entities)
        assert await two.call(Add(name="called", number=7), timeout=10) == 7
        await one.wait_idle(10)
        assert {each.session.transport.shards for each in (one, two, worker)} == {shards}
        assert [await each.stats() for each in (one, two)] == [await worker.stats()] * 2
        assert {each: [number for name, number in seen if name == each] for each in entities} == {
            each: [*range(10)] for each in entities
        }
    assert await shards_of_keys(sandbox) == {*range(shards)}


@pytest.mark.parametrize("shards", [1, 4])
async def test_commands_across_shards_are_divided_by_what_is_recorded(sandbox: Sandbox, seen: Seen, shards: int) -> None:
    await made(sandbox, shards)
    async with sandbox.bus(shards=3) as sender, sandbox.bus(shards=1) as plain, sandbox.bus(shards=2) as worker, worker.worker():
        for number in range(12):
            await (sender, plain)[number % 2].dispatch(Swap(one=f"e{number % 5}", other=f"e{(number + 1) % 5}", number=number))
        await sender.wait_idle(10)
        assert [each async for each in sender.dead_letters.list()] == []
    assert len(seen) == 2 * 12


async def test_214_a_number_that_was_given_in_vain_is_warned_of_once(
    sandbox: Sandbox, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    await made(sandbox, 2)
    for options in ({}, {"shards": 2}, {"shards": 3}, {"shards": 3}):
        async with sandbox.bus(**options):
            pass
    texts = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING and "shards" in each.getMessage()]
    assert texts == [
        f"namespace {sandbox.namespace!r} has 2 shards, which this process follows: shards=3 counts only when a namespace is made"
    ]


def test_a_service_has_a_number_only_if_its_url_says_so() -> None:
    services: Any = {"stock": "?namespace=stock", "books": "?shards=4"}
    settings = BusSettings(url="redis://here", shards=7, services=services)
    stock, books = settings.service("stock"), settings.service("books")
    assert (stock.shards, "shards" in stock.model_fields_set) == (1, False)
    assert (books.shards, "shards" in books.model_fields_set) == (4, True)


async def test_of_two_that_make_it_at_once_one_wins(sandbox: Sandbox, seen: Seen) -> None:
    buses = [sandbox.bus(shards=shards) for shards in (1, 2, 3, 4, 5, 6)]
    await asyncio.gather(*(each.open() for each in buses))
    (shards,) = {each.session.transport.shards for each in buses}
    assert (await meta_of(sandbox))["shards"] == str(shards)
    async with buses[0].worker():
        await asyncio.gather(*(each.dispatch(Add(name=f"e{number}")) for number, each in enumerate(buses)))
        await buses[-1].wait_idle(10)
    assert sorted(seen) == [(f"e{number}", 0) for number in range(len(buses))]
    for each in buses:
        await each.close()


@pytest.mark.parametrize("recorded", ["", "0", "-1", "two", "2.0", "1025", "9" * 5000])
async def test_214_a_number_that_is_none_is_refused(sandbox: Sandbox, recorded: str) -> None:
    await made(sandbox, 2)
    await meta_of(sandbox, shards=recorded)
    with pytest.raises(InvalidSettings, match="as its number of shards"):
        async with sandbox.bus():
            pass
    await meta_of(sandbox, shards="2")
    async with sandbox.bus() as bus:
        assert bus.session.transport.shards == 2


@pytest.mark.parametrize("word", RESERVED)
async def test_39_a_namespace_with_words_of_a_later_release_is_not_opened(sandbox: Sandbox, word: str) -> None:
    await made(sandbox, 1)
    await meta_of(sandbox, **{word: ""})
    await made(sandbox, 1)  # an empty one says nothing
    before = await meta_of(sandbox, **{word: "x"})
    with pytest.raises(InvalidSettings, match=f"a later release has written {word} into its record: upgrade command_bus here"):
        async with sandbox.bus():
            pass
    assert await meta_of(sandbox) == before


@pytest.mark.parametrize(("made_by", "advice"), [("3.1", "upgrade command_bus"), ("moving", "wait until that is over")])
async def test_39_a_namespace_of_a_later_form_is_not_opened(sandbox: Sandbox, made_by: str, advice: str) -> None:
    await made(sandbox, 1)
    await meta_of(sandbox, protocol=made_by)
    with pytest.raises(InvalidSettings, match=advice):
        async with sandbox.bus():
            pass


async def obliterated(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        await bus.entities.obliterate(confirm=sandbox.namespace, force=True)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
async def test_a_worker_of_before_stops_once_the_namespace_has_another_number(
    sandbox: Sandbox, seen: Seen, caplog: pytest.LogCaptureFixture, before: int, after: int
) -> None:
    async with sandbox.bus(shards=before, lease=1.0) as bus:
        worker = bus.worker()
        await worker.start()
        await meta_of(sandbox, shards=str(after))  # as if another client had been quicker, once the namespace was deleted
        worker.declarations.write_again()
        async with asyncio.timeout(10):
            await worker.run(signals=False)
    stops = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert [each for each in stops if f"made again with {after} shards, and this process has opened it with {before}" in each]


async def test_a_worker_of_before_records_its_number_again(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=3, lease=1.0) as bus, bus.worker():
        await bus.call(Add(name="e"), timeout=10)
        await obliterated(sandbox)

        async def recorded() -> bool:
            return (await meta_of(sandbox)).items() >= {"shards": "3", "mailbox:sum": "per_entity"}.items()

        await until(recorded)
        async with sandbox.bus(shards=2) as late:
            assert late.session.transport.shards == 3
            assert await late.call(Add(name="e", number=5), timeout=10) == 5


async def test_a_sender_of_before_keeps_the_number_that_it_has_read(sandbox: Sandbox, seen: Seen) -> None:
    """It is why all that sends is stopped before a namespace is deleted. pulsar#299, #23603: clients learn of other partitions when they start."""

    async def shards(bus: CommandBus) -> int:
        return bus.session.transport.shards

    async with sandbox.bus(shards=2) as sender:
        await sender.dispatch(Add(name="e"))
        await obliterated(sandbox)
        async with sandbox.bus(shards=4) as anew:
            assert (await shards(sender), await shards(anew)) == (2, 4)
        await sender.close()
        async with sender:
            assert await shards(sender) == 4
