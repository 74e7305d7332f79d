"""`LostOutcomes`: delivers the outcome of a call that was lost on its way. What the call came to is in its mark."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from command_bus.serialization.reply import Interrupted, pack_reply
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.marks import mailbox_in, reply_in
from command_bus.transport.ports.durable import (
    MOST_OTHER_SIGNAL_BYTES,
    MOST_OTHER_SIGNALS,
    MOST_SIGNAL_BYTES,
    MOST_SIGNALS,
    CalledCommand,
    Told,
)
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.scripts import TELL

_KEPT_MS = 30 * 24 * 3600 * 1000
"""Milliseconds for which a signal is kept for a command that has not started: 30 days."""
_ANSWERS: dict[bytes, Told] = {b"taken": "taken", b"repeated": "repeated", b"ending": "ending", b"gone": "gone", b"full": "full"}


class Telling(NamedTuple):
    """Something for a durable command: the arguments of `lua/tell.lua`."""

    kind: Literal["signal", "cancel", "outcome"]
    value: bytes
    what: str = ""
    once: str = ""
    parked: str = ""


async def tell(connections: Connections, keys: ShardKeys, mailbox: str, command_id: str, telling: Telling) -> Told:
    """Bring something to a durable command, whether replicas have it or not.

    Raises:
        CommandBusError: The server cannot be asked.
    """
    return (await told_and_confirmed(connections, keys, mailbox, command_id, telling))[0]


async def told_and_confirmed(
    connections: Connections, keys: ShardKeys, mailbox: str, command_id: str, telling: Telling
) -> tuple[Told, bool]:
    """Bring something to a durable command; return also whether the replicas that must have it do."""
    names = [keys.ready, keys.active, keys.paused, keys.due, keys.suspended, *keys.fair]
    names += [keys.mailbox(mailbox), keys.mark(command_id), keys.side(command_id)]
    args = [GROUP, mailbox, telling.kind, telling.what, telling.once, telling.value, _KEPT_MS]
    args += [telling.parked, MOST_SIGNALS, MOST_SIGNAL_BYTES, MOST_OTHER_SIGNALS, MOST_OTHER_SIGNAL_BYTES]
    answer, confirmed = await connections.run_confirmed(TELL, names, args, keys.stats)
    return _ANSWERS[answer], confirmed


_log = logging.getLogger("command_bus.worker")


@dataclass(eq=False)
class LostOutcomes:
    """Looks up calls that are waited for.

    Attributes:
        connections: Clients that this process shares.
        space: All shards.
    """

    connections: Connections
    space: KeySpace

    async def look_up(self, mailbox: str, command_id: str, called: CalledCommand) -> bool:
        """Deliver the outcome of a call that has ended; tell the command if the call is nowhere. Return whether it was told anything.

        Args:
            mailbox: Name of the mailbox of the command that waits.
            command_id: Id of that.
            called: What it waits for.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        mark = await self.mark(called)
        if mailbox_in(mark) is not None or (mark is None and await self._is_under_way(mailbox, called)):
            return False
        record = reply_in(mark) or pack_reply(
            called.command_id, Interrupted("it was lost: neither its mailbox nor what remembers it is there; it may have run")
        )
        if not await self.tell(mailbox, command_id, called, record):
            return False
        _log.warning(
            "%s waited for the end of %s, whose outcome was lost on its way: it is delivered now",
            mailbox_label(mailbox),
            called.command_id,
        )
        return True

    async def mark(self, called: CalledCommand) -> Any:
        """Return the mark of a call."""
        keys = self.space.of(called.mailbox)
        return await self.connections.at(keys.prefix).ask(lambda client: client.get(keys.mark(called.command_id)))

    async def tell(self, mailbox: str, command_id: str, called: CalledCommand, record: bytes) -> bool:
        """Bring a command the outcome of a call; return False if it had it, or is gone."""
        keys = self.space.of(mailbox)
        outcome = Telling("outcome", record, called.call, called.command_id)
        return await tell(self.connections.at(keys.prefix), keys, mailbox, command_id, outcome) == "taken"

    async def _is_under_way(self, mailbox: str, called: CalledCommand) -> bool:
        """Return whether a call may still be relayed to its shard."""
        source, target = self.space.of(mailbox), self.space.shard_of(called.mailbox)
        if self.space.shards[target] is source:
            return False
        return bool(await self.connections.at(source.prefix).ask(lambda client: client.exists(f"{source.outs}{target}")))
