"""`OtherWorkers`: which commands other live workers handle, as they say themselves.

A namespace may have services with different handlers. A command that this worker does not know is no reason for a dead letter while another live
worker knows it: that one may be busy, or the command may have been retried for longer than the grace of unknown ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.serialization.announcements import worker_statuses

_KEPT = 5.0
"""Seconds for which an answer is used."""


class OtherWorkers:
    """The commands of all live workers.

    Args:
        records: Reads the records of the workers.
    """

    def __init__(self, records: Callable[[], Awaitable[list[tuple[int, bytes]]]]) -> None:
        self._records = records
        self._commands: frozenset[str] = frozenset()
        self._asked = mono() - _KEPT

    async def handle(self, name: str) -> bool:
        """Return whether a live worker handles a command of this name; True if that cannot be read now."""
        if mono() - self._asked >= _KEPT:
            try:
                records = await self._records()
            except CommandBusError:
                return True
            live = (each for each in worker_statuses(records) if each.alive)
            self._commands, self._asked = frozenset(name for each in live for name in each.commands), mono()
        return name in self._commands
