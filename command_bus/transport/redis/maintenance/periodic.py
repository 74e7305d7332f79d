"""`run_periodically`: run a periodic job until cancelled, backing off after errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from command_bus.errors import CommandBusError
from command_bus.transport.redis.connection.outage_log import LoggedBackoff, OutageLog

_log = logging.getLogger("command_bus.worker")


async def run_periodically(turn: Callable[[], Awaitable[float]], woken: asyncio.Event, what: str, outage: OutageLog) -> None:
    """Run turns until cancelled.

    Args:
        turn: Does its part and returns the seconds until the next turn.
        woken: Set to run the next turn now.
        what: Name of the job, for the log.
        outage: The outage of the server that it asks.
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
