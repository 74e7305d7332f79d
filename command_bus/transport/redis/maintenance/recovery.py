"""`PendingRecovery`: takes over expired leases.

A lease is the pending entry of an activation. The server's clock, by which it is idle, can jump either way, so `LeaseWatch` watches it on
this process's own clock as well. And it is taken over (by `claim.lua`, which only one of several workers wins) only if its renewal
sequence is still the one that was seen: it was not renewed since.

A started command is then settled by its policy: run again, or dead-lettered as interrupted. An activation that was only delivered becomes
ready again, which does not count as an attempt.

`InterruptHandler`: carries out requests to end a running attempt: an operator aborts it, or somebody cancels its command.

A request is one field of a hash per shard, under the mailbox's name. It names exactly one attempt, by fence and message, so that it can
never hit another. A request that no worker carries out expires with the hash, some minutes after the last request. Workers read the hash
once a second, in a request that they send anyway (`PendingRecovery`). A blocked event loop cannot read it: then the thread that renews its
leases reads it, and answers where the loop is blocked. Workers of earlier releases ignore the hash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import Redis

from command_bus.clock import mono
from command_bus.serialization.envelope import names_of
from command_bus.serialization.limits import printable
from command_bus.serialization.odd_values import stored_text
from command_bus.transport.interrupts import Interrupt
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.ports.worker import Decide, Steps
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.interrupts import write_interrupt
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.mailbox_record import MailboxRecord, parse_record, read_entry
from command_bus.transport.redis.maintenance.expired_leases import Held, LeaseWatch
from command_bus.transport.redis.maintenance.periodic import Beat, Periodic
from command_bus.transport.redis.ready_stream import delete_entries, mailbox_of
from command_bus.transport.redis.scripts import CLAIM
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.steps import (
    GIVE_BACK_UNCOUNTED,
    WORKER_LOST,
    Cancellation,
    Cause,
    DeadLetterStep,
    Lease,
    Started,
    Step,
)

_PATIENCE = 1.0
"""Seconds that a handler has to end before it is abandoned."""


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


_log = logging.getLogger("command_bus.worker")
_PAGE = 500
_CLAIMS = 200
_REFUSED_PAUSE = 60.0
"""Seconds until interrupts are read again after a refusal: the user's ACL is of an earlier release."""
_OVER = 0.9
"""The part of a lease that must be over by the server's clock when it is taken: a request that was long under way comes too late for it."""


