"""`SuspendedWork`: looks after what is suspended: outcomes that were lost on their way, and circles of commands that wait for each other.

An outcome is delivered in the step that settles the command, or relayed to another shard. Where an operator removes a command, or a failover
loses a delivery, none is. So a command that waits for longer than a minute is looked at: what its calls came to is in their marks. All that is
suspended is looked at within ten minutes, before a mark is over.

Two commands that call each other's entities from two sides wait for ever. A circle of waits does not change by itself. So the waits of each are
followed from entity to entity. A circle is looked at again in the next turn; one that is still there ends with an error for the call that came
last.

`SuspendedReading`: reads what suspended commands wait for.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from command_bus.randomness import JITTER
from command_bus.serialization.odd_values import pass_over, stored_text
from command_bus.serialization.reply import Cancelled, pack_reply
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.marks import mailbox_in
from command_bus.transport.ports.durable import CIRCLE, CalledCommand
from command_bus.transport.records import called_in
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_of_a_value
from command_bus.transport.redis.connection.retrying import server_ms
from command_bus.transport.redis.durable.lost_outcomes import LostOutcomes
from command_bus.transport.redis.durable.side_records import read_fields
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.maintenance.periodic import Periodic

_READ_AT_ONCE = 1_000


class SuspendedCommand(NamedTuple):
    """A command that waits."""

    mailbox: str
    command_id: str
    since_ms: int
    awaited: tuple[CalledCommand, ...]
    only_calls: bool
    """Whether it waits for all of these calls, and for nothing else."""


@dataclass(eq=False)
class SuspendedReading:
    """Reads the suspended commands of all shards.

    Attributes:
        connections: Clients that this process shares.
        space: All shards.
    """

    connections: Connections
    space: KeySpace

    async def holders(self, mailboxes: Sequence[str]) -> dict[str, SuspendedCommand]:
        """Return the commands that are suspended in these mailboxes, where one is."""
        by_shard: dict[int, list[str]] = defaultdict(list)
        for mailbox in mailboxes:
            by_shard[self.space.shard_of(mailbox)].append(mailbox)
        found: dict[str, SuspendedCommand] = {}
        for number, names in by_shard.items():
            keys = self.space.shards[number]
            values = await self._fields(keys.prefix, keys.suspended, names)
            for mailbox, value in zip(names, values, strict=True):
                suspended = None if value is None else await self.read(mailbox, value)
                if suspended is not None:
                    found[mailbox] = suspended
        return found

    async def read(self, mailbox: str, value: bytes) -> SuspendedCommand | None:
        """Return a suspended command by what the hash `suspended` has for its mailbox; None if that cannot be read."""
        since, _, command_id = value.decode(errors="replace").partition("|")
        if not since.isdecimal():
            pass_over("suspended", mailbox, f"is none: {value!r}")
            return None
        try:
            return await self._suspended(mailbox, command_id, int(since))
        except Exception as error:
            if not is_of_a_value(error):
                raise
            pass_over("x", command_id, error)
            return None

    async def _suspended(self, mailbox: str, command_id: str, since_ms: int) -> SuspendedCommand:
        keys = self.space.of(mailbox)
        side = keys.side(command_id)
        awaiting = await self._awaiting(keys.prefix, side)
        calls = [field[2:] for field in awaiting if field.startswith("o:")]
        waits, *known = await self._fields(keys.prefix, side, ["w", *(f"c:{call}" for call in calls)])
        fence, _, left = stored_text(waits or b"").partition("|")
        awaited = {field for field, of in awaiting.items() if of == fence}
        children = tuple(
            CalledCommand(call, *called_in(value))
            for call, value in zip(calls, known, strict=True)
            if value is not None and f"o:{call}" in awaited
        )
        is_all = len(children) == len(awaited) == int(left or 0) > 0
        if is_all:  # else what is followed ends here
            is_all = await self.connections.at(keys.prefix).ask(lambda client: client.zscore(keys.due, f"r:{mailbox}")) is None
        return SuspendedCommand(mailbox, command_id, since_ms, children, is_all)

    async def _awaiting(self, prefix: str, side: str) -> dict[str, str]:
        """Return the fields that a side record says are awaited, each with the fence of who awaits it."""
        found: dict[str, str] = {}
        cursor = 0
        while True:
            answer: Any = await self.connections.at(prefix).ask(
                lambda client, cursor: client.hscan(side, cursor, match="a:*", count=_READ_AT_ONCE), cursor
            )
            cursor = int(answer[0])
            found |= {stored_text(name)[2:]: stored_text(value) for name, value in answer[1].items()}
            if cursor == 0:
                return found

    async def _fields(self, prefix: str, key: str, names: Sequence[str]) -> list[bytes | None]:
        return await read_fields(self.connections.at(prefix), key, names)


_PAGE = 50
"""Commands that a turn looks at, at least."""
_EVERY = 5.0
"""Seconds between two turns."""
_ROUND = 600.0
"""Seconds within which all are looked at."""
_LOST_AFTER_MS = 60_000
"""Milliseconds for which a command waits before its calls are looked up."""
_CIRCLE_AFTER_MS = 1_000
_LONGEST = 50
"""Most entities of a circle."""
_MOST_FOLLOWED = 1_000
"""Most entities that are followed from one command."""
_MOST_CIRCLES = 1_000
"""Most circles that are looked at again."""
_log = logging.getLogger("command_bus.worker")


class _Edge(NamedTuple):
    """A command that waits, and the call that it waits for, whose entity another one holds."""

    waits: SuspendedCommand
    child: CalledCommand


_Circle = tuple[tuple[str, str, int, str], ...]
"""The mailbox, the command, the ms since when it waits, and the call, for each that waits in a circle; sorted."""


class SuspendedWork(Periodic):
    """Looks after the suspended commands of one shard."""

    name = "suspended work"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reading = SuspendedReading(self.connections, self.space)
        self._lost = LostOutcomes(self.connections, self.space)
        self._cursor = 0
        self._seen: dict[_Circle, str] = {}
        self._found: dict[_Circle, str] = {}

    async def turn(self) -> float:
        """Look at the circles of the last turn again, and at some more commands; return the seconds until the next turn."""
        self._found = {}
        for mailbox in dict.fromkeys(self._seen.values()):
            for suspended in (await self._reading.holders([mailbox])).values():
                await self._alone(mailbox, self._follow(suspended))
        count: Any = await self.server.ask(lambda client: client.hlen(self.keys.suspended))
        left = max(_PAGE, math.ceil(count * _EVERY / _ROUND)) if count else 0
        while left > 0:
            left -= await self._page()
            if self._cursor == 0:
                break
        self._seen = dict(list(self._found.items())[:_MOST_CIRCLES])
        return _EVERY * JITTER.uniform(0.8, 1.2)

    async def _page(self) -> int:
        """Look at a page of what is suspended; return how many commands it has."""
        found: Any = await self.server.ask(lambda client: client.hscan(self.keys.suspended, self._cursor, count=_PAGE))
        self._cursor, entries = int(found[0]), found[1]
        if entries:
            now_ms = server_ms(await self.server.ask(lambda client: client.time()))
            for mailbox, value in entries.items():
                await self._alone(mailbox, self._look(stored_text(mailbox), value, now_ms))
        return max(len(entries), 1)

    async def _alone(self, mailbox: bytes | str, look: Awaitable[None]) -> None:
        """Look at one command, or pass it over if what is stored of it, or of its calls, is odd."""
        try:
            await look
        except Exception as error:
            if not is_of_a_value(error):
                raise
            pass_over("suspended", mailbox, error)

    async def _look(self, mailbox: str, value: bytes, now_ms: int) -> None:
        since = value.partition(b"|")[0]
        waited_ms = now_ms - int(since) if since.isdigit() else 0
        if waited_ms < _CIRCLE_AFTER_MS:
            return
        suspended = await self._reading.read(mailbox, value)
        if suspended is None:
            return
        if waited_ms >= _LOST_AFTER_MS:
            for child in suspended.awaited:
                await self._lost.look_up(suspended.mailbox, suspended.command_id, child)
        await self._follow(suspended)

    async def _follow(self, first: SuspendedCommand) -> None:
        """Follow what a command waits for, from entity to entity; end a circle that was seen in the last turn."""
        came_by: dict[str, _Edge] = {}
        level: Sequence[SuspendedCommand] = [first]
        for _ in range(_LONGEST):
            edges = {child.mailbox: _Edge(each, child) for each in level if each.only_calls for child in each.awaited}
            if first.mailbox in edges:
                came_by[first.mailbox] = edges[first.mailbox]
                await self._circle(_path(first.mailbox, came_by))
                return
            new = [mailbox for mailbox in edges if mailbox not in came_by][: _MOST_FOLLOWED - len(came_by)]
            came_by |= {mailbox: edges[mailbox] for mailbox in new}
            holders = await self._reading.holders(new)
            level = list(holders.values())
            if not level:
                return

    async def _circle(self, circle: Sequence[_Edge]) -> None:
        """Note a circle; end it if it was seen in the last turn."""
        waits = tuple(
            sorted((each.waits.mailbox, each.waits.command_id, each.waits.since_ms, each.child.call) for each in circle)
        )
        self._found[waits] = circle[0].waits.mailbox
        last = max(circle, key=lambda edge: (edge.waits.since_ms, edge.waits.mailbox))
        if waits not in self._seen or self.space.of(last.waits.mailbox) is not self.keys:
            return  # who looks after the shard of the last finds it as well
        if not await self._all_wait([edge.child for edge in circle]):
            return  # an outcome is on its way
        start = list(circle).index(last)
        labels = [mailbox_label(edge.waits.mailbox) for edge in (*circle[start:], *circle[:start], last)]
        message = f"these wait for each other: {' → '.join(labels)}"
        _log.warning("%s: the call of %s is ended", message, labels[0])
        record = pack_reply(last.child.command_id, Cancelled(message, CIRCLE))
        await self._lost.tell(last.waits.mailbox, last.waits.command_id, last.child, record)

    async def _all_wait(self, children: Collection[CalledCommand]) -> bool:
        """Return whether none of these has ended."""
        for child in children:
            if mailbox_in(await self._lost.mark(child)) is None:
                return False
        return True


def _path(first: str, came_by: dict[str, _Edge]) -> list[_Edge]:
    """Return the way from a mailbox back to it, by the edge that leads to each."""
    path = [came_by[first]]
    while path[-1].waits.mailbox != first:
        path.append(came_by[path[-1].waits.mailbox])
    return path[::-1]
