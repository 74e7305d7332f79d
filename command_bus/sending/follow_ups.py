"""`FollowUps`: the commands that one run of a handler sends with its settlement.

`CommandContext.send` checks and encodes a command at once. Once the handler is over, the commands that its end sends pass the middleware
around dispatches, and become part of the settlement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, Unpack, cast

from command_bus.clock import mono
from command_bus.errors import CommandBusError, InvalidCommand, QueueFull, TransportUnavailable
from command_bus.messages.context import Outbox, running_command
from command_bus.messages.event import EventOptions, PublishOptions
from command_bus.messages.message import Event, Message
from command_bus.messages.options import DispatchOptions
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.sending.call_progress import hops_of
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.sending.publishing import SubscriptionTable
from command_bus.serialization.stored_fields import stored_row
from command_bus.session import Session, SessionPart
from command_bus.tasks import end_tasks
from command_bus.transport.marks import waiting_mark
from command_bus.transport.ports.transport import Transport
from command_bus.transport.steps import FollowUp
from command_bus.transport.submissions import Submission

T = TypeVar("T")

_EVERY = 1.0
"""Seconds between two looks at a shard."""
_BEYOND = 2
"""How many times its limit a shard may hold."""


class ShardDepths(SessionPart):
    """The depths of the shards that handlers of one bus send to. Attach it to the session.

    Args:
        session: Connections and settings of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.renew()

    def renew(self) -> None:
        self._at: tuple[asyncio.AbstractEventLoop, Transport] | None = None
        self._depths: dict[int, int] = {}
        self._looked: dict[int, float] = {}
        self._looks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End the looks."""
        await end_tasks(self._looks)

    def begin(self) -> None:
        """Note the event loop and the transport of the bus; handlers in threads reach neither."""
        if self._at is None:
            self._at = asyncio.get_running_loop(), self._session.transport

    def check(self, mailbox: str) -> None:
        """Check that the shard of a mailbox takes one more command; called in any thread.

        Raises:
            QueueFull: It holds more than twice what it may.
        """
        if self._at is None:
            return
        loop, transport = self._at
        shard, now = transport.shard_of(mailbox), mono()
        if now - self._looked.get(shard, now - _EVERY) >= _EVERY:
            self._looked[shard] = now
            loop.call_soon_threadsafe(self._look_soon, shard)
        most = _BEYOND * -(-self._session.settings.max_total_depth // transport.shards)
        if self._depths.get(shard, 0) > most:
            raise QueueFull(
                f"the shard of this command holds {self._depths[shard]:,} commands, more than twice what max_total_depth allows: let the handler "
                "be retried later, or send less",
                retry_after=_EVERY,
                limit="total",
            )

    def _look_soon(self, shard: int) -> None:
        look = asyncio.get_running_loop().create_task(self._look(shard), name=f"command_bus.depth {shard}")
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look(self, shard: int) -> None:
        with suppress(CommandBusError):  # what was known holds
            self._depths[shard] = await self._session.transport.locations.shard_depth(shard)


_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds
MOST_FOLLOW_UPS = 1_000
MOST_BYTES = 4 * 1024 * 1024
"""Most follow-ups of one settlement, and their payloads together: one script takes them all."""


@dataclass(slots=True)
class _Item:
    out: OutgoingMessage
    always: bool
    is_event: bool = False
    commands: int = 1
    """How many it is sent as: an event once for each subscription, as far as these were known."""


class _Kept(NamedTuple):
    """The parts of a follow-up as an inbox keeps it: those of `OutgoingMessage` that it may have, and when it is sent."""

    name: str
    entity_type: str | None
    entity_id: str | None
    payload: bytes
    command_id: str
    given_id: bool
    at_most_once: bool
    headers: dict[str, str]
    delay_ms: int
    ttl_ms: int | None
    priority: str | None
    tenant: str
    options: dict[str, Any]
    always: bool
    is_event: bool = False
    across_shards: bool = False


class FollowUps(Outbox):
    """Implements `Outbox`.

    Args:
        builder: Encodes commands for the worker's bus.
        prepare: Passes a command through middleware, agrees on its entity type, and makes its submission.
        command_id: Id of the command whose handler runs.
        depths: Refuses what a shard is much too full for.
        subscriptions: The table of those that events are for.
    """

    def __init__(
        self,
        builder: EnvelopeBuilder,
        prepare: Callable[[OutgoingMessage], Awaitable[Submission]],
        command_id: str,
        depths: ShardDepths,
        subscriptions: SubscriptionTable,
    ) -> None:
        self._depths = depths
        self._subscriptions = subscriptions
        self._builder = builder
        self._prepare = prepare
        self._cause = command_id
        self._items: list[_Item] = []
        self._bytes = 0
        self.together: Sequence[FollowUps] = (self,)
        """Those of the commands that are settled with this one: one script takes them all."""
        self.published: tuple[tuple[str | None, str | None, str, str], ...] = ()
        """The events that are sent with the settlement, as a `Settlement` names them."""

    def add(self, command: Message[Any], *, always: bool, **options: Unpack[DispatchOptions]) -> str:
        out = self._builder.outgoing(command, options)
        if out.unique is not None:
            raise InvalidCommand(f"{out.name!r} has a unique key, which context.send does not know: use context.dispatch")
        out.command_id = follow_up_id(self._cause, self.count + 1)
        if (running := running_command()) is not None:
            hops_of(out, running, self._builder.max_hops)  # too long a chain is refused at the call, not with the settlement
        return self._add(_Item(out, always))

    def publish(self, event: Event, *, always: bool, **options: Unpack[EventOptions]) -> str:
        out = self._builder.event(event, cast("PublishOptions", options))
        out.command_id = follow_up_id(self._cause, self.count + 1)
        return self.publish_as(out, always=always)

    def publish_as(self, event: OutgoingMessage, *, always: bool = False) -> str:
        """Publish an event that is encoded, under the id that it has."""
        return self._add(_Item(event, always, is_event=True, commands=len(self._subscriptions.matching(event.name))))

    def _add(self, item: _Item) -> str:
        out, size = item.out, item.commands * len(item.out.payload)
        if sum([each.commands for each in self.together]) + max(item.commands, 1) > MOST_FOLLOW_UPS:
            raise InvalidCommand(
                f"a handler may send {MOST_FOLLOW_UPS:,} commands with its settlement: let one of them send the next ones"
            )
        if self._bytes + size > MOST_BYTES:
            raise InvalidCommand(f"a handler may send {MOST_BYTES:,} bytes with its settlement: {out.name!r} would be more")
        self._depths.check(self._builder.mailbox_for(out))
        self._bytes += size
        self._items.append(item)
        return out.command_id

    @property
    def count(self) -> int:
        """Number of those sent until now, an event once."""
        return len(self._items)

    @property
    def commands(self) -> int:
        """Number of the commands that they are, as far as subscriptions are known."""
        return sum([max(each.commands, 1) for each in self._items])

    def rewind(self, count: int) -> None:
        """Send only the first of what was sent until now."""
        del self._items[count:]
        self._bytes = sum(each.commands * len(each.out.payload) for each in self._items)

    def kept(self) -> list[list[Any]]:
        """Return what was sent until now, as an inbox keeps it."""
        return [
            [getattr(each if name in ("always", "is_event") else each.out, name) for name in _Kept._fields]
            for each in self._items
        ]

    def restore(self, rows: Sequence[Any]) -> None:
        """Send what an earlier run of the command has sent, in place of as many of this one.

        Raises:
            ValueError: It was not written by `kept`.
        """
        stored = [stored_row(_Kept, row)._asdict() for row in rows]
        self._items[: len(stored)] = [
            _Item(always=each.pop("always"), is_event=each.pop("is_event"), out=OutgoingMessage(**each)) for each in stored
        ]
        self._bytes = sum(each.commands * len(each.out.payload) for each in self._items)

    async def settled(self, *, completed: bool) -> tuple[FollowUp, ...]:
        """Return what is sent with this end of the command; called while the handler still counts as running.

        The mailboxes of an entity type may have to be agreed on with the server, and subscriptions to be read. While it is away this waits, as the
        settlement would.

        Raises:
            CommandBusError: An entity type has other mailboxes there, or middleware refuses.
        """
        going = [item for item in self._items if completed or item.always]
        events = [item.out for item in going if item.is_event]
        if events:
            await while_away(partial(self._subscriptions.begin, *events))
        self.published = tuple([(out.entity_type, out.entity_id, out.command_id, out.name) for out in events])
        sent = [out for item in going for out in (self._subscriptions.deliveries(item.out) if item.is_event else (item.out,))]
        return tuple([await self._built(out) for out in sent])

    async def _built(self, out: OutgoingMessage) -> FollowUp:
        submission = await while_away(partial(self._prepare, out))
        mark = waiting_mark(submission.digest, submission.mailbox) if submission.marked else b""
        return FollowUp(submission.mailbox, submission.command_id, submission.entry, submission.flow, submission.delay_ms, mark)


async def while_away(work: Callable[[], Awaitable[T]]) -> T:
    """Return what is needed for a command that leaves with what its handler stores; wait while the server is away."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await work()
        except TransportUnavailable:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def follow_up_id(command_id: str, number: int) -> str:
    """Return the id of the nth command that a handler sends: the same in each attempt, and of the same length however long the chain of causes is."""
    return "~" + blake2b(f"{command_id}\0{number}".encode(), digest_size=16).hexdigest()
