"""`UniqueSweep`: releases unique keys whose command is gone without having released its key, and those whose window has passed.

A command that cannot be read when it is settled does not name its key, and other programs delete things. Such a key folds nothing for long: the
workers look at a page of all keys at a time, as often as they repair mailboxes.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from command_bus.transport.mailboxes import is_mailbox
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import SWEEP_UNIQUE
from command_bus.transport.unique_keys import mailbox_of_key

_PAGE = 200


async def sweep_page(connections: Connections, keys: ShardKeys, cursor: int) -> tuple[int, int, float]:
    """Release those keys of a page whose command is gone.

    Returns:
        The next cursor, how many keys were released, and which part of all keys the page was.

    Raises:
        CommandBusError: The server cannot be asked.
    """

    async def read(client: Redis) -> Any:
        pipeline = client.pipeline(transaction=False)
        pipeline.hlen(keys.unique)
        pipeline.hscan(keys.unique, cursor, count=_PAGE)
        return await pipeline.execute()

    count, (following, found) = await connections.ask(read)
    stored = [key for key in found if is_mailbox(key)]
    names = [keys.unique, keys.active, keys.delayed, *(keys.mailbox(mailbox_of_key(key.decode())) for key in stored)]
    released = int(await connections.run(SWEEP_UNIQUE, names, [len(keys.mailboxes), *stored])) if stored else 0
    return int(following), released, len(found) / count if count else 1.0
