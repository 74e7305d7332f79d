"""The ready stream and its consumer group: create them at the start, and again if they were deleted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from command_bus.errors import CommandBusError
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_not_permitted
from command_bus.transport.redis.connection.retrying import hash_page
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import REACTIVATE

_log = logging.getLogger("command_bus.worker")
_PAGE = 200
_WAITING = (b"l|", b"w|", b"u|")
"""How records begin whose mailbox needs no activation: it waits for a limit, a retry, or what its side record is to have."""
_LIMITED = b"l|"


class RepairedPage(NamedTuple):
    """The result of a look at a page of mailboxes.

    Attributes:
        cursor: Begins the next page; 0 after the last.
        repaired: How many mailboxes got an activation.
        part: How much of all mailboxes with work the page was.
        limited: Those that wait for a limit.
        idle: Whether no mailbox has work.
    """

    cursor: int
    repaired: int
    part: float
    limited: list[str]
    idle: bool


def mailbox_of(fields: dict[bytes, bytes]) -> str:
    """Return the mailbox that an activation names. Bytes that are no mailbox's name give a name without a mailbox; the entry is then dropped."""
    return fields[b"e"].decode(errors="backslashreplace")


async def delete_entries(connections: Connections, keys: ShardKeys, entries: Sequence[str]) -> None:
    """Delete entries of the ready stream that this worker was given and that no mailbox needs.

    Raises:
        CommandBusError: The server cannot be asked.
    """

    async def delete(client: Redis) -> None:
        pipeline = client.pipeline(transaction=False)
        pipeline.xack(keys.ready, GROUP, *entries)
        pipeline.xdel(keys.ready, *entries)
        await pipeline.execute()

    if entries:
        await connections.ask(delete)


async def ensure_ready(connections: Connections, keys: ShardKeys) -> bool:
    """Create the group, reading from the stream's very beginning; return whether it was absent.

    If it was, mailboxes whose activation was deleted with it get a new one: no accepted command may be stuck. A producer has no right to
    check them; then workers do it, when they next check every mailbox.

    Raises:
        CommandBusError: The server cannot be asked.
    """
    if not await connections.ask(_create_group, keys):
        return False
    if await connections.ask(lambda client: client.exists(keys.active)):
        try:
            await _repair_all(connections, keys)
        except CommandBusError as error:
            if not is_not_permitted(error):
                raise
            _log.info("%s was gone; workers see to the mailboxes that lost their activation", keys.ready)
    return True


async def why_gone(connections: Connections, keys: ShardKeys) -> str:
    """Return, for the log, what may have become of a group that was gone.

    Raises:
        CommandBusError: The server cannot be asked.
    """
    if await connections.ask(lambda client: client.hgetall(keys.stats)):
        return "it was deleted"
    return "the namespace was deleted, or its server has lost its data; what this worker had in hand is dropped"


async def _repair_all(connections: Connections, keys: ShardKeys) -> None:
    cursor, repaired, *_ = await repair_page(connections, keys, 0)
    while cursor:
        cursor, more, *_ = await repair_page(connections, keys, cursor)
        repaired += more
    if repaired:
        _log.warning("%s: %d mailboxes had lost their activation and got a new one", keys.ready, repaired)


async def repair_page(connections: Connections, keys: ShardKeys, cursor: int) -> RepairedPage:
    """Give a new activation to those mailboxes of a page that have lost theirs.

    Raises:
        CommandBusError: The server cannot be asked.
    """
    count, following, states = await connections.ask(hash_page, keys.active, cursor, _PAGE)
    asked = [name for name, record in states.items() if record[:2] not in _WAITING]
    names: list[Any] = [keys.ready, keys.active, keys.paused, keys.parked, *keys.fair, keys.lone, keys.stats]
    names += (keys.mailboxes.encode() + name for name in asked)
    repaired = int(await connections.run(REACTIVATE, names, [GROUP, *asked])) if asked else 0
    limited = [name.decode(errors="replace") for name, record in states.items() if record[:2] == _LIMITED]
    return RepairedPage(following, repaired, len(states) / count if count else 1.0, limited, not count)


async def _create_group(client: Redis, keys: ShardKeys) -> bool:
    try:
        await client.xgroup_create(keys.ready, GROUP, id="0", mkstream=True)
    except OutOfMemoryError:  # at its memory limit the server refuses before it looks
        groups: Any = await client.xinfo_groups(keys.ready)
        if GROUP.encode() not in [group["name"] for group in groups]:
            raise
        return False
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
        return False
    return True
