"""Dead letters that are too old or too many are deleted; never one that parks an entity."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest
import pytest_asyncio

from command_bus import BusSettings, Command, EntityId, EntityPolicy, HandlerRegistry, InvalidSettings, RetryPolicy
from command_bus.errors import TransportUnavailable
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.maintenance.upkeep import LetterLimits, LetterPruning
from tests.conformance.bad_input import envelope
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness, transport_harness
from tests.conformance.put_service import until


@pytest_asyncio.fixture
async def harness(sandbox: Sandbox) -> Any:
    async with transport_harness(sandbox.clients, sandbox.namespace) as harness:
        yield harness


class Fails(Command[None], entity="box", retry=RetryPolicy(attempts=1)):
    box: EntityId


def failing(registry: HandlerRegistry) -> None:
    @registry.handles(Fails)
    async def fails(command: Fails) -> None:
        raise RuntimeError("it always does")


async def bury_at(harness: TransportHarness, *places: tuple[str, int, bool], durable: Collection[str] = ()) -> None:
    """Write letters of mailboxes with an age in ms; some of them park their mailbox, some kept the side record of a durable command."""
    seconds, micros = await harness.client.time()
    now = seconds * 1000 + micros // 1000
    for mailbox, age, parks in places:
        fields: Any = {"r": b"record", "e": b"envelope", "m": mailbox, "p": int(parks)}
        if mailbox in durable:
            fields |= {"e": envelope(b"", command_id=mailbox), "x": "1"}
            await harness.client.hset(harness.shard.side(mailbox), "m", "1-1")  # type: ignore[misc]
            await harness.client.set(harness.shard.mark(mailbox), b"d")
        letter = await harness.client.xadd(harness.shard.dead, fields, id=f"{now - age}-1")
        if parks:
            await harness.client.hset(harness.shard.parked, mailbox, letter)  # type: ignore[misc]


async def left(harness: TransportHarness) -> list[str]:
    return [fields[b"m"].decode() for _, fields in await harness.client.xrange(harness.shard.dead)]


@pytest.mark.promise("Dead letters are too old or too many")
async def test_old_letters_are_deleted_and_those_of_parked_entities_stay(harness: TransportHarness) -> None:
    await bury_at(harness, ("a", 90_000, False), ("b", 80_000, True), ("c", 70_000, False), ("d", 50_000, False), ("e", 0, True))
    pruning = LetterPruning(harness.connections, harness.shard, LetterLimits(ttl_ms=60_000))
    assert not await pruning.page()
    assert await left(harness) == ["b", "d", "e"]
    assert (await harness.counters())["pruned"] == 2
    await harness.client.hdel(harness.shard.parked, "b")  # type: ignore[misc]
    assert not await pruning.page()
    assert await left(harness) == ["d", "e"]


async def test_the_oldest_of_too_many_are_deleted(harness: TransportHarness) -> None:
    await bury_at(harness, *((f"m{number}", 90_000 - number, number in (0, 3)) for number in range(8)))
    pruning = LetterPruning(harness.connections, harness.shard, LetterLimits(most=4))
    assert not await pruning.page()
    assert await left(harness) == ["m0", "m3", "m6", "m7"]
    assert not await pruning.page()
    assert not await LetterPruning(harness.connections, harness.shard, LetterLimits(most=1)).page()
    assert await left(harness) == ["m0", "m3"], "what parks counts, and stays"
    assert (await harness.counters())["pruned"] == 6


async def test_it_goes_page_by_page_past_parked_entities(harness: TransportHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.transport.redis.maintenance.upkeep._LETTERS", 3)
    await bury_at(harness, *((f"m{number}", 90_000 - number, number < 4) for number in range(9)))
    pruning = LetterPruning(harness.connections, harness.shard, LetterLimits(ttl_ms=1000))
    assert [await pruning.page() for _ in range(3)] == [True, True, True]
    assert not await pruning.page()
    assert await left(harness) == ["m0", "m1", "m2", "m3"]
    monkeypatch.setattr("command_bus.transport.redis.maintenance.upkeep._BYTES", 1)
    await bury_at(harness, *((f"n{number}", 1500 - number, False) for number in range(2)))
    assert await pruning.page(), "a large letter ends a page"


@pytest.mark.parametrize("lost", [1, 2, None])
@pytest.mark.parametrize("limits", [LetterLimits(ttl_ms=60_000), LetterLimits(most=2)])
async def test_what_a_durable_command_has_stored_goes_with_its_letter(
    harness: TransportHarness, monkeypatch: pytest.MonkeyPatch, lost: int | None, limits: LetterLimits
) -> None:
    """Also if the worker dies after any of its requests."""
    letters = [("a", 90_000, False), ("b", 80_000, False), ("c", 70_000, True), ("d", 0, False)]
    await bury_at(harness, *letters, durable=("b", "c"))
    keys, requests = harness.shard, 0
    real = Connections.run

    async def run(self: Connections, script: Any, names: list[str], args: list[Any]) -> Any:
        nonlocal requests
        answer = await real(self, script, names, args)
        requests += 1
        if requests == lost:
            raise TransportUnavailable("the worker dies")
        return answer

    monkeypatch.setattr(Connections, "run", run)
    pruning = LetterPruning(harness.connections, keys, limits)
    try:
        await pruning.page()
    except TransportUnavailable:
        has_letter = "b" in await left(harness)
        assert await harness.client.exists(keys.side("b")) == has_letter
        assert await harness.client.pttl(keys.mark("b")) == -1 or not has_letter
        await pruning.page()
    assert await left(harness) == ["c", "d"]
    assert (await harness.counters())["pruned"] == 2
    assert await harness.client.exists(keys.side("b"), keys.side("c")) == 1
    assert 0 < await harness.client.pttl(keys.mark("b")) <= 600_000
    assert await harness.client.pttl(keys.mark("c")) == -1


async def test_without_limits_nothing_is_asked_and_nothing_deleted(harness: TransportHarness) -> None:
    await bury_at(harness, ("a", 90_000_000, False))
    assert not await LetterPruning(harness.connections, harness.shard, LetterLimits()).page()
    assert await left(harness) == ["a"]


async def test_a_worker_does_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.transport.redis.maintenance.upkeep._LONGEST_PAUSE", 0.1)
    failing(sandbox.registry)
    async with sandbox.bus(max_dead_letters=2) as bus, bus.worker():
        for number in range(6):
            await bus.dispatch(Fails(box=f"{number}"))
        await bus.wait_idle(timeout=20)

        async def pruned() -> bool:
            return (await bus.stats()).pruned == 4

        await until(pruned)
        assert (await bus.stats()).dead_letters == 2


async def test_a_parked_entity_keeps_its_letter(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.transport.redis.maintenance.upkeep._LONGEST_PAUSE", 0.05)
    failing(sandbox.registry)
    park = {"box": EntityPolicy(on_poison="park")}
    async with sandbox.bus(max_dead_letters=1, dead_letter_ttl=0.01, entities=park) as bus, bus.worker():
        for number in range(3):
            await bus.dispatch(Fails(box=f"{number}"))
        await until(lambda: counted(bus, 3))
        await asyncio.sleep(0.3)
        assert (await bus.stats()).parked == 3
        assert await bus.dead_letters.replay_all() == 3
        await until(lambda: counted(bus, 3))


async def counted(bus: Any, count: int) -> bool:
    return bool((await bus.stats()).dead_letters == count)


@pytest.mark.parametrize("name", ["dead_letter_ttl", "max_dead_letters"])
@pytest.mark.parametrize("wrong", [0, -1, "many", float("inf")])
def test_93_a_wrong_limit_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidSettings, match=name):
        BusSettings(**{name: wrong})
