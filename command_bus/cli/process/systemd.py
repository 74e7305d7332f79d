"""Notifications to systemd from a service of `Type=notify`: that it is ready, and with `WatchdogSec=` regular keep-alives.

Each is a datagram to the socket that systemd names in the environment. Keep-alives are sent by the event loop and not by a thread, because
they are to stop when the loop is stuck. The variables are removed once they are read, as `sd_notify` can do: child processes are no service.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, MutableMapping
from contextlib import asynccontextmanager

_log = logging.getLogger("command_bus.cli")


@asynccontextmanager
async def notify_systemd(environment: MutableMapping[str, str] = os.environ) -> AsyncGenerator[Callable[[], None]]:
    """Send keep-alives while the block runs, if systemd expects them. Yields a function to call when the service is ready."""
    address, period = environment.pop("NOTIFY_SOCKET", ""), _period(environment)
    if not address:
        yield _ignore
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)  # a notification that cannot be sent now is not worth waiting for

        def notify(state: str) -> None:
            try:
                channel.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
            except OSError as error:
                _log.warning("systemd was not notified of %s: %s", state, error)

        keep_alive = asyncio.create_task(_keep_alive(notify, period), name="command_bus.watchdog") if period else None
        try:
            yield lambda: notify("READY=1")
        finally:
            if keep_alive is not None:
                keep_alive.cancel()


async def _keep_alive(notify: Callable[[str], None], period: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(period)


def _period(environment: MutableMapping[str, str]) -> float:
    """Return the seconds between keep-alives, a third of the time allowed; 0.0 if systemd expects none of this process."""
    allowed, whose = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    if not allowed.isdecimal() or whose not in ("", str(os.getpid())):
        return 0.0
    return int(allowed) / 3e6


def _ignore() -> None:
    """Do nothing: systemd expects no notification."""
