"""Dispatches in bulk: what is loaded once stays once, in order, behind a fence; and what became of it is kept."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from zlib import crc32

import pytest

from command_bus import Command, CommandBus, DispatchConflict, DispatchFenced, EntityId, QueueFull, Reject, RetryPolicy
from command_bus.messages.outgoing import Envelope
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import IN_DISPATCH, KEEP_OUTCOME, WireEnvelope, pack_envelope
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.reply import unpack_reply
from command_bus.transport.ports.bulk import LoadItem, Opening, Version
from command_bus.transport.submissions import Admission
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

ACCEPTED, DUPLICATE, CONFLICT = Admission.ACCEPTED, Admission.DUPLICATE, Admission.CONFLICT
KEPT = Opening(keep_ms=60_000, remember_ms=120_000)


class Add(Command[int], entity="sum", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0.0)):
    sum: EntityId
    value: int


def item(bus: CommandBus, entity: str, value: int, *, dispatch: str = "", number: int = 0, command_id: str = "") -> LoadItem:
    """Return a packed command, of a dispatch that keeps outcomes if one is named."""
    out = EnvelopeBuilder(bus.settings).of_item(
        Envelope(Add(sum=entity, value=value), command_id=command_id or f"{entity}-{value}")
    )
    flags = IN_DISPATCH | (KEEP_OUTCOME if dispatch else 0)
    envelope = WireEnvelope(
        out.command_id, out.name, out.entity_type, out.entity_id, out.payload, flags, correlation_id=dispatch or None
    )
    check = crc32(out.payload).to_bytes(4, "big")
    return (
        EnvelopeBuilder(bus.settings).build(out).mailbox,
        out.command_id,
        check,
        pack_envelope(envelope),
        entity,
        number,
        "",
        None,
    )


async def load(bus: CommandBus, version: Version, items: list[LoadItem], **options: Any) -> list[Admission]:
    """Load items of any shard; in the order of the items."""
    keys, dispatches = bus.session.redis.keys, bus.session.transport.bulk
    answers: dict[int, Admission] = {}
    for shard in range(keys.count):
        chosen = [index for index, each in enumerate(items) if keys.shard_of(each[0]) == shard]
        if chosen:
            loaded = await dispatches.load(version, shard, [items[index] for index in chosen], **options)
            assert not loaded.done
            answers |= dict(zip(chosen, loaded.admissions, strict=True))
    return [answers[index] for index in range(len(items))]


async def outcomes(bus: CommandBus, dispatch: str) -> list[tuple[str, OutcomeRecord, Any]]:
    """Command id, record and reply of all that is kept, in order per shard."""
    found = []
    for shard in range(bus.session.redis.keys.count):
        _, entries = await bus.session.transport.bulk.outcomes.page(dispatch, shard, "", "+", 1000)
        for _, packed in entries:
            record = OutcomeRecord.unpack(packed)
            command_id, reply = unpack_reply(record.reply)
            found.append((command_id, record, reply))
    return found


@pytest.mark.promise("A row is one command")
@pytest.mark.parametrize("shards", [1, 4])
async def test_what_is_loaded_again_is_there_once_and_in_order(sandbox: Sandbox, shards: int) -> None:
    seen: list[tuple[str, int]] = []

    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        seen.append((str(command.sum), command.value))
        return command.value

    async with sandbox.bus(shards=shards) as bus:
        version, dispatches = Version("d 1{}\n"), bus.session.transport.bulk
        assert await dispatches.open(version, Opening()) == "open"
        items = [item(bus, f"s{index % 3}", index) for index in range(60)]
        assert await load(bus, version, items[:20]) == [ACCEPTED] * 20
        assert await load(bus, version, items) == [DUPLICATE] * 20 + [ACCEPTED] * 40  # a task that is retried
        assert await load(bus, version, items) == [DUPLICATE] * 60  # its speculative twin
        async with bus.worker(), asyncio.timeout(20):
            await bus.wait_idle()
        for entity in range(3):
            assert [value for name, value in seen if name == f"s{entity}"] == list(range(entity, 60, 3))
        assert await load(bus, version, items) == [DUPLICATE] * 60  # and settling forgets nothing while it is open
        await dispatches.commit(version, "{}", 60_000)
        facts = await dispatches.facts(version.dispatch_id)
        assert facts is not None
        assert (facts.added, facts.duplicates, facts.version, facts.opened) == (60, 140, 0, None)
        assert (await bus.stats()).depth == 0


@pytest.mark.promise("A row is one command")
async def test_nothing_is_added_to_a_version_that_is_committed(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        version, dispatches = Version("d"), bus.session.transport.bulk
        await dispatches.open(version, Opening())
        await load(bus, version, [item(bus, "a", 1)])
        await dispatches.commit(version, "first", 60_000)
        assert (await dispatches.load(version, 0, [item(bus, "a", 2)])).done  # one who writes on
        assert await dispatches.open(version, Opening()) == "done"  # a job that is run again
        await dispatches.commit(version, "second", 60_000)
        facts = await dispatches.facts("d")
        assert facts is not None
        assert (facts.added, facts.summary) == (1, "first")
        assert (await bus.stats()).depth == 1
        later = Version("d", 1)  # the next micro-batch
        assert await dispatches.open(later, Opening()) == "open"
        assert await load(bus, later, [item(bus, "a", 2)]) == [ACCEPTED]
        assert (await dispatches.load(version, 0, [item(bus, "a", 3)])).done
        await dispatches.commit(later, "", 60_000)
        assert (await dispatches.load(later, 0, [item(bus, "a", 3)])).done


async def test_an_unopened_or_foreign_dispatch_is_refused(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        dispatches = bus.session.transport.bulk
        with pytest.raises(DispatchFenced, match="not open"):
            await dispatches.load(Version("none"), 0, [item(bus, "a", 1)])
        with pytest.raises(DispatchFenced, match="not open"):
            await dispatches.commit(Version("none"), "", 1000)
        with pytest.raises(DispatchFenced, match="not open"):
            await dispatches.reject(Version("none"), [("a", b"x")], None)
        await dispatches.open(Version("mine"), Opening(owner="query-1"))
        with pytest.raises(DispatchConflict, match="another writer"):
            await dispatches.open(Version("mine"), Opening(owner="query-2"))
        assert (await bus.stats()).depth == 0


async def test_an_abandoned_dispatch_is_forgotten_and_late_writers_are_fenced(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        dispatches = bus.session.transport.bulk
        await dispatches.open(Version("short"), Opening(remember_ms=150))
        await load(bus, Version("short"), [item(bus, "a", 1)])

        async def forgotten() -> bool:
            return await dispatches.facts("short") is None

        await until(forgotten)
        with pytest.raises(DispatchFenced):
            await dispatches.load(Version("short"), 0, [item(bus, "a", 2)])
        await dispatches.open(Version("other"), Opening())  # sweeps the index
        assert await dispatches.names() == ["other"]


async def test_equal_ids_with_other_payloads_are_reported(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        first, other = item(bus, "a", 1, command_id="x"), item(bus, "a", 2, command_id="x")
        assert await load(bus, version, [first, other, first]) == [ACCEPTED, CONFLICT, DUPLICATE]
        assert await load(bus, version, [other, first]) == [CONFLICT, DUPLICATE]


async def test_sequence_numbers_only_go_up_whoever_loads(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        late = Admission.OUT_OF_SEQUENCE
        one = [item(bus, "a", value, number=value) for value in (1, 3, 2, 4)] + [item(bus, "b", 0, number=-5)]
        assert await load(bus, version, one, sequenced=True) == [ACCEPTED, ACCEPTED, late, ACCEPTED, ACCEPTED]
        two = [item(bus, "a", 4, number=4), item(bus, "a", 5, number=4), item(bus, "a", 6, number=6), item(bus, "b", 1, number=0)]
        assert await load(bus, version, two, sequenced=True) == [DUPLICATE, late, ACCEPTED, ACCEPTED]
        await bus.session.transport.bulk.commit(version, "", 60_000)
        after = Version("d", 1)
        await bus.session.transport.bulk.open(after, Opening())
        assert await load(bus, after, [item(bus, "a", 7, number=5)], sequenced=True) == [late]


@pytest.mark.parametrize("shards", [1, 3])
async def test_limits_refuse_the_rest_and_later_ones_do_not_overtake(sandbox: Sandbox, shards: int) -> None:
    async with sandbox.bus(max_depth=2, max_total_depth=100, shards=shards) as bus:
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        items = [item(bus, "a", value) for value in range(4)] + [item(bus, "b", 0)]
        full, behind = Admission.ENTITY_FULL, Admission.PREDECESSOR_REFUSED
        assert await load(bus, version, items) == [ACCEPTED, ACCEPTED, full, behind, ACCEPTED]
        assert await load(bus, version, items[2:]) == [full, behind, DUPLICATE]
        if shards == 1:
            many = [item(bus, f"c{value}", 0) for value in range(10)]
            assert await load(bus, version, many, backlog=8) == [ACCEPTED] * 5 + [Admission.TOTAL_FULL] * 5
            assert (await bus.stats()).depth == 8


async def test_trusted_mailboxes_are_not_measured(sandbox: Sandbox) -> None:
    """A writer may declare that these mailboxes are not full."""
    async with sandbox.bus(max_depth=2) as bus:
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        items = [item(bus, "a", value) for value in range(3)]
        await load(bus, version, items[:2])
        assert await load(bus, version, items[2:], suspects={items[0][0]}) == [Admission.ENTITY_FULL]
        assert await load(bus, version, items[2:], suspects=()) == [ACCEPTED]


async def test_a_mailbox_of_another_type_costs_its_own_rows_only(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        items = [item(bus, "bad", 1), item(bus, "good", 1), item(bus, "bad", 2)]
        client = sandbox.client()
        await client.set(bus.session.redis.keys.shards[0].mailbox(items[0][0]), "something else")
        await client.aclose()
        assert await load(bus, version, items) == [Admission.WRONG_TYPE, ACCEPTED, Admission.WRONG_TYPE]


async def test_a_paused_entity_is_loaded_and_waits(sandbox: Sandbox) -> None:
    seen: list[int] = []

    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        seen.append(command.value)
        return 0

    async with sandbox.bus() as bus, bus.worker():
        entity = bus.entity("sum", "p")
        await entity.pause()
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        assert await load(bus, version, [item(bus, "p", 1), item(bus, "q", 2)]) == [ACCEPTED] * 2
        await until(lambda: seen == [2])
        await entity.resume()
        await until(lambda: seen == [2, 1])


@pytest.mark.parametrize("shards", [1, 4])
async def test_every_fate_is_kept_as_an_outcome(sandbox: Sandbox, shards: int) -> None:
    fails = {"failing": 99, "recovering": 1}

    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        name = str(command.sum)
        if fails.get(name, 0) > 0:
            fails[name] -= 1
            raise RuntimeError("no luck")
        if name == "refused":
            raise Reject("too much", code="limit", details={"most": 3})
        return command.value + 1

    async with sandbox.bus(shards=shards) as bus:
        version, dispatches = Version("d"), bus.session.transport.bulk
        await dispatches.open(version, KEPT)
        names = ("plain", "refused", "failing", "recovering", "purged")
        await load(bus, version, [item(bus, name, 7, dispatch="d") for name in names])
        assert await bus.entity("sum", "purged").purge() == 1
        async with bus.worker(), asyncio.timeout(20):
            await bus.wait_idle()
            found = {command_id: (record, reply) for command_id, record, reply in await outcomes(bus, "d")}
            assert {command_id: record.status for command_id, (record, _) in found.items()} == {
                "plain-7": "completed",
                "refused-7": "rejected",
                "failing-7": "dead_lettered",
                "recovering-7": "completed",
                "purged-7": "cancelled",
            }
            record, reply = found["recovering-7"]
            assert (record.attempt, record.name, record.entity_type, record.entity_id) == (2, "Add", "sum", "recovering")
            assert record.fence > 0
            assert record.accepted_ms <= record.first_started_ms
            assert reply.value == b"\x08"
            assert (found["refused-7"][1].code, found["refused-7"][1].details) == ("limit", {"most": 3})
            assert "no luck" in found["failing-7"][1].error_message
            (letter,) = [each async for each in bus.dead_letters.list()]
            fails["failing"] = 0
            await bus.dead_letters.replay(letter.id)
            await bus.wait_idle()
        statuses = [record.status for command_id, record, _ in await outcomes(bus, "d") if command_id == "failing-7"]
        assert statuses == ["dead_lettered", "completed"]
        assert not [key for key in await sandbox.keys() if "}:k:" in key]  # a dispatch needs no marks


async def test_a_parked_command_that_is_discarded_says_so(sandbox: Sandbox) -> None:
    class Risky(Command[None], entity="sum", name="Add", on_poison="park", retry=RetryPolicy(attempts=1)):
        sum: EntityId
        value: int

    @sandbox.registry.handles(Risky)
    async def add(command: Risky) -> None:
        if command.value == 1:
            raise RuntimeError("no luck")

    async with sandbox.bus() as bus, bus.worker():
        version = Version("d")
        await bus.session.transport.bulk.open(version, KEPT)
        await load(bus, version, [item(bus, "a", value, dispatch="d") for value in (1, 2)])

        async def letters() -> list[Any]:
            return [letter async for letter in bus.dead_letters.list()]

        (letter,) = await until(letters)
        assert [record.status for _, record, _ in await outcomes(bus, "d")] == ["parked"]
        await bus.dead_letters.discard(letter.id)
        async with asyncio.timeout(10):
            await bus.wait_idle()
        assert [record.status for _, record, _ in await outcomes(bus, "d")] == ["parked", "discarded", "completed"]


async def test_outcomes_are_kept_for_their_time_and_number_only(sandbox: Sandbox) -> None:
    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        return 0

    async with sandbox.bus() as bus, bus.worker():
        await bus.session.transport.bulk.open(Version("brief"), Opening(keep_ms=200, remember_ms=60_000))
        await bus.session.transport.bulk.open(Version("none"), Opening())
        await bus.session.transport.bulk.open(Version("few"), Opening(keep_ms=60_000, keep_max=10))
        await load(bus, Version("brief"), [item(bus, "a", 1, dispatch="brief")])
        await load(bus, Version("none"), [item(bus, "b", 1, dispatch="none")])  # flagged, but the record asks for none
        await load(bus, Version("few"), [item(bus, "c", value, dispatch="few") for value in range(600)])
        async with asyncio.timeout(30):
            await bus.wait_idle()
        assert not await outcomes(bus, "none")
        assert 10 <= len(await outcomes(bus, "few")) < 300

        async def gone() -> bool:
            return not await outcomes(bus, "brief")

        await until(gone)


async def test_rejected_rows_are_noted_once_and_up_to_a_limit(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        version, dispatches = Version("d"), bus.session.transport.bulk
        await dispatches.open(version, Opening())
        rows = [(f"row{index}", b"why") for index in range(5)]
        assert await dispatches.reject(version, [*rows[:3], *rows[:3]], 4)  # equal rows, in one request
        assert await dispatches.reject(version, rows[:4], 4)  # a second attempt
        assert not await dispatches.reject(version, rows, 4)
        assert sorted([row async for row in dispatches.rejects("d")]) == rows[:4]
        facts = await dispatches.facts("d")
        assert facts is not None
        assert facts.rejected == 4


@pytest.mark.promise("A row is one command")
async def test_random_interleavings_of_attempts_give_the_one_history(sandbox: Sandbox) -> None:
    """Attempts of the same partition that overlap, break off and write on after the commit: each row once, in order."""
    for seed in range(8):
        random_ = random.Random(seed)
        async with sandbox.bus() as bus:
            version, dispatches = Version(f"d{seed}"), bus.session.transport.bulk
            await dispatches.open(version, Opening())
            items = [item(bus, f"e{seed}-{index % 4}", index) for index in range(100)]
            positions = [0, 0, 0]  # of three attempts; the first that ends commits
            committed = False
            while not all(position >= len(items) for position in positions):
                attempt = random_.randrange(3)
                start = positions[attempt]
                if start >= len(items):
                    continue
                size = random_.randint(1, 20)
                loaded = await dispatches.load(version, 0, items[start : start + size])
                assert loaded.done == committed
                positions[attempt] = start + size
                if not committed and positions[attempt] >= len(items):
                    await dispatches.commit(version, "", 60_000)
                    committed = True
            for entity in range(4):
                mailbox = EnvelopeBuilder(bus.settings).mailbox_of("sum", f"e{seed}-{entity}")
                waiting = [
                    each.envelope async for page in bus.session.transport.operator.mailboxes.waiting(mailbox) for each in page
                ]
                assert waiting == [each[3] for each in items if each[0] == mailbox]


@pytest.mark.server
async def test_a_server_without_memory_refuses_a_whole_chunk(sandbox: Sandbox) -> None:
    if sandbox.name == "memory":
        pytest.skip("fakeredis has no memory limit")
    async with sandbox.bus() as bus:
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        client = sandbox.client()
        try:
            await client.config_set("maxmemory", "1")
            with pytest.raises(QueueFull) as caught:
                await bus.session.transport.bulk.load(version, 0, [item(bus, "a", value) for value in range(5)])
            assert caught.value.limit == "memory"
        finally:
            await client.config_set("maxmemory", "0")
            await client.aclose()
        assert await load(bus, version, [item(bus, "a", value) for value in range(5)]) == [ACCEPTED] * 5
