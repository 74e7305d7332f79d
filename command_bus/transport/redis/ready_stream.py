"""The ready stream and its consumer group: made at the start, made anew if somebody deleted them."""

from __future__ import annotations

import logging
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from command_bus.errors import CommandBusError
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_not_permitted
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.scripts import REACTIVATE

__all__ = ["ensure_ready", "mailbox_of", "repair_page"]

_log = logging.getLogger("command_bus.worker")
_PAGE = 200


def mailbox_of(fields: dict[bytes, bytes]) -> str:
    """The mailbox that an activation names. Bytes that no mailbox is named with name none: such an entry is dropped in time."""
    return fields[b"e"].decode(errors="backslashreplace")


async def ensure_ready(connections: Connections, keys: ShardKeys) -> bool:
    """Create the group, reading from the stream's very beginning; whether it was absent.

    If it was, mailboxes whose activation went with it get a new one: nothing that was accepted may be stuck. Who may only send may not
    look at them: workers do, when they next look at every mailbox.

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


async def _repair_all(connections: Connections, keys: ShardKeys) -> None:
    cursor, repaired = await repair_page(connections, keys, 0)
    while cursor:
        cursor, more = await repair_page(connections, keys, cursor)
        repaired += more
    if repaired:
        _log.warning("%s: %d mailboxes had lost their activation and got a new one", keys.ready, repaired)


async def repair_page(connections: Connections, keys: ShardKeys, cursor: int) -> tuple[int, int]:
    """Look at some mailboxes with work and give those a new activation that have lost theirs: the next cursor, and how many."""
    page: Any = await connections.ask(lambda client: client.hscan(keys.active, cursor, count=_PAGE))
    following, states = page
    repaired = (
        int(await connections.run(REACTIVATE, [keys.ready, keys.active, keys.paused, keys.parked], [GROUP, *states]))
        if states
        else 0
    )
    return int(following), repaired


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
