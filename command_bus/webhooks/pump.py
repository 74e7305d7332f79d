"""`Pump`: makes a delivery of each event that a webhook is to be told of. Of all processes one has the lease of a webhook's pump.

The lease and the cursor are one record, written by compare-and-set with the server's time. So a pump that has lost its lease notices when
it next writes, and what it has dispatched in between is dispatched by its successor again, under the same command ids: a duplicate.
The cursor is written after the dispatch. Events are never read past a gap unnoticed: as long as the last event that was looked at is still
there, none behind it was deleted.

`Pumps`: the pumps of one process. Each process tries to get each webhook's lease; those that have none look again now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from command_bus.admin.events import CommandEvent
from command_bus.bus import CommandBus
from command_bus.errors import BusClosed, CommandBusError, IdempotencyConflict
from command_bus.messages.outgoing import Envelope
from command_bus.observer import outward_of
from command_bus.randomness import JITTER, token
from command_bus.tasks import end_tasks
from command_bus.webhooks.deliveries import DeliverWebhook, delivery_of, gap_delivery
from command_bus.webhooks.record import PumpState, WebhookRecord
from command_bus.webhooks.store import WebhookStore

LEASE: Final = 15.0
"""Seconds after which another process takes over from one that was lost."""
_MOST: Final = 200
_PAUSE: Final = 0.5
_log = logging.getLogger("command_bus.webhooks")


class PumpLost(Exception):
    """Raised where another process has the lease."""


@dataclass(slots=True)
class _Held:
    """The state that this pump wrote last, and its bytes."""

    state: PumpState
    data: bytes


@dataclass(eq=False, slots=True)
class Pump:
    """The pump of one webhook in one process.

    Args:
        bus: Has the events and commands.
        store: Reads and changes webhooks.
        name: What the webhook is called.
        holder: Names this process.
        lease: Seconds of its lease.
    """

    bus: CommandBus
    store: WebhookStore
    name: str
    holder: str
    lease: float = LEASE

    async def run(self) -> None:
        """Take the lease if it is free, and pump until the bus closes, the webhook is removed, or another has the lease.

        Raises:
            CommandBusError: As reading events.
        """
        data, state = await self.store.state(self.name)
        if data is None or state is None or (state.holder != self.holder and await self.store.notes.now_ms() < state.until_ms):
            return
        held = _Held(state, data)
        try:
            await self._write(held, state)
            await self._pump(held)
        except (PumpLost, BusClosed):
            return

    async def release(self) -> None:
        """Give up the lease, so that another need not wait for its end."""
        data, state = await self.store.state(self.name)
        if data is not None and state is not None and state.holder == self.holder:
            await self.store.set_state(self.name, data, replace(state, holder="", until_ms=0))

    async def _pump(self, held: _Held) -> None:
        async with aclosing(_Pages(self.bus.events(after=held.state.cursor), self.lease / 3)) as pages:
            while (page := await pages.next()) is not None:
                if not page:
                    await self._write(held, held.state)
                    continue
                record = await self.store.recent(self.name)
                if record is None:
                    return
                await self._deliver(held, record, page)

    async def _deliver(self, held: _Held, record: WebhookRecord, page: list[CommandEvent]) -> None:
        """Dispatch the deliveries of a page, then write the cursor behind it."""
        state = held.state
        deliveries: list[DeliverWebhook] = []
        if await self._has_gap(state.cursor):
            now = await self.store.notes.now_ms()
            _log.warning("webhook %s: events were deleted before they were looked at: watch them with a larger `kept`", self.name)
            state = replace(state, gaps=state.gaps + 1, gap_ms=now)
            if (outward := outward_of(self.bus.session.observer)) is not None:
                outward.lost_events(self.name)
            deliveries.append(gap_delivery(record, state.cursor, page[0].at_ms))
        before = state.cursor
        for event in page:
            if record.wants(event):
                deliveries.append(delivery_of(record, event, _place(before, event.cursor)))
            before = event.cursor
        await self._dispatch(held, record, deliveries)
        await self._write(held, replace(state, cursor=before, events=state.events + len(deliveries)))

    async def _has_gap(self, cursor: str) -> bool:
        lost = await self.bus.transport.operator.events.lost(cursor.split(","))
        return any(lost[: len(lost) // 2])  # of what workers wrote: it tells of nothing else

    async def _dispatch(self, held: _Held, record: WebhookRecord, deliveries: list[DeliverWebhook]) -> None:
        """Dispatch until all are accepted, in their order; ones that were before are duplicates."""
        envelopes = [Envelope(each, command_id=each.message_id, retry=record.retry) for each in deliveries]
        while envelopes:
            result = await self.bus.dispatch_batch(envelopes)
            refused = [
                outcome.error
                for outcome in result.outcomes
                if outcome.error and not isinstance(outcome.error, IdempotencyConflict)
            ]
            if not refused:
                return
            _log.warning("webhook %s waits: its deliveries are not accepted: %s", self.name, refused[0])
            await asyncio.sleep(_PAUSE)
            await self._write(held, held.state)

    async def _write(self, held: _Held, state: PumpState) -> None:
        """Write the state with a new lease.

        Raises:
            PumpLost: Another has written meanwhile.
        """
        until = await self.store.notes.now_ms() + int(self.lease * 1000)
        state = replace(state, holder=self.holder, until_ms=until)
        if not await self.store.set_state(self.name, held.data, state):
            raise PumpLost(self.name)
        held.state, held.data = state, state.pack()


def _place(before: str, after: str) -> str:
    """Return what names an event for good: its shard, and its id there. Its cursor depends on what was read of other shards before."""
    for shard, (old, new) in enumerate(zip(before.split(","), after.split(","), strict=True)):
        if old != new:
            return f"{shard}-{new}"
    return after


class _Pages:
    """Reads events, and gives those that are there, or nothing after some seconds without one.

    Args:
        events: Are read.
        patience: Those seconds.
    """

    def __init__(self, events: AsyncIterator[CommandEvent], patience: float) -> None:
        self._events = events
        self._patience = patience
        self._read: asyncio.Queue[CommandEvent | None] = asyncio.Queue(_MOST)
        self._error: CommandBusError | None = None
        self._reader = asyncio.get_running_loop().create_task(self._run(), name="command_bus.webhooks events")

    async def next(self) -> list[CommandEvent] | None:
        """Return some events; none after a while; None when there will be no more."""
        try:
            async with asyncio.timeout(self._patience):
                first = await self._read.get()
        except TimeoutError:
            return []
        if first is None:
            if self._error is not None:
                raise self._error
            return None
        page = [first]
        while len(page) < _MOST and not self._read.empty():
            event = self._read.get_nowait()
            if event is None:
                self._read.put_nowait(None)  # for the next time
                break
            page.append(event)
        return page

    async def aclose(self) -> None:
        """Read no more."""
        await end_tasks([self._reader])

    async def _run(self) -> None:
        events: Any = self._events
        try:
            async with aclosing(events):
                async for event in events:
                    await self._read.put(event)
        except CommandBusError as error:
            self._error = error
        await self._read.put(None)


_LOOK: Final = 2.0
"""Seconds between looks for webhooks whose pump has no process."""


class Pumps:
    """Runs the pumps that this process has the lease of.

    Args:
        bus: It must be open while they run.
        store: Reads and changes webhooks.
        lease: Seconds of a lease.
    """

    def __init__(self, bus: CommandBus, store: WebhookStore, *, lease: float = LEASE) -> None:
        self._bus = bus
        self._store = store
        self._lease = lease
        self._holder = token(6).hex()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look for webhooks."""
        self._looking = asyncio.get_running_loop().create_task(self._look(), name="command_bus.webhooks")

    async def stop(self) -> None:
        """End all pumps, and give up their leases."""
        if self._looking is not None:
            await end_tasks([self._looking])
        names = list(self._running)
        await end_tasks(self._running.values())
        self._running.clear()
        for name in names:
            try:
                await self._pump(name).release()
            except CommandBusError:  # its lease ends by itself
                continue

    async def _look(self) -> None:
        while True:
            try:
                for name, record in (await self._store.all()).items():
                    if name not in self._running and record.kinds:
                        self._running[name] = asyncio.create_task(self._run(name), name=f"command_bus.webhook {name}")
            except BusClosed:
                return
            except CommandBusError as error:
                _log.warning("webhooks cannot be read, trying again: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, this must go on
                _log.exception("webhooks cannot be read, trying again")
            await asyncio.sleep(min(_LOOK, self._lease / 3) * JITTER.uniform(0.5, 1.0))

    async def _run(self, name: str) -> None:
        try:
            await self._pump(name).run()
        except CommandBusError as error:
            _log.warning("the pump of webhook %s begins again: %s", name, error)
        except Exception:  # noqa: BLE001 - the next look begins it again
            _log.exception("the pump of webhook %s begins again", name)
        finally:
            self._running.pop(name, None)

    def _pump(self, name: str) -> Pump:
        return Pump(self._bus, self._store, name, self._holder, lease=self._lease)