@dataclass(eq=False)
class PendingRecovery(Periodic):
    """Watches one shard for expired leases, at each beat at the latest.

    Attributes:
        number: Position of the shard among all, from 0.
        beat: Says when.
        leases: What this worker holds.
        steps: Carries the decisions out.
        decide: Returns the step for an interrupted command, given the reason; None leaves it to another worker.
        ended: Called with a lease that was taken over, in case limits were asked under it.
        recovered: Leases taken over so far.
    """

    name = "recovery"
    number: int
    beat: Beat
    leases: LeaseKeeper
    steps: Steps
    decide: Decide
    ended: Callable[[Lease], None]
    recovered: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lease_watch = LeaseWatch(self.leases.lease)
        self._interrupt_handler = InterruptHandler(
            self.server, self.keys, lambda: self.leases.of_shard(self.number), self._abandon
        )
        self._interrupts_at = 0.0

    async def turn(self) -> float:
        """Take over expired leases; return the seconds until the next check."""
        await self.recover()
        await self.server.script_cache.keep()
        return self._lease_watch.next(now := mono(), self.beat.left(now))

    async def recover(self) -> None:
        """Take over expired leases, and carry out operators' requests to end attempts."""
        held, interrupts = await self._look()
        await self._take_over(self._lease_watch.idle(held, mono()), int(self.leases.lease * 1000 * _OVER))
        asked = mono()
        if self._lease_watch.wants_all(asked):
            held = [each async for page in self._pending(None) for each in page]
            await self._take_over(self._lease_watch.all(held, asked, mono()), 0)
        await self._interrupt_handler.carry_out(interrupts)

    async def _look(self) -> tuple[list[Held], dict[bytes, bytes]]:
        """Read the leases that look more than half over, and operators' requests to end attempts; in one request unless there are many leases."""
        idle, asked = self._lease_watch.least_idle, mono() >= self._interrupts_at

        async def look(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.xpending_range(self.keys.ready, GROUP, min="-", max="+", count=_PAGE, idle=idle)
            if asked:
                pipeline.hgetall(self.keys.interrupts)
            pending, *interrupts = await pipeline.execute(raise_on_error=False)
            if isinstance(pending, Exception):
                raise pending
            return pending, interrupts[0] if interrupts else {}

        pending, interrupts = await self.server.ask(look)
        if isinstance(interrupts, Exception):
            self._interrupts_at, interrupts = mono() + _REFUSED_PAUSE, {}
        held = _held(pending)
        if len(held) == _PAGE:
            held += [each async for page in self._pending(idle, held[-1].activation) for each in page]
        return held, interrupts

    async def _pending(self, idle: int | None, after: str = "") -> AsyncIterator[list[Held]]:
        """Yield the leases that are idle for so long, or all; page by page."""
        start = f"({after}" if after else "-"
        while True:
            page: Any = await self.server.ask(
                lambda client, at: client.xpending_range(self.keys.ready, GROUP, min=at, max="+", count=_PAGE, idle=idle), start
            )
            yield _held(page)
            if len(page) < _PAGE:
                return
            start = "(" + page[-1]["message_id"].decode()

    async def _abandon(self, lease: Lease, why: Cancellation) -> None:
        """Settle an attempt of our own while its handler runs on: the fence rejects its later steps."""
        await self.settle(lease.activation, lease.mailbox, why=why, attempt_id=lease.attempt_id)
        self.leases.renew_soon()  # finds out that the lease is over

    async def _take_over(self, suspects: list[Held], idle: int) -> None:
        """Take over leases that are not renewed; not those of this worker, which may have been paused or cut off and is back."""
        expired = [held for held in suspects if not self.leases.keeps(self.number, held.activation)]
        for start in range(0, len(expired), _CLAIMS):
            args: list[Any] = [GROUP, self.leases.worker, idle]
            for held in expired[start : start + _CLAIMS]:
                args += (held.activation, held.sequence)
            taken: list[tuple[bytes, list[bytes] | None]] = await self.server.run(
                CLAIM, [self.keys.ready, self.keys.active], args
            )
            entries = [(entry.decode(), dict(zip(flat[::2], flat[1::2], strict=True)) if flat else {}) for entry, flat in taken]
            found = [(entry, mailbox_of(fields)) for entry, fields in entries if b"e" in fields]
            litter = [entry for entry, fields in entries if b"e" not in fields]
            await asyncio.gather(*(self.settle(entry, mailbox, idle=True) for entry, mailbox in found), self._drop(litter))

    async def settle(
        self,
        activation: str,
        mailbox: str,
        *,
        ours: bool = False,
        idle: bool = False,
        why: Cancellation = WORKER_LOST,
        attempt_id: str = "",
    ) -> None:
        """Settle one mailbox whose holder is gone, or abandons it.

        Args:
            activation: Its activation.
            mailbox: Its name.
            ours: Settle it only if the holder was this worker.
            idle: The holder only seems to be gone, by its lease: if that is its own again, it was paused, and is back.
            why: Reason that the attempt ended.
            attempt_id: Settle it only if this attempt still runs.
        """
        record, now_us = await self.server.ask(self._record_of, mailbox)
        if record.is_newer:
            return  # its state is of a later release: a worker of that takes it over
        lease = Lease(self.number, mailbox, activation, mono() + self.leases.lease)
        if record.activation != activation:
            await self._drop([activation])  # its mailbox has another activation: this one is left over
            return
        if ours and record.is_held and record.worker != self.leases.worker:
            return  # held by another worker that may live: its next renewal takes it back, or its lease ends
        if idle and not await self.server.ask(self._has, activation):
            return
        if record.is_ready:
            self.recovered += 1
            await self._carry_out(lease, GIVE_BACK_UNCOUNTED)
            return
        lease.attempt_id = record.attempt_id
        if attempt_id and lease.attempt_id != attempt_id:
            return
        step = self.decide(await self._started(mailbox, record, now_us // 1000), why.text)
        if step is None:
            return  # its lease will end again, and another worker take it
        self._log_end(record.worker, mailbox_label(mailbox), record.attempt, why)
        if isinstance(step, DeadLetterStep):
            step.follow = "leave"  # the worker that reads the new activation runs the next command: no task here would
        await self._carry_out(lease, step)

    async def _carry_out(self, lease: Lease, step: Step) -> None:
        await self.steps.advance(lease, step)
        self.ended(lease)

    def _log_end(self, worker: str, entity: str, attempt: int, why: Cancellation) -> None:
        facts = {"entity": entity, "worker": worker, "attempt": attempt}
        if why.cause is Cause.LOST:
            self.recovered += 1
            _log.warning(
                "worker %s lost %s: its lease ended while a command ran (attempt %s)",
                printable(worker),
                entity,
                attempt,
                extra=facts,
            )
        else:
            _log.warning(
                "%s is abandoned, its handler goes on (attempt %s): %s", entity, attempt, printable(why.text), extra=facts
            )

    async def _started(self, mailbox: str, record: MailboxRecord, now_ms: int) -> Started:
        """Return the command that runs in a mailbox."""
        content = await read_entry(self.server.run, self.keys, mailbox, record.message)
        envelope = content.get(b"e")
        raw = [part for pair in content.items() for part in pair]
        return Started(
            record.fence,
            record.message,
            record.attempt,
            record.first_ms,
            now_ms,
            envelope,
            raw,
            snoozes=record.snoozes_of(record.message),
            begun=record.first_ms < 0 and envelope is not None and await self._has_begun(record.message, envelope),
            run=record.run,
        )

    async def _has_begun(self, message: str, envelope: bytes) -> bool:
        """Return whether a command is durable and has stored something, also if its envelope can be read in part only."""
        command_id, *_ = names_of(envelope[2:])
        side = self.keys.side(command_id)
        of, is_plain = await self.server.ask(lambda client: client.hmget(side, ["m", "d"]))
        return bool(of == message.encode() and is_plain is None)

    async def _record_of(self, client: Redis, mailbox: str) -> tuple[MailboxRecord, int]:
        """Return a mailbox's record, and the server's time in microseconds."""
        pipeline = client.pipeline(transaction=False)
        pipeline.hget(self.keys.active, mailbox)
        pipeline.time()
        record, (seconds, micros) = await pipeline.execute()
        return parse_record(record), seconds * 1_000_000 + micros

    async def _has(self, client: Redis, activation: str) -> bool:
        """Return whether a lease is still this worker's: a renewal or a start by its holder takes it back."""
        pending = await client.xpending_range(self.keys.ready, GROUP, min=activation, max=activation, count=1)
        return bool(pending) and pending[0]["consumer"] == self.leases.worker.encode()

    async def _drop(self, activations: list[str]) -> None:
        await delete_entries(self.server, self.keys, activations)


def _held(page: Any) -> list[Held]:
    return [Held(item["message_id"].decode(), item["times_delivered"], item["time_since_delivered"] / 1000) for item in page]
