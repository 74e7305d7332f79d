"""`Periodic`: a job that a worker repeats until it stops, backing off after errors."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from command_bus.clock import mono
from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.randomness import JITTER
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.keys import KeySpace, ShardKeys

_log = logging.getLogger("command_bus.worker")
_MANY = 5
"""Failures in a row after which a job is logged as critical, once."""


class Beat:
    """The moments at which a worker looks at all of its shards, so that it wakes once for all of them.

    Args:
        every: Seconds between two, about: workers must not look together.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._at = mono() + every * JITTER.random()

    def left(self, now: float) -> float:
        """Return the seconds until the next."""
        if self._at <= now:
            self._at = now + self._every * JITTER.uniform(0.8, 1.2)
        return self._at - now


@dataclass(eq=False)
class Periodic(ABC):
    """A job for one shard, in a task of its own.

    Attributes:
        connections: Clients that this process shares.
        space: All shards.
        keys: Names of the shard's keys.
        name: What the log calls the job.
    """

    connections: Connections
    space: KeySpace
    keys: ShardKeys
    name: ClassVar[str]

    def __post_init__(self) -> None:
        self.server = self.connections.at(self.keys.prefix)
        self._woken = asyncio.Event()

    @abstractmethod
    async def turn(self) -> float:
        """Do a part of the job; return the seconds until the next turn."""

    def start(self) -> asyncio.Task[None]:
        """Begin to take turns, until the task is cancelled."""
        return asyncio.get_running_loop().create_task(self._run(), name=f"command_bus.{self.name} {self.keys.prefix}")

    async def _run(self) -> None:
        backoff, failures = LoggedBackoff(self.server.outage, f"{self.keys.prefix} {self.name}: cannot look", _log), 0
        while True:
            self._woken.clear()
            try:
                pause = await self.turn()
                backoff.worked()
                failures = 0
            except Exception as error:  # noqa: BLE001 - whatever it is, this must go on
                pause = backoff.failed(error, unexpected=not isinstance(error, CommandBusError))
                is_outage = isinstance(error, TransportUnavailable)  # which is logged as that
                failures += not is_outage
                if failures == _MANY and not is_outage:
                    _log.critical(
                        "%s %s has failed %d times in a row, and goes on: %s", self.keys.prefix, self.name, _MANY, error
                    )
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                pass
