"""What a worker does again and again for a shard, for as long as it lives, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from command_bus.errors import CommandBusError
from command_bus.transport.redis.connections import Backoff

__all__ = ["go_round"]

_log = logging.getLogger("command_bus.worker")


async def go_round(turn: Callable[[], Awaitable[float]], woken: asyncio.Event, what: str) -> None:
    """Take turns for ever.

    Args:
        turn: Does its part and tells the seconds until the next turn.
        woken: Set by whoever wants the next turn now.
        what: This is, for the log.
    """
    backoff = Backoff()
    while True:
        woken.clear()
        try:
            pause = await turn()
            backoff.reset()
        except CommandBusError as error:
            pause = backoff.next()
            _log.warning("%s: cannot look, next try in %.2f s: %s", what, pause, error)
        except Exception:  # noqa: BLE001 - whatever it is, this must go on
            pause = backoff.next()
            _log.warning("%s: failed, next try in %.2f s", what, pause, exc_info=True)
        try:
            async with asyncio.timeout(pause):
                await woken.wait()
        except TimeoutError:
            pass
