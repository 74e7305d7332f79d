"""`ShardDepths`: how full shards are, for handlers that send with their settlement.

A settlement cannot be refused, so what it sends is taken by a shard that is full. That a flow which makes more commands than it runs does not fill
the server, `context.send` is refused where a shard is known to hold twice what it may. Nothing is read before a handler sends. From then on a
shard is looked at once a second at most, in the background, so what is known of it is about a second old.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from command_bus.clock import mono
from command_bus.errors import CommandBusError, QueueFull
from command_bus.session import Session, SessionPart
from command_bus.tasks import end_tasks
from command_bus.transport.ports.transport import Transport

_EVERY = 1.0
"""Seconds between two looks at a shard."""
_BEYOND = 2
"""How many times its limit a shard may hold."""


class ShardDepths(SessionPart):
    """The depths of the shards that handlers of one bus send to. Attach it to the session.

    Args:
        session: Of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.renew()

    def renew(self) -> None:
        self._at: tuple[asyncio.AbstractEventLoop, Transport] | None = None
        self._depths: dict[int, int] = {}
        self._looked: dict[int, float] = {}
        self._looks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End the looks."""
        await end_tasks(self._looks)

    def begin(self) -> None:
        """Note the event loop and the transport of the bus; handlers in threads reach neither."""
        if self._at is None:
            self._at = asyncio.get_running_loop(), self._session.transport

    def check(self, mailbox: str) -> None:
        """Check that the shard of a mailbox takes one more command; called in any thread.

        Raises:
            QueueFull: It holds more than twice what it may.
        """
        if self._at is None:
            return
        loop, transport = self._at
        shard, now = transport.shard_of(mailbox), mono()
        if now - self._looked.get(shard, now - _EVERY) >= _EVERY:
            self._looked[shard] = now
            loop.call_soon_threadsafe(self._look_soon, shard)
        most = _BEYOND * -(-self._session.settings.max_total_depth // transport.shards)
        if self._depths.get(shard, 0) > most:
            raise QueueFull(
                f"the shard of this command holds {self._depths[shard]:,} commands, more than twice what max_total_depth allows: let the handler "
                "be retried later, or send less",
                retry_after=_EVERY,
                limit="total",
            )

    def _look_soon(self, shard: int) -> None:
        look = asyncio.get_running_loop().create_task(self._look(shard), name=f"command_bus.depth {shard}")
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look(self, shard: int) -> None:
        with suppress(CommandBusError):  # what was known holds
            self._depths[shard] = await self._session.transport.locations.shard_depth(shard)
