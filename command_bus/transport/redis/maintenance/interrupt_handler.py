"""`InterruptHandler`: carries out requests to end a running attempt: an operator aborts it, or somebody cancels its command.

A request is one field of a hash per shard, under the mailbox's name. It names exactly one attempt, by fence and message, so that it can
never hit another. A request that no worker carries out expires with the hash, some minutes after the last request. Workers read the hash
once a second, in a request that they send anyway (`PendingRecovery`). A blocked event loop cannot read it: then the thread that renews its
leases reads it, and answers where the loop is blocked. Workers of earlier releases ignore the hash.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from command_bus.clock import mono
from command_bus.serialization.limits import printable
from command_bus.serialization.odd_values import stored_text
from command_bus.transport.interrupts import Interrupt
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.interrupts import write_interrupt
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.steps import Cancellation, Cause, Lease

_PATIENCE = 1.0
"""Seconds that a handler has to end before it is abandoned."""
_log = logging.getLogger("command_bus.worker")


@dataclass(eq=False)
class InterruptHandler:
    """The requests of one shard, compared with the attempts that this worker runs.

    Attributes:
        connections: To the shard's server.
        keys: Names of the shard's keys.
        held: Gives the leases of the shard that this worker holds.
        abandon: Settles the attempt of a lease as interrupted while its handler runs.
    """

    connections: Connections
    keys: ShardKeys
    held: Callable[[], list[Lease]]
    abandon: Callable[[Lease, Cancellation], Awaitable[None]]

    def __post_init__(self) -> None:
        self._cancelled_at: dict[str, float] = {}  # by attempt

    async def carry_out(self, fields: Mapping[bytes, bytes]) -> None:
        """Carry out the requests to this worker. A request for an attempt that does not run here is for another worker, or out of date.

        Raises:
            CommandBusError: The server cannot be asked; the next look goes on.
        """
        if not fields and not self._cancelled_at:
            return
        held = {lease.mailbox: lease for lease in self.held() if lease.attempt_id}
        wanted: set[str] = set()
        for name, value in fields.items():
            mailbox, interrupt = stored_text(name), Interrupt.unpack(value)
            lease = held.get(mailbox)
            if interrupt is None or lease is None or lease.attempt_id != interrupt.attempt_id:
                continue
            wanted.add(interrupt.attempt_id)
            await self._end(lease, interrupt)
        self._cancelled_at = {attempt: at for attempt, at in self._cancelled_at.items() if attempt in wanted}

    async def _end(self, lease: Lease, interrupt: Interrupt) -> None:
        cancelled_at = self._cancelled_at.get(interrupt.attempt_id)
        if cancelled_at is None:
            if lease.cancel is None:
                return  # its handler is about to begin, or has just ended
            # The answer first: by it the operator sees whether the request ended the attempt.
            await self._say(lease, replace(interrupt, answer="told" if lease.in_thread else "cancelled", where=""))
            if lease.attempt_id == interrupt.attempt_id and lease.cancel is not None:
                self._cancelled_at[interrupt.attempt_id] = mono()
                entity = mailbox_label(lease.mailbox)
                level = logging.INFO if interrupt.kind == "cancel" else logging.WARNING
                text = "%s: the attempt that runs is cancelled, %s"
                _log.log(level, text, entity, printable(interrupt.words), extra={"entity": entity})
                lease.cancel(Cancellation(Cause.CANCELLED if interrupt.kind == "cancel" else Cause.ABORTED, interrupt.words))
        elif interrupt.kind == "abandon" and interrupt.answer != "abandoned" and mono() >= cancelled_at + _PATIENCE:
            await self._say(lease, replace(interrupt, answer="abandoned"))
            if lease.attempt_id == interrupt.attempt_id:
                abandoned = Cancellation(Cause.ABANDONED, interrupt.words)
                await self.abandon(lease, abandoned)
                if lease.attempt_id == interrupt.attempt_id and lease.cancel is not None:
                    lease.cancel(abandoned)
        elif interrupt.answer in ("", "blocked"):  # the request was repeated
            await self._say(lease, replace(interrupt, answer="told" if lease.in_thread else "cancelled"))

    async def _say(self, lease: Lease, interrupt: Interrupt) -> None:
        await self.connections.ask(write_interrupt, self.keys, lease.mailbox, interrupt)
