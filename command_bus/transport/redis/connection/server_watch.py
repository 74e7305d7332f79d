"""`ServerWatch`: finds out that a server is away, and when it is back.

A request that failed because there was no connection is only a suspicion: its own connection may have been cut while the server lives on. So the
first such failure has the server asked at once, by a PING over a new connection where the old one broke. If that fails too, the server
is away. Then it is asked again and again until it answers. A request that merely takes long raises no suspicion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.tasks import end_tasks
from command_bus.transport.ports.extensions import Availability
from command_bus.transport.redis.connection.outage_log import Backoff

_log = logging.getLogger("command_bus.transport")
_LONGEST_PAUSE = 0.5
"""Seconds between two probes at most: what fails at once meanwhile should not do so for long."""


@dataclass(eq=False)
class ServerWatch:
    """The watch over one server.

    Attributes:
        label: The server, for people.
        ping: Asks the server whether it is there.
        availability: Learns what is found out of the bus's servers.
        fails_fast: Whether requests of senders are refused while the server is away.

    Attributes:
        refuses: Whether senders are refused: the server is away, and they shall not wait for it. Each dispatch asks, so it is a plain value.
    """

    label: str
    ping: Callable[[], Awaitable[Any]]
    availability: Availability
    fails_fast: bool

    def __post_init__(self) -> None:
        self._probing: asyncio.Task[None] | None = None
        self._reason = ""
        self._is_away = False
        self.refuses = False

    def refusal(self) -> TransportUnavailable:
        """Return the error of what is refused: nothing of it was sent."""
        return TransportUnavailable(f"not sent, because the server is away (fail_fast): {self._reason}")

    def suspect(self, error: Exception) -> None:
        """Ask the server, because a request failed. Threads' failures are left to those of the event loop."""
        if self._probing is not None or not isinstance(error, TransportUnavailable):
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._probing = loop.create_task(self._probe(), name="command_bus.probe")
        self._probing.add_done_callback(self._probed)

    async def close(self) -> None:
        """End the watch."""
        if self._probing is not None:
            await end_tasks([self._probing])

    async def _probe(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.ping()
            except TransportUnavailable as error:
                self._away(error)
            except CommandBusError:
                return self._back()  # it answers, if only to refuse this user: the requests themselves tell that better
            else:
                return self._back()
            await asyncio.sleep(min(backoff.next(), _LONGEST_PAUSE))

    def _away(self, error: TransportUnavailable) -> None:
        self._reason = error.message
        if not self._is_away:
            self._is_away, self.refuses = True, self.fails_fast
            self.availability.away(self, self.label, error.message)

    def _back(self) -> None:
        if self._is_away:
            self._is_away = self.refuses = False
            self.availability.back(self, self.label)

    def _probed(self, task: asyncio.Task[None]) -> None:
        self._probing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the server cannot be probed", exc_info=error)
            self._back()  # else nothing would find out that it is there again
