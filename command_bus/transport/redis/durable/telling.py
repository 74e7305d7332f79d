"""Brings signals, wishes and outcomes to a durable command."""

from __future__ import annotations

from typing import Literal, NamedTuple

from command_bus.transport.durable import MOST_OTHER_SIGNAL_BYTES, MOST_OTHER_SIGNALS, MOST_SIGNAL_BYTES, MOST_SIGNALS, Told
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import GROUP, ShardKeys
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
