"""Limits without bus or worker: single steps, for tests of what each does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from command_bus.clock import mono
from command_bus.messages.limits import Rate, rule_name, rule_text
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.limits.asking import LimitAsks
from command_bus.transport.redis.limits.rules import RedisLimits
from command_bus.transport.redis.maintenance.due_work import Member
from command_bus.transport.redis.maintenance.waking import LimitWork
from command_bus.transport.redis.ready_stream import delete_entries
from command_bus.transport.redis.scripts import FETCH
from command_bus.transport.redis.worker.consumer import parse_fetched
from command_bus.transport.steps import Lease
from tests.conformance.harness import ManualWorker, TransportHarness

__all__ = ["LimitBench", "run_script"]


async def run_script(work: LimitWork, verb: str, args: Sequence[Any]) -> Any:
    """Run one verb of the script of limits, as the work of the first shard does."""
    return await work._limits(verb, args)


class LimitBench:
    """The limits of a harness's namespace."""

    def __init__(self, harness: TransportHarness, *, lease: float = 5.0) -> None:
        self.harness = harness
        self.limits = RedisLimits(harness.connections, harness.keys, patience=5)
        self.incarnations = Incarnations(harness.connections, harness.keys, patience=5)
        self.work = LimitWork(harness.connections, harness.keys, harness.shard, self.incarnations, lease=lease)
        self.asks = LimitAsks(harness.connections, harness.keys, self.incarnations)
        self._number = 1

    def worker(self, owner: str = "w1") -> ManualWorker:
        """Return a worker that knows of limits, as each does after its first limited start."""
        worker = self.harness.worker(owner)
        worker.batches._known_limits.known = True
        return worker

    async def put(self, name: str, rate: Rate | None = None, concurrency: int | None = None) -> bool:
        text = "" if rate is None and concurrency is None else rule_text(rate, concurrency)
        return await self.limits.put(rule_name(name), text)

    async def due(self) -> list[tuple[str, float]]:
        """Return the times in `due` that are those of limits."""
        found: Any = await self.harness.client.zrange(self.harness.shard.due, 0, -1, withscores=True)
        return [(name.decode(), score) for name, score in found if name[:2] == b"l:"]

    async def wake(self) -> None:
        """Wake what the limits let start now, whether or not its time in `due` has come."""
        for name, score in await self.due():
            await self.work.perform([Member(name, score)])

    async def wake_until(self, count: int, patience: float = 5.0) -> None:
        """Wake until so many activations stand in the ready stream."""
        deadline = mono() + patience
        while len(await self.harness.activations()) < count:
            assert mono() < deadline, await self.harness.everything()
            await self.wake()
            await asyncio.sleep(0.002)

    async def fetch(self, worker: ManualWorker, count: int = 100) -> list[Lease]:
        """Fetch as a busy worker does. A take of what was started is answered without a request."""
        shard, first = self.harness.shard, self._number
        self._number += count
        limits = worker.batches._known_limits.keys(shard)
        limits = (*limits, shard.due) if limits else limits
        names = [shard.ready, shard.active, shard.lone, shard.fence, shard.paused, shard.watched, shard.rules, *limits]
        answer = await self.harness.connections.run(FETCH, names, [GROUP, worker.owner, count, first, len(limits)])
        leases = []
        for each in parse_fetched(answer, worker.owner, first):
            if each.mailbox is None:
                await delete_entries(self.harness.connections, shard, [each.activation])
                continue
            lease = worker.lease(each.mailbox, each.activation)
            lease.holder = each.holder or lease.holder
            lease.attempt_id, lease.begun, lease.has_place = each.attempt_id, each.started, each.has_place
            leases.append(lease)
        return leases

    async def look_over(self) -> None:
        """Look over all mailboxes, as workers do: who waits in no queue is woken."""
        (upkeep,) = self.harness.recovery(self.harness.worker(), limits=self.work).upkeep
        await upkeep.turn()

    async def queue(self, scope: str = "type:box") -> list[str]:
        """Return the mailboxes that wait in a scope's queue, the first one first."""
        members: Any = await self.harness.client.zrangebylex(
            self.harness.shard.places, f"[q\n{scope}\n".encode(), f"(q\n{scope}\x0b".encode()
        )
        return [member.decode().rpartition("\n")[2] for member in members]

    async def places(self, scope: str = "type:box") -> list[str]:
        """Return the mailboxes that have a place of a scope."""
        members: Any = await self.harness.client.zrangebylex(
            self.harness.shard.places, f"[s\n{scope}\n".encode(), f"(s\n{scope}\x0b".encode()
        )
        return [member.decode().rpartition("\n")[2] for member in members]

    async def state(self, mailbox: str) -> str:
        """Return the state of a mailbox; empty if it is idle."""
        record = await self.harness.record(mailbox)
        return "" if record is None else record.state

    async def passes(self) -> list[str]:
        """Return the mailboxes that have passed a limit, and hold a grant or places."""
        fields: Any = await self.harness.client.hkeys(self.harness.shard.limits)  # type: ignore[misc]
        return sorted(field.decode()[2:] for field in fields if field[:2] == b"p\n")
