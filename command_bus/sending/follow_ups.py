"""`FollowUps`: the commands that one run of a handler sends with its settlement.

`CommandContext.send` checks and encodes a command at once. Once the handler is over, the commands that its end sends pass the middleware
around dispatches, and become part of the settlement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Unpack

from command_bus.errors import InvalidCommand, TransportUnavailable
from command_bus.messages.context import Outbox
from command_bus.messages.message import Message
from command_bus.messages.options import FollowUpOptions
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.sending.shard_depths import ShardDepths
from command_bus.transport.marks import waiting_mark
from command_bus.transport.steps import FollowUp
from command_bus.transport.submissions import Submission

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds
MOST_FOLLOW_UPS = 1_000
MOST_BYTES = 4 * 1024 * 1024
"""Most follow-ups of one settlement, and their payloads together: one script takes them all."""


@dataclass(slots=True)
class _Item:
    out: OutgoingMessage
    always: bool


class FollowUps(Outbox):
    """Implements `Outbox`.

    Args:
        builder: Of the worker's bus.
        prepare: Passes a command through middleware, agrees on its entity type, and makes its submission.
        command_id: Of the command whose handler runs.
        depths: Refuses what a shard is much too full for.
    """

    def __init__(
        self,
        builder: EnvelopeBuilder,
        prepare: Callable[[OutgoingMessage], Awaitable[Submission]],
        command_id: str,
        depths: ShardDepths,
    ) -> None:
        self._depths = depths
        self._builder = builder
        self._prepare = prepare
        self._cause = command_id
        self._items: list[_Item] = []
        self._bytes = 0

    def add(self, command: Message[Any], *, always: bool, **options: Unpack[FollowUpOptions]) -> str:
        number = len(self._items) + 1
        if number > MOST_FOLLOW_UPS:
            raise InvalidCommand(
                f"a handler may send {MOST_FOLLOW_UPS:,} commands with its settlement: let one of them send the next ones"
            )
        out = self._builder.outgoing(command, **options)
        if out.unique is not None:
            raise InvalidCommand(f"{out.name!r} has a unique key, which context.send does not know: use context.dispatch")
        if self._bytes + len(out.payload) > MOST_BYTES:
            raise InvalidCommand(f"a handler may send {MOST_BYTES:,} bytes with its settlement: {out.name!r} would be more")
        out.command_id = follow_up_id(self._cause, number)
        self._depths.check(self._builder.mailbox_for(out))
        self._bytes += len(out.payload)
        self._items.append(_Item(out, always))
        return out.command_id

    async def settled(self, *, completed: bool) -> tuple[FollowUp, ...]:
        """Return what is sent with this end of the command; called while the handler still counts as running.

        The mailboxes of an entity type may have to be agreed on with the server. While it is away this waits, as the settlement would.

        Raises:
            CommandBusError: An entity type has other mailboxes there, or middleware refuses.
        """
        return tuple([await self._built(item.out) for item in self._items if completed or item.always])

    async def _built(self, out: OutgoingMessage) -> FollowUp:
        submission = await prepared(self._prepare, out)
        mark = waiting_mark(submission.digest, submission.mailbox) if submission.marked else b""
        return FollowUp(
            submission.mailbox, submission.command_id, submission.envelope, submission.flow, submission.delay_ms, mark
        )


async def prepared(prepare: Callable[[OutgoingMessage], Awaitable[Submission]], out: OutgoingMessage) -> Submission:
    """Return the submission of a command that leaves with what its handler stores; wait while the server is away."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await prepare(out)
        except TransportUnavailable:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def follow_up_id(command_id: str, number: int) -> str:
    """Return the id of the nth command that a handler sends: the same in each attempt, and of the same length however long the chain of causes is."""
    return "~" + blake2b(f"{command_id}\0{number}".encode(), digest_size=16).hexdigest()
