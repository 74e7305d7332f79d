"""Follow-ups on the server: what a settlement writes, and what a relay takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from command_bus.transport.records import Recount
from command_bus.transport.redis.admin.statistics import RedisStatistics
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import GROUP, KeySpace, delayed_member
from command_bus.transport.redis.maintenance.due_work import Member
from command_bus.transport.redis.maintenance.relay import RelayJob
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.redis.scripts import RELAY, Script
from command_bus.transport.steps import NO_SETTLEMENT, Done, FollowUp, GiveBack, LeaseLost, Released, Settlement, Started
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness

BOX, OTHER = "box:a", "box:b"


def sending(*follow_ups: FollowUp) -> Settlement:
    return replace(NO_SETTLEMENT, follow_ups=follow_ups)


def to(mailbox: str, *ids: str) -> list[FollowUp]:
    return [FollowUp(mailbox, each, each.encode()) for each in ids]


@pytest.mark.promise("Follow-ups come with the settlement")
async def test_it_is_sent_by_the_settlement_and_by_no_repetition(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert await harness.waiting(OTHER) == []
    first, second = await worker.again(lease, Done(sending(*to(OTHER, "f1", "f2"))))
    assert (first, second) == (Released("idle"), LeaseLost())
    assert await harness.waiting(OTHER) == [b"f1", b"f2"]
    assert await harness.activations() == [OTHER]
    counters = await harness.counters()
    assert (counters["depth"], counters["accepted"]) == (2, 3)


async def test_who_has_lost_the_lease_sends_nothing(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    assert await worker.do(replace(lease), GiveBack(counts=True)) == Released("yield")
    before = await harness.everything()
    assert await worker.do(lease, Done(sending(*to(OTHER, "f1")))) == LeaseLost()
    assert await harness.everything() == before


async def test_two_settlements_of_one_batch_that_send_to_each_other(harness: TransportHarness, worker: ManualWorker) -> None:
    """One empties the mailbox into which the other sends, in both orders."""
    await harness.put(BOX, "c1")
    await harness.put(OTHER, "d1")
    first, second = await worker.read()
    for lease in (first, second):
        assert isinstance(await worker.do(lease, TAKE), Started)
    answers = [
        worker.steps.advance(first, Done(sending(*to(OTHER, "f1")))),
        worker.steps.advance(second, Done(sending(*to(BOX, "g1")))),
    ]
    assert [await each for each in answers] == [Released("idle"), Released("idle")]
    assert (await harness.waiting(BOX), await harness.waiting(OTHER)) == ([b"g1"], [b"f1"])
    assert sorted(await harness.activations()) == [BOX, OTHER]


async def test_a_mailbox_that_takes_nothing_has_it_once_it_is_repaired(harness: TransportHarness, worker: ManualWorker) -> None:
    await harness.put(BOX, "c1")
    lease, _ = await worker.start()
    await harness.client.set(harness.shard.mailbox(OTHER), "not a stream")
    assert await worker.do(lease, Done(sending(*to(OTHER, "f1")))) == Released("idle")
    assert (await harness.counters())["depth"] == 1
    await harness.client.delete(harness.shard.mailbox(OTHER))
    await harness.client.zadd(harness.shard.due, {delayed_member(b"1", "f1"): 1})
    await harness.promote(worker)
    assert await harness.waiting(OTHER) == [b"f1"]


# Relays.


@dataclass
class TwoShards:
    """A shard that has follow-ups for another."""

    connections: Connections
    keys: KeySpace
    job: RelayJob

    def client(self, shard: int) -> Any:
        return self.connections.at(self.keys.shards[shard].prefix).commands

    async def write(self, *ids: str, entry: str = "*") -> None:
        source = self.keys.shards[0]
        for each in ids:
            await self.client(0).xadd(f"{source.outs}1", {"t": f"1|1|{BOX}|{each}", "a": "0", "e": each, "x": ""}, id=entry)
        await self.client(0).zadd(source.due, {"o:1": 1})

    async def relay(self) -> tuple[int, list[str]]:
        done, left = await self.job.perform([Member("o:1", 1.0)])
        return done, list(left)

    async def take(self, generation: str, floor: str = "", *entries: tuple[str, str]) -> Any:
        target = self.keys.shards[1]
        names = [target.ready, target.active, target.lone, target.paused, target.due, target.delayed, target.delayed_counts]
        names += [target.stats, f"{target.relays}0", target.watched, target.events, *target.fair, target.suspended]
        args: list[Any] = [GROUP, generation, floor, "here"]
        for entry, each in entries:
            names += (target.mailbox(BOX), target.mark(each))
            args += (entry, f"1|1|{BOX}|{each}", 0, each, "")
        return await self.connections.at(target.prefix).run(RELAY, names, args)

    async def taken(self) -> list[bytes]:
        target = self.keys.shards[1]
        alone = await self.client(1).hget(target.lone, BOX)
        entries = await self.client(1).xrange(target.mailbox(BOX))
        return [fields.get(b"e", alone) for _, fields in entries] or [alone] * (alone is not None)

    async def written(self) -> int:
        return int(await self.client(0).xlen(f"{self.keys.shards[0].outs}1"))


@pytest.fixture
async def shards(sandbox: Sandbox) -> AsyncIterator[TwoShards]:
    keys = KeySpace(sandbox.namespace, 2)
    connections = Connections(sandbox.clients)
    for shard in keys.shards:
        await ensure_ready(connections.at(shard.prefix), shard)
    shards = TwoShards(connections, keys, RelayJob(connections, keys, keys.shards[0]))
    await shards.client(1).hset(keys.shards[1].stats, "incarnation", "here")
    yield shards
    await connections.close()


async def test_a_relay_takes_all_and_leaves_nothing(shards: TwoShards) -> None:
    ids = [f"f{number}" for number in range(250)]
    await shards.write(*ids)
    assert await shards.relay() == (1, [])
    assert await shards.taken() == [each.encode() for each in ids]
    assert await shards.written() == 0
    assert await shards.client(0).zcard(shards.keys.shards[0].due) == 0


async def test_a_relay_brings_no_more_than_a_megabyte_at_a_time(shards: TwoShards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones a hundred at a time, once it has seen that they are small."""
    sizes: list[list[int]] = []
    real = Connections.run_confirmed

    async def run_confirmed(self: Connections, script: Script, keys: list[str], args: list[Any], written: str) -> Any:
        if script is RELAY:
            sizes.append([len(each) for each in args[7::5]])
        return await real(self, script, keys, args, written)

    monkeypatch.setattr(Connections, "run_confirmed", run_confirmed)
    small = [f"f{number}" for number in range(400)]
    large = [f"{number:0400000}" for number in range(9)]
    huge = "h" * 2_000_000
    await shards.write(*small, *large, huge, "last")
    assert await shards.relay() == (1, [])
    pages = [page for page in sizes if page]
    assert max(len(page) for page in pages) == 100
    assert all(sum(page) <= 1024 * 1024 for page in pages if page != [2_000_000])
    assert [2_000_000] in pages
    assert [len(each) for each in await shards.taken()] == [len(each) for each in (*small, *large, huge, "last")]


