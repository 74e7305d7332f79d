"""What a service of `Type=notify` tells systemd: that it is up, and with `WatchdogSec=` again and again that its event loop turns.

It is a datagram to the socket that systemd names in the environment. The signs of life come from the event loop itself and not from a
thread, because a loop that is stuck is what they are for. The variables are taken away as they are read, as `sd_notify` can: processes
that are started from here are no service.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, MutableMapping
from contextlib import asynccontextmanager

__all__ = ["notify_systemd"]

_log = logging.getLogger("command_bus.cli")


@asynccontextmanager
async def notify_systemd(environment: MutableMapping[str, str] = os.environ) -> AsyncGenerator[Callable[[], None]]:
    """Give signs of life while the block runs, if they are wanted; gives what is to be called when the service is up."""
    address, period = environment.pop("NOTIFY_SOCKET", ""), _period(environment)
    if not address:
        yield _nothing
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)  # a sign that cannot be sent now is not worth waiting for

        def tell(state: str) -> None:
            try:
                channel.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
            except OSError as error:
                _log.warning("systemd was not told %s: %s", state, error)

        signs = asyncio.create_task(_signs(tell, period), name="command_bus.watchdog") if period else None
        try:
            yield lambda: tell("READY=1")
        finally:
            if signs is not None:
                signs.cancel()


async def _signs(tell: Callable[[str], None], period: float) -> None:
    while True:
        tell("WATCHDOG=1")
        await asyncio.sleep(period)


def _period(environment: MutableMapping[str, str]) -> float:
    """Seconds between signs of life, a third of what is allowed; 0.0 if nobody waits for those of this process."""
    allowed, whose = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    if not allowed.isdecimal() or whose not in ("", str(os.getpid())):
        return 0.0
    return int(allowed) / 3e6


def _nothing() -> None:
    """Nobody waits for it."""
