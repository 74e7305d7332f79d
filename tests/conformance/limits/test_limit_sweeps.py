"""The rest that broken requests leave of limits is found at once, however many wait; a shard that fails costs those of the others nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from command_bus.errors import CommandBusError
from command_bus.messages.limits import Rate, rule_text
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.limits.asking import LimitAsks
from command_bus.transport.redis.limits.rules import RedisLimits
from command_bus.transport.redis.maintenance.due_work import Member
from command_bus.transport.redis.maintenance.waking import LimitWork
from command_bus.transport.steps import Lease
from tests.conformance.harness import TransportHarness
from tests.conformance.limits.limit_bench import run_script

TYPE = "type:box"
MOST = 5
WAITING = 1_000
WAITS = "l||||0|0|"
"""The record of a mailbox that waits for a limit."""


class Limited:
    """Limits of a namespace of three shards. Its entities have no worker: a test does what one does."""

    def __init__(self, harness: TransportHarness) -> None:
        self.keys = KeySpace(harness.shard.prefix[1:].partition(":")[0], 3)
        self.connections = harness.connections
        incarnations = Incarnations(harness.connections, self.keys, patience=5)
        self.limits = RedisLimits(harness.connections, self.keys, patience=5)
        self.asks = LimitAsks(harness.connections, self.keys, incarnations)
        self.work = LimitWork(harness.connections, self.keys, self.keys.shards[0], incarnations, lease=0.01)
        self.incarnations = incarnations

    def client(self, shard: int) -> Any:
        return self.connections.at(self.keys.shards[shard].prefix).commands

    async def ask(self, *mailboxes: str, shard: int = 1) -> list[bool | None]:
        """Ask for the starts of mailboxes; those that are refused wait in their shard."""
        leases = [Lease(shard, mailbox, "1-1", 1e12, "w1#1") for mailbox in mailboxes]
        answers = await asyncio.gather(*(self.asks.ask(lease, "m", "", must_yield=False) for lease in leases))
        waiting = {mailbox: WAITS for mailbox, starts in zip(mailboxes, answers, strict=True) if not starts}
        if waiting:
            await self.client(shard).hset(self.keys.shards[shard].active, mapping=waiting)
        return answers

    async def grant(self, count: int) -> None:
        """Let the first shard grant so many starts, and do nothing more about them."""
        async with asyncio.timeout(5):
            while len(await self.passes()) < count:
                await run_script(self.work, "wake", [TYPE])
                await asyncio.sleep(0.01)

    async def passes(self) -> list[str]:
        fields: Any = await self.client(0).hkeys(self.keys.shards[0].limits)
        return sorted(field.decode()[2:] for field in fields if field[:2] == b"p\n")

    async def ready(self, shard: int) -> int:
        return int(await self.client(shard).xlen(self.keys.shards[shard].ready))


@pytest.fixture
async def limited(harness: TransportHarness) -> AsyncIterator[Limited]:
    limited = Limited(harness)
    await limited.incarnations.all()
    yield limited
    await limited.asks.close(1)


@pytest.mark.promise("Places come back")
@pytest.mark.parametrize("tokens", [False, True], ids=["places", "tokens"])
async def test_lost_grants_are_found_at_once_however_many_wait(limited: Limited, tokens: bool) -> None:
    """A worker that dies after the first shard has granted starts, and before their own shards know it, keeps nothing from others."""
    slow, quick = Rate(1, per=3600.0, burst=MOST), Rate(100, burst=MOST)
    await limited.limits.put(TYPE, rule_text(slow, None) if tokens else rule_text(None, MOST))
    runs = [f"box:r{number}" for number in range(MOST)]
    assert all(await limited.ask(*runs))
    assert not any(await limited.ask(*(f"box:{number}" for number in range(WAITING))))
    for mailbox in runs:
        await limited.asks.over(mailbox, "1-1")
    if tokens:
        await limited.limits.put(TYPE, rule_text(quick, None))
    await limited.grant(MOST)
    lost = await limited.passes()
    assert await run_script(limited.work, "wake", [TYPE]) == [], "the others wait for those"
    await asyncio.sleep(0.02)
    await limited.work.turn()
    assert await limited.passes() == []
    await asyncio.sleep(0.1 if tokens else 0.0)
    await limited.work.perform([Member(f"l:{TYPE}", 0)])
    assert await limited.passes() == lost, "they keep their turn"
    assert await limited.ready(1) == MOST


@pytest.mark.promise("Places come back")
async def test_lost_ends_of_leases_are_found_at_once_however_many_wait(limited: Limited) -> None:
    await limited.limits.put(TYPE, rule_text(None, MOST))
    runs = [f"box:r{number}" for number in range(MOST)]
    assert all(await limited.ask(*runs))
    assert not any(await limited.ask(*(f"box:{number}" for number in range(WAITING))))
    await limited.work.turn()  # they have no records: their leases are over
    assert await limited.passes() == []


async def test_a_grant_is_known_until_it_is_used_or_taken_back(limited: Limited) -> None:
    await limited.limits.put(TYPE, rule_text(Rate(1, per=3600.0, burst=2), None))
    assert await limited.ask("box:a", "box:b", "box:c", "box:d") == [True, True, False, False]
    await limited.limits.put(TYPE, rule_text(Rate(40, burst=2), None))
    await limited.grant(2)
    places = limited.keys.shards[0].places
    grants: Any = await limited.client(0).zrange(places, 0, -1)
    assert sorted(grants) == [b"g\nbox:c", b"g\nbox:d"]
    assert await limited.ask("box:c") == [True]
    await run_script(limited.work, "gone", ["box:d"])
    assert not await limited.client(0).exists(places)


@pytest.mark.promise("Places come back")
async def test_a_shard_that_fails_costs_no_other_shard_its_turns(limited: Limited) -> None:
    await limited.limits.put(TYPE, rule_text(None, 2))
    assert all(await limited.ask("box:a", "box:b"))
    assert await limited.ask("box:c", shard=1) == [False]
    assert await limited.ask("box:d", shard=2) == [False]
    ready = limited.keys.shards[1].ready
    await limited.client(1).delete(ready)
    await limited.client(1).set(ready, "what no script can add to")
    await limited.asks.over("box:a", "1-1")
    await limited.asks.over("box:b", "1-1")
    with pytest.raises(CommandBusError):
        await limited.work.perform([Member(f"l:{TYPE}", 0)])
    assert await limited.ready(2) == 1


@pytest.mark.promise("Places come back")
async def test_a_look_over_all_mailboxes_wakes_only_who_is_known_to_no_limit(limited: Limited) -> None:
    """Not who stands in a queue, nor who was granted its start a moment ago, and does not know it yet."""
    await limited.limits.put(TYPE, rule_text(None, 1))
    assert await limited.ask("box:a", "box:b", "box:c") == [True, False, False]
    await limited.work.wake_forgotten(1, ["box:b", "box:c"])
    assert await limited.ready(1) == 0
    await limited.asks.over("box:a", "1-1")
    await limited.grant(1)
    await limited.work.wake_forgotten(1, ["box:b", "box:c"])
    assert await limited.ready(1) == 0
    await limited.client(0).hdel(limited.keys.shards[0].limits, "p\nbox:b")
    await limited.work.wake_forgotten(1, ["box:a", "box:b", "box:c"])
    assert await limited.ready(1) == 1
    record: Any = await limited.client(1).hget(limited.keys.shards[1].active, "box:b")
    assert record.startswith(b"r|")


async def test_a_sweep_asks_no_script_where_nothing_is_over(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    await limited.limits.put(TYPE, rule_text(Rate(1, per=3600.0, burst=MOST), MOST))
    await limited.client(1).hset(limited.keys.shards[1].active, "box:a", "h|1-1|7|1-1|1|7|w1#1")
    assert await limited.ask("box:a") == [True]
    verbs: list[str] = []
    really = limited.work._limits

    async def limits(verb: str, args: Any) -> Any:
        verbs.append(verb)
        return await really(verb, args)

    monkeypatch.setattr(limited.work, "_limits", limits)
    await limited.work.turn()
    assert verbs == []
    await limited.client(1).hdel(limited.keys.shards[1].active, "box:a")
    await limited.client(0).hset(limited.keys.shards[0].limits, f"b\n{TYPE}", "1.00|0|0")
    await limited.work.turn()
    assert verbs == ["clean", "over"]


@pytest.mark.promise("Places come back")
async def test_thousands_are_woken_at_once(limited: Limited) -> None:
    """As after a time without workers: all buckets of a limit are due, and what they grant is more than one command of the server takes."""
    keys, each = 25, 200
    await limited.limits.put("name:shop", rule_text(Rate(1, per=3600.0, burst=1), None))
    for key in range(keys):
        leases = [Lease(1, f"box:{key}-{number}", "1-1", 1e12, "w1#1") for number in range(each + 1)]
        answers = await asyncio.gather(
            *(limited.asks.ask(lease, "m", f"1 name:shop:{key}", must_yield=False) for lease in leases)
        )
        assert answers.count(True) == 1
    await limited.limits.put("name:shop", rule_text(None, 1000))
    answer = await run_script(limited.work, "wake", [f"name:shop:{key}" for key in range(keys)])
    assert len(answer) == 2 * keys * each
    assert len(await limited.passes()) == keys * each


async def test_buckets_that_are_full_go_as_fast_as_they_came(limited: Limited) -> None:
    """A limit by a key has a bucket for each value that was ever seen."""
    await limited.limits.put("name:user", rule_text(Rate(10), None, 1))
    client, key = limited.client(0), limited.keys.shards[0].limits
    await client.hset(key, mapping={f"b\nname:user:{number}": "1.00|0|0" for number in range(3_000)})
    await client.hset(key, mapping={f"b\nname:user:live{number}": "9e15|0|0" for number in range(50)})
    await client.hset(key, mapping={f"b\nname:user:held{number}": "9000000000000000.00|0|0" for number in range(50)})
    await limited.work.turn()
    await limited.work.turn()
    assert await client.hlen(key) < 200, "those that are not full, and what is odd"
    left = [name async for name, _ in client.hscan_iter(key)]
    assert sum(b":held" in name for name in left) == 50
