"""What a worker does again and again for a shard, for as long as it lives, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from command_bus.errors import CommandBusError
from command_bus.transport.redis.connection.outage_log import LoggedBackoff, OutageLog

__all__ = ["run_periodically"]

_log = logging.getLogger("command_bus.worker")


async def run_periodically(turn: Callable[[], Awaitable[float]], woken: asyncio.Event, what: str, outage: OutageLog) -> None:
    """Take turns for ever.

    Args:
        turn: Does its part and tells the seconds until the next turn.
        woken: Set by whoever wants the next turn now.
        what: This is, for the log.
        outage: Of the server that it asks.
    """
    backoff = LoggedBackoff(outage, f"{what}: cannot look", _log)
    while True:
        woken.clear()
        try:
            pause = await turn()
            backoff.worked()
        except CommandBusError as error:
            pause = backoff.failed(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, this must go on
            pause = backoff.failed(error, unexpected=True)
        try:
            async with asyncio.timeout(pause):
                await woken.wait()
        except TimeoutError:
            pass