async def test_what_goes_to_another_shard_is_counted(shards: TwoShards) -> None:
    await shards.write("f1", "f2")
    recounts = RedisStatistics(shards.connections, shards.keys, patience=5)
    assert await recounts.recount(correct=True) == Recount(0, 2, 0)
    await shards.relay()
    assert await recounts.recount(correct=False) == Recount(2, 2, 0)


@pytest.mark.promise("Follow-ups come with the settlement")
async def test_a_relay_that_died_before_it_deleted_doubles_nothing(shards: TwoShards) -> None:
    await shards.write("f1", "f2")
    entries = [entry.decode() for entry, _ in await shards.client(0).xrange(f"{shards.keys.shards[0].outs}1")]
    generation = await shards.take("")
    await shards.take(str(generation), entries[0], (entries[0], "f1"))
    assert await shards.relay() == (1, [])
    assert await shards.taken() == [b"f1", b"f2"]


@pytest.mark.promise("Follow-ups come with the settlement")
async def test_a_slow_relay_is_not_believed(shards: TwoShards) -> None:
    """It read a page, and stopped; others took it, deleted it, and forgot it."""
    await shards.write("f1")
    (entry, _), *_ = await shards.client(0).xrange(f"{shards.keys.shards[0].outs}1")
    slow = str(await shards.take(""))
    await shards.relay()
    await shards.write("f2")
    await shards.relay()
    assert await shards.take(slow, entry.decode(), (entry.decode(), "f1")) is None
    assert await shards.taken() == [b"f1", b"f2"]


@pytest.mark.promise("A deleted namespace leaves nothing")
async def test_a_relay_from_before_a_deletion_brings_nothing(shards: TwoShards) -> None:
    """It stopped before it asked, or behind what it read; meanwhile the namespace was deleted, and is used again."""
    await shards.write("f0")
    assert await shards.relay() == (1, [])  # it knows this shard
    slow = str(await shards.take(""))
    target = shards.keys.shards[1]
    for key in (target.ready, target.active, target.lone, target.stats, f"{target.relays}0"):
        await shards.client(1).delete(key)
    await ensure_ready(shards.connections.at(target.prefix), target)
    await shards.client(1).hset(target.stats, "incarnation", "another")
    await shards.client(1).hset(f"{target.relays}0", "g", slow)  # by chance it would be believed
    assert await shards.take(slow, "0-0", ("1-0", "f1")) == b"gone"
    assert await shards.taken() == []
    await shards.write("f2")
    assert await shards.relay() == (0, ["o:1"])
    assert await shards.taken() == []
    assert await shards.relay() == (1, []), "what is of this time is brought as soon as it has read the shard anew"
    assert await shards.taken() == [b"f2"]


@pytest.mark.promise("Follow-ups come with the settlement")
async def test_ids_that_come_again_after_a_failover_lose_nothing(shards: TwoShards) -> None:
    """The new primary of the source lacks the end of the stream, and its clock is behind."""
    await shards.write("f1", entry="2000-0")
    await shards.relay()
    await shards.write("f2", entry="1795-0")
    await shards.relay()
    assert await shards.taken() == [b"f1", b"f2"]


async def test_what_is_forgotten_does_not_stand_there_any_more(shards: TwoShards) -> None:
    for number in range(3):
        await shards.write(f"f{number}", entry=f"{1000 + number}-0")
        await shards.relay()
    kept = await shards.client(1).hgetall(f"{shards.keys.shards[1].relays}0")
    assert set(kept) == {b"g", b"cf2"}
