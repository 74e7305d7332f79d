"""`RedisEntities`: read the entities that have work or are stopped, shard by shard.

Nothing here is a snapshot. Entities are found by scans, so one that comes or goes during a scan may be missing; each is listed at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from command_bus.messages.policies import OF_SUBSCRIPTION
from command_bus.serialization.odd_values import stored_ms, stored_number, stored_text
from command_bus.transport.flows import Flow, flow_of_record, parse_flow
from command_bus.transport.mailboxes import is_mailbox, scopes_of
from command_bus.transport.records import EntityCondition, HoldInfo, MailboxHead, StoredEntity
from command_bus.transport.redis.admin.holds import PAUSE_END, parse_hold
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import GROUP, ShardKeys, delayed_id, delayed_member, delayed_number
from command_bus.transport.redis.mailbox_record import (
    BLOCKED,
    HELD,
    HELD_AND_CHANGED,
    IN_LINE,
    LIMITED,
    LONE_HELD,
    LONE_SUSPENDED,
    OLDEST,
    READY,
    RETRYING,
    SUSPENDED,
    MailboxRecord,
    parse_record,
    read_mailboxes,
    shown_envelope,
)
from command_bus.transport.redis.scripts import DELAYED_MAILBOXES, MAILBOX_HEADS

_DUE_PAGE = 1000
_FARTHEST = 100_000  # members of `due` that are looked through for the first of a mailbox
_BYTES = 4 << 20  # of delayed commands that one script looks at: a few milliseconds
_STATES: dict[str, EntityCondition] = {
    READY: "waiting",
    HELD: "running",
    HELD_AND_CHANGED: "running",
    LONE_HELD: "running",
    RETRYING: "retrying",
    LIMITED: "limited",
    SUSPENDED: "suspended",
    LONE_SUSPENDED: "suspended",
    BLOCKED: "blocked",
}


class RedisEntities(RetryingRequests):
    """Implements `EntityReader`."""

    async def pages(self, shard: int, *, lines: bool = False, deliveries: bool = False) -> AsyncIterator[list[StoredEntity]]:
        """Yield the entities of a shard, page by page: those with work, then those that are only paused or have only delayed commands.

        With `lines` only the first; with `deliveries` only the lines of subscriptions.
        """
        keys = self._keys.shards[shard]
        seen: set[bytes] = set()
        for source in (keys.active,) if lines else (keys.active, keys.paused, keys.delayed_counts):
            async for page in self._hash_pages(keys, source, match=f"*{OF_SUBSCRIPTION}*" if deliveries else None):
                names = [name for name in page if name not in seen and b"*" not in name and is_mailbox(name)]
                if deliveries:
                    names = [name for name in names if OF_SUBSCRIPTION.encode() in name.partition(b":")[0]]
                seen.update(names)
                if names:
                    yield await self.look_at(keys, [stored_text(name) for name in names])

    async def look(self, mailbox: str) -> StoredEntity:
        """Return one mailbox, also one without work."""
        return (await self.look_at(self._keys_of(mailbox), [mailbox]))[0]

    async def now_ms(self) -> int:
        """Return the first shard's time."""
        return await self.now_us() // 1000

    async def now_us(self) -> int:
        """Return the first shard's time."""
        seconds, micros = await self._ask(self._keys.shards[0], lambda client: client.time())
        return int(seconds) * 1_000_000 + int(micros)

    async def head(self, mailbox: str, count: int) -> MailboxHead:
        """Return a mailbox with its first `count` entries."""
        index = self._keys.shard_of(mailbox)
        keys = self._keys.shards[index]
        record, (entries,) = await asyncio.gather(
            self._ask(keys, lambda client: client.hget(keys.active, mailbox)),
            read_mailboxes(partial(self._run, keys), keys, [(mailbox, OLDEST)], max(count, 1)),
        )
        found = parse_record(record)
        lease = await self._lease(keys, found.activation) if found.is_held else None
        first = tuple((entry, shown_envelope(fields)) for entry, fields in entries[:count])
        return MailboxHead(lease, first, index)

    async def retry_times(self, mailboxes: Sequence[str]) -> dict[str, int]:
        """Return when the retries of these mailboxes are due, where one waits."""
        found: dict[str, int] = {}
        for keys, names in self._shards_of(mailboxes):
            due = await self._due_times(keys, [f"r:{name}" for name in names])
            found |= {member.removeprefix("r:"): at for member, at in due.items()}
        return found

    async def delayed_times(self, mailbox: str, command_ids: Sequence[str]) -> dict[str, int]:
        """Return when these delayed commands enter their mailbox."""
        keys = self._keys_of(mailbox)
        fields = [delayed_number(command) for command in command_ids]
        numbers = await self._ask(keys, lambda client: client.hmget(keys.delayed_counts, fields)) if fields else []
        members = [
            delayed_member(number, command) for command, number in zip(command_ids, numbers, strict=True) if number is not None
        ]
        return {delayed_id(name): at for name, at in (await self._due_times(keys, members)).items()}

    async def first_delayed(self, mailboxes: Iterable[str]) -> dict[str, int]:
        """Return when the first delayed command of each mailbox enters it.

        Mailboxes are left out whose delayed commands are not among the first 100,000 due members of their shard.
        """
        found: dict[str, int] = {}
        for keys, names in self._shards_of(mailboxes):
            wanted, at = set(names), 0
            while not wanted <= found.keys() and at < _FARTHEST:
                passed, homes = await self._due_page(keys, at)
                if not passed:
                    break
                at += passed
                found |= {home: due for home, due in reversed(homes) if home in wanted - found.keys()}
        return found

    async def _due_page(self, keys: ShardKeys, start: int) -> tuple[int, list[tuple[str, int]]]:
        """Return how many members of `due` were read from `start` on, and mailbox and time of the delayed commands among them, in order."""
        members: Any = await self._ask(
            keys, lambda client: client.zrange(keys.due, start, start + _DUE_PAGE - 1, withscores=True)
        )
        at = [index for index, (name, _) in enumerate(members) if name[:2] == b"d:"]
        if not at:
            return len(members), []
        homes = await self._run(
            keys, DELAYED_MAILBOXES, [keys.delayed], [_BYTES, *(delayed_id(stored_text(members[index][0])) for index in at)]
        )
        passed = len(members) if len(homes) == len(at) else at[len(homes)]
        return passed, [
            (home.decode(errors="replace"), stored_ms(members[index][1])) for home, index in zip(homes, at, strict=False)
        ]

    async def _lease(self, keys: ShardKeys, activation: str) -> int | None:
        async def read(client: Redis) -> Any:
            try:
                return await client.xpending_range(keys.ready, GROUP, min=activation, max=activation, count=1)
            except ResponseError:  # the group is gone
                return []

        pending = await self._ask(keys, read)
        return int(pending[0]["time_since_delivered"]) if pending else None

    async def look_at(self, keys: ShardKeys, texts: list[str]) -> list[StoredEntity]:
        """Return mailboxes of a shard, with or without work. One round trip, or two if something is paused."""
        wide = [*dict.fromkeys(scope for text in texts for scope in scopes_of(text)[1:])]

        async def read(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            for source in (keys.active, keys.paused, keys.parked, keys.delayed_counts):
                pipeline.hmget(source, texts)
            pipeline.hmget(keys.paused, wide)
            return await pipeline.execute()

        boxes = [keys.active, *map(keys.mailbox, texts)]
        (records, paused, parked, later, held), lengths = await asyncio.gather(
            self._ask(keys, read), self._run(keys, MAILBOX_HEADS, boxes, [len(keys.mailboxes)])
        )
        holds = {scope: parse_hold(scope, value) for scope, value in zip([*texts, *wide], [*paused, *held], strict=True) if value}
        if holds:
            ends = await self._due_times(keys, [f"{PAUSE_END}{scope}" for scope in holds])
            holds = {scope: replace(hold, until_ms=ends.get(f"{PAUSE_END}{scope}")) for scope, hold in holds.items()}
        return [
            surveyed(text, holds, *facts)
            for text, *facts in zip(texts, records, parked, later, lengths[::2], lengths[1::2], strict=True)
        ]


def surveyed(
    mailbox: str,
    holds: dict[str, HoldInfo],
    record: bytes | None,
    parked: bytes | None,
    delayed: bytes | None,
    length: int,
    head: bytes,
) -> StoredEntity:
    """Return a mailbox, combined from its keys. A paused entity whose command still runs is running.

    Args:
        mailbox: Its name.
        holds: What is paused or drained, by scope.
        record: Its field of `active`, or None.
        parked: Its field of `parked`, or None.
        delayed: Its field of `later`, or None.
        length: How many of its commands are not settled, without the delayed ones.
        head: The id of the oldest of them, or empty.
    """
    fields = parse_record(record)
    snoozes = fields.snoozes_of(head.decode(errors="replace"))
    shown = "snoozed" if fields.state == RETRYING and snoozes.waits else _STATES.get(fields.state, "waiting")
    found = [holds[scope] for scope in scopes_of(mailbox) if scope in holds]
    paused = next((hold for hold in found if hold.mode == "paused"), None)
    if shown != "running" and parked is not None:
        shown = "parked"
    elif shown != "running" and paused is not None:
        shown = "paused"
    elif shown == "waiting" and found:
        shown = "draining"
    return StoredEntity(
        mailbox,
        shown,
        max(length, 0) + stored_number("later", delayed),
        stored_number("active", head.partition(b"-")[0] or None),
        fields.attempt or int(fields.first_ms < 0),
        fields.holder if fields.is_held else "",
        snoozes.first_ms or abs(fields.first_ms),
        fields.started_us // 1000,
        (parked or b"").decode(errors="replace"),
        paused or next(iter(found), None),
        stored_text(head),
        flow_of_entity(fields, stored_text(head)),
        snoozes.times,
        fields.failure_of(stored_text(head)),
        fields.last_running if fields.is_held else "",
        fields.parts.get("at", ""),
    )


def flow_of_entity(record: MailboxRecord, head: str) -> Flow:
    """Return what an entity waits in: in the line by its place there, else by its next command."""
    if record.state == IN_LINE:
        return parse_flow(record.holder.partition("/")[0])
    return flow_of_record(record.parts.get("f"), head)
