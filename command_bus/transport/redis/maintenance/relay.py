"""`RelayJob`: brings follow-ups to other shards.

A settlement writes those for another shard into a stream of its own shard, one for each other shard, and a member `o:<shard>` of `due` says
that there are some. Any worker may relay them. `lua/relay.lua` takes each of them once, and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from command_bus.errors import CommandBusError
from command_bus.serialization.odd_values import pass_over
from command_bus.transport.flows import OUTCOME_FLOW
from command_bus.transport.redis.connection.connections import Connections, PageSize
from command_bus.transport.redis.connection.errors import is_of_a_value
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.maintenance.due_work import Member, PageResult
from command_bus.transport.redis.scripts import RELAY, RELAYED

_PAGE = 100
_MOST_BYTES = 1024 * 1024
"""Bytes of one page, and one entry more: a script with them takes a few milliseconds."""
_PATIENCE = 2.0
"""Seconds for which the request for an incarnation is repeated: other due work waits meanwhile."""
_log = logging.getLogger("command_bus.transport")


class _Written(NamedTuple):
    """A follow-up as it stands in the stream for its shard."""

    entry: str
    text: str
    at_ms: bytes
    envelope: bytes
    extra: bytes

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.envelope) + len(self.extra)

    def keys(self, target: ShardKeys) -> tuple[str, str]:
        """Return its mailbox, and its mark or the side record that it is for."""
        _, flow, mailbox, command_id = self.text.split("|", 3)
        return target.mailbox(mailbox), target.side(command_id) if flow == OUTCOME_FLOW else target.mark(command_id)


def _written(entry: bytes, fields: Mapping[bytes, bytes]) -> _Written | None:
    """Return an entry; None if it is no follow-up."""
    try:
        written = _Written(entry.decode(), fields[b"t"].decode(), fields[b"a"], fields[b"e"], fields[b"x"])
        _, _, mailbox, _ = written.text.split("|", 3)
        if mailbox and written.at_ms.isdigit():
            return written
    except (KeyError, ValueError):
        pass
    pass_over("out", entry, f"is no follow-up: it has the fields {sorted(fields)}")
    return None


class RelayJob:
    """Relays the follow-ups that one shard has for others.

    Args:
        connections: Clients that this process shares.
        keys: All shards.
        shard: This one.
    """

    def __init__(self, connections: Connections, keys: KeySpace, shard: ShardKeys) -> None:
        self._connections = connections
        self._keys = keys
        self._shard = shard
        self._number = keys.shards.index(shard)
        self._incarnations = Incarnations(connections, keys, patience=_PATIENCE)
        self._source = connections.at(shard.prefix)
        self._pages = PageSize(_PAGE, _MOST_BYTES)
        self._backoff = LoggedBackoff(self._source.outage, "cannot relay commands to another shard", _log)

    async def perform(self, members: Sequence[Member]) -> PageResult:
        """Relay what can be relayed now; what waits for another server is left."""
        done, left = 0, list[str]()
        for member in members:
            try:
                relayed = await self._relay(member.name)
                self._backoff.worked()
            except CommandBusError as error:
                if is_of_a_value(error):
                    pass_over("due", member.name, error)
                else:
                    self._backoff.failed(error)
                relayed = False
            if relayed:
                done += 1
            else:
                left.append(member.name)
        return PageResult(done, left)

    async def _relay(self, member: str) -> bool:
        """Relay all that is there for a shard; return False if some is left for later."""
        number = int(member[2:]) if member[2:].isdecimal() else self._keys.count
        if number >= self._keys.count:
            return False
        target, out = self._keys.shards[number], f"{self._shard.outs}{number}"
        generation, _ = await self._take(target, "", "", [])
        while True:
            page = await self._page(out)
            if not page:
                return await self._delete(out, member, [])
            if self._source.confirms and not await self._delete(out, member, []):
                return False  # the replicas do not have it: after a failover it may not have been sent
            generation, confirmed = await self._take(target, str(generation), page[0].entry, page)
            if generation is None or not confirmed:
                return False
            await self._delete(out, member, page)

    async def _page(self, out: str) -> list[_Written]:
        """Return the first entries of a stream, at most a megabyte or one; what is read beyond that is read again. Odd ones stay where they are."""
        page: list[_Written] = []
        start = "-"
        while not page:
            found: Any = await self._source.ask(lambda client, after: client.xrange(out, after, count=self._pages.count), start)
            if not found:
                return page
            start, size = f"({found[-1][0].decode()}", 0
            for entry, fields in found:
                written = _written(entry, fields)
                size += 0 if written is None else written.size
                if size > _MOST_BYTES and page:
                    break
                if written is not None:
                    page.append(written)
            self._pages.observe(sum(sum(map(len, fields.values())) for _, fields in found), len(found))
        return page

    async def _take(self, target: ShardKeys, generation: str, floor: str, page: Sequence[_Written]) -> tuple[int | None, bool]:
        """Give a page to its shard; return the next generation, None if another worker was asked since, and whether replicas have it."""
        keys = [target.ready, target.active, target.lone, target.paused, target.due, target.delayed, target.delayed_counts]
        keys += [target.stats, f"{target.relays}{self._number}", target.watched, target.events, *target.fair, target.suspended]
        args: list[Any] = [GROUP, generation, floor, await self._incarnations.of(target)]
        for each in page:
            keys += each.keys(target)
            args += each
        answer, confirmed = await self._connections.at(target.prefix).run_confirmed(RELAY, keys, args, target.stats)
        self._incarnations.check(answer)
        return answer, confirmed

    async def _delete(self, out: str, member: str, page: Sequence[_Written]) -> bool:
        """Delete what was taken; return whether replicas know all that stood there."""
        args = [member, *(each.entry for each in page)]
        _, confirmed = await self._source.run_confirmed(
            RELAYED, [out, self._shard.due, self._shard.stats], args, self._shard.stats
        )
        return confirmed
