"""`ConsumerLoop`: reads activations, never more than there are free slots, and runs each in a task of its own.

One reader and one blocking connection per shard. XREADGROUP wakes exactly one worker per activation and needs no polling. While there is
more to read, fetch.lua reads without waiting and starts lone commands. The COUNT is
per stream, so every reader takes its slots before it asks; `Slots` decides how readers share them, and which may block. A read that
blocks without slots may return activations when all slots are taken; they are given back at once. Fetches start small and double while
full ones follow one another: a worker that always asked for all that it could run would starve the others when its handlers are short.

A delivered activation may not have arrived: it may have been assigned to a connection that broke. So after every read error, and from
time to time for one lease after it, the worker looks up the activations that are pending in its name and not held here. What a fetch had
started without being heard is given back uncounted; the others are settled: ready again, or interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from asyncio.tasks import _enter_task, _leave_task  # pyright: ignore[reportPrivateUsage]  # for tasks of other kinds, as the docs have it
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import getweakrefcount

from redis.exceptions import NoScriptError, ResponseError

from command_bus.clock import mono
from command_bus.errors import CommandBusError, TransportUnavailable
from command_bus.serialization.limits import printable
from command_bus.tasks import end_tasks
from command_bus.transport.ports.worker import Begin, Consumer, Run, Steps
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS, translated
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.keys import GROUP, KeySpace
from command_bus.transport.redis.mailbox_record import LONE_HELD, PLACE, held_record, is_first_start, parse_record, parse_started
from command_bus.transport.redis.ready_stream import delete_entries, ensure_ready, mailbox_of, why_gone
from command_bus.transport.redis.scripts import FETCH
from command_bus.transport.redis.worker.lease_keeper import LeaseKeeper
from command_bus.transport.redis.worker.step_batcher import KnownLimits, LineUse
from command_bus.transport.slots import Ask, Slots
from command_bus.transport.steps import GIVE_BACK_UNCOUNTED, TAKE, Answer, Lease, LeaseLost, Released, Started, StepFailed

BLOCK = 2.0
_FIRST_FETCH = 8
_SOON = 0.05  # seconds
_MOST_FETCHED = 1_000  # a script of a few milliseconds
_BLOCKING = ("BLOCK", int(BLOCK * 1000))
_BROKEN_PAUSE = 1.0  # seconds
_log = logging.getLogger("command_bus.worker")
T = TypeVar("T")


@dataclass(slots=True)
class Delivery:
    """An entry of the ready stream that is assigned to this worker.

    Attributes:
        activation: Its id.
        mailbox: Name of the one that it is for; None for a tick, which names none.
        holder: The lease under which its command was started together with the delivery; empty if none was.
        attempt_id: Id of that start; empty if its answer was lost.
        started: That command; None if a take has to start it, or the answer was lost.
        has_place: Whether limits gave it a place.
        record: As for a `Lease`.
    """

    activation: str
    mailbox: str | None
    holder: str = ""
    attempt_id: str = ""
    started: Started | None = None
    has_place: bool = False
    record: str = ""


def deliveries_of(entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Delivery]:
    """Return the entries of the ready stream as deliveries."""
    return [Delivery(entry.decode(), mailbox_of(fields) if b"e" in fields else None) for entry, fields in entries]


def parse_fetched(answer: list[Any], worker: str, first: int) -> list[Delivery]:
    """Return the deliveries in an answer of fetch.lua.

    Args:
        answer: Unparsed.
        worker: Name of the worker that fetched.
        first: Number of the lease of the first activation.
    """
    now = answer[0].decode()
    now_ms = int(now)
    found: list[Delivery] = []
    for number, at in enumerate(range(1, len(answer), 4), first):
        activation, name, running, envelope = answer[at : at + 4]
        delivery = Delivery(activation.decode(), None if name is None else mailbox_of({b"e": name}))
        if running is not None:
            fence, message, attempt, first_ms, *parts = parse_started(running)
            delivery.holder, delivery.attempt_id = f"{worker}#f{number}", f"{fence}|{message}"
            is_first = is_first_start(attempt, first_ms, now, parts)
            delivery.started = Started(fence, message, int(attempt), int(first_ms), now_ms, envelope, is_first=is_first)
            delivery.has_place = PLACE in parts
            if not parts:
                delivery.record = held_record(
                    LONE_HELD, delivery.activation, delivery.attempt_id, attempt, first_ms, delivery.holder
                )
        found.append(delivery)
    return found


def note_unheard(deliveries: Sequence[Delivery], records: Iterable[bytes | None], worker: str, unheard: Sequence[range]) -> None:
    """Note which activations were started by a fetch whose answer was lost.

    Args:
        deliveries: The activations.
        records: What is stored of their mailboxes.
        worker: Name of the worker that fetched.
        unheard: Numbers of the leases of those fetches.
    """
    for delivery, record in zip(deliveries, map(parse_record, records), strict=True):
        number = record.holder.removeprefix(f"{worker}#f")
        if record.activation == delivery.activation and number.isdecimal() and any(int(number) in each for each in unheard):
            delivery.holder, delivery.attempt_id = record.holder, record.attempt_id


_references = getattr(sys, "getrefcount", id)


def _known(task: object) -> Any:
    """Return a number that grows with those who know a task, or keep something by it: that is forgotten with the task."""
    return _references(task) + getweakrefcount(task)


class _Place(asyncio.Future[None]):
    """The wait of a parked task. A cancellation ends it, and meets what runs in the task then, as one of a task that runs does."""

    def cancel(self, msg: Any | None = None) -> bool:
        del msg
        if not self.done():
            self.set_result(None)
        return False


class ParkedTask:
    """A task that waits for the rest of what was begun under its name."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._place = _Place(loop=self._loop)
        self._rest: Coroutine[Any, Any, None] | None = None
        self._waits = False
        self._known = 0
        self.task = self._loop.create_task(self._run(), name="command_bus.parked")

    def may_begin(self) -> bool:
        """Return whether something may be begun under its name, within `begin`: it has started and has nothing to do.

        A task that was cancelled, or that somebody has kept, or whose end somebody wants to be told, is used for nothing else: it ends.
        """
        if self.task._callbacks or _known(self.task) > self._known:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            self._place.cancel()
        return self._waits and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it waits no more."""
        return self._place.done()

    def begin(self, work: Callable[[], T]) -> T:
        """Do some work as if in this task; the task that runs is the current one again after it."""
        loop, current = self._loop, asyncio.current_task()
        if current is not None:
            _leave_task(loop, current)
        _enter_task(loop, self.task)
        self._known = _known(self.task)
        try:
            return work()
        finally:
            _leave_task(loop, self.task)
            if current is not None:
                _enter_task(loop, current)

    def go_on(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the rest of what was begun. The task ends with it."""
        self._rest = rest
        self._place.cancel()
        return self.task

    async def _run(self) -> None:
        self._waits = True
        try:
            await self._place
        except asyncio.CancelledError as error:
            if self._rest is None:
                raise
            self.task.cancel(*error.args)  # it meets what the rest waits for
            self.task.uncancel()
        if self._rest is not None:
            await self._rest


class Reader:
    """The blocking read of one shard."""

    def __init__(self, loop: ConsumerLoop, shard: int) -> None:
        self._loop = loop
        self._keys = loop.keys.shards[shard]
        self._connections = loop.connections.at(self._keys.prefix)
        self._pipe = self._connections.pipe(BLOCK)
        self._shard = shard
        self._client_id = 0
        self._stopping = False
        self._count, self._last_full = _FIRST_FETCH, 0.0
        self._is_busy = False
        self._number = 1
        self._unheard: list[range] = []
        """Numbers of leases under which fetches whose answer was lost may have started something, even long after."""
        self._recheck_at: float | None = None
        self._recheck_until = 0.0
        self._backoff = LoggedBackoff(self._connections.outage, "cannot read work", _log)
        self._task: asyncio.Task[None] | None = None
        self._read_at = -math.inf
        self._full = False

    @property
    def silent_for(self) -> float:
        """Seconds since its last successful read, infinite after a failure; 0 while it waits for a slot."""
        return 0.0 if self._full else mono() - self._read_at

    @property
    def reads(self) -> bool:
        """Whether it goes on. An event loop that shuts down cancels all tasks before any of them runs again."""
        return not self._stopping and self._task is not None and not self._task.done() and not self._task.cancelling()

    def start(self) -> None:
        """Begin to read; returns at once."""
        self._read_at = mono()
        self._task = asyncio.get_running_loop().create_task(self._read_for_ever(), name=f"command_bus.reader{self._keys.prefix}")

    async def stop(self) -> None:
        """Wake the blocked read, wait for it, and give back activations that a broken connection may have been assigned."""
        self._stopping = True
        if self._task is None:
            return
        try:
            if self._client_id:
                await self._connections.commands.client_unblock(self._client_id)
                await asyncio.wait([self._task], timeout=0.5)
        except CONNECTION_ERRORS:
            pass  # not reachable or not permitted: the cancellation below does it as well
        await end_tasks([self._task])
        await self._connections.end(self._pipe)  # nothing more may be delivered to it
        try:
            async with asyncio.timeout(1.0):
                await self._discard(self._loop.hand_back(self._shard, await self._unknown_pending()))
        except (CommandBusError, TimeoutError):
            _log.warning("%s: cannot look for undelivered work; what there is waits for its lease to end", self._keys.prefix)

    async def _read_for_ever(self) -> None:
        while not self._stopping:
            self._full = True
            # A start that replicas confirm is one of advance.lua; from a line as many are let in as are fetched.
            fetches = self._is_busy and (not self._connections.confirms or bool(self._loop.line.keys(self._keys)))
            ask = await self._loop.slots.ask(self._shard, self._count, may_block=not fetches)
            self._full = False
            try:
                deliveries, read_at = await self._read(ask, fetches=fetches)
            except BaseException as error:
                self._loop.slots.answered(self._shard, ask, -1, 0)
                if not isinstance(error, Exception):
                    raise
                await self._mend(error)
                continue
            try:
                self._read_at = mono()
                await self._discard(self._loop.arrived(self._shard, ask, deliveries, read_at))
                if self._recheck_at is not None and mono() >= self._recheck_at:
                    await self._adopt()
                    self._recheck_at = mono() + BLOCK if mono() < self._recheck_until else None
                self._backoff.worked()
            except Exception as error:  # noqa: BLE001 - whatever it is, this shard must be read
                await self._mend(error)
            self._is_busy = len(deliveries) == ask.count
            self._count = self._next_count(len(deliveries), ask.count)

    def _next_count(self, fetched: int, asked: int) -> int:
        """Return how much to ask for next: twice as much after full reads in quick succession, little after a pause."""
        if fetched < asked:
            return self._count if fetched else _FIRST_FETCH
        quick = mono() - self._last_full < _SOON
        self._last_full = mono()
        return min(self._count * 2, self._loop.slots.total) if quick else _FIRST_FETCH

    async def _mend(self, error: Exception) -> None:
        """Wait after a failed read, create the group if needed, and settle what is pending in our name, now and a block later."""
        self._client_id, self._read_at = 0, -math.inf
        await asyncio.sleep(self._backoff.failed(error, unexpected=not isinstance(error, CommandBusError)))
        self._recheck_until = mono() + self._loop.leases.lease
        self._recheck_at = mono() + BLOCK if await self._recover() else mono()

    async def _read(self, ask: Ask, *, fetches: bool) -> tuple[list[Delivery], float | None]:
        """Return what is delivered; and when the server was asked, unless it waited for work."""
        try:
            if not self._client_id:
                self._client_id = await self._own_id()
            if fetches:
                return await self._fetch(ask)
            request = ("XREADGROUP", "GROUP", GROUP, self._loop.worker, "COUNT", ask.count, *(_BLOCKING if ask.blocks else ()))
            answer: Any = await self._pipe.request(*request, "STREAMS", self._keys.ready, ">")
        except ResponseError as error:
            if "NOGROUP" in str(error) or "UNBLOCKED" in str(error) or "requires the key to exist" in str(error):
                raise TransportUnavailable(f"the ready stream or its group is gone: {error}") from error
            raise translated(error, self._connections.label) from error
        except CONNECTION_ERRORS as error:
            raise translated(error, self._connections.label) from error
        entries = answer[0][1] if answer else []
        return deliveries_of([(entry, dict(zip(fields[::2], fields[1::2], strict=True))) for entry, fields in entries]), None

    async def _fetch(self, ask: Ask) -> tuple[list[Delivery], float]:
        """Read without waiting, and start the lone commands: where the last read was full there is more."""
        keys, count, asked = self._keys, min(ask.count, _MOST_FETCHED), mono()
        first, self._number = self._number, self._number + count
        limits = self._loop.limits.keys(keys)
        limits = (*limits, keys.due) if limits else limits
        names = [keys.ready, keys.active, keys.lone, keys.fence, keys.paused, keys.watched, keys.rules]
        names += [*limits, *self._loop.line.keys(keys)]
        request = ("EVALSHA", FETCH.sha, len(names), *names, GROUP, self._loop.worker, count, first, len(limits))
        request += (0,) if self._connections.confirms else ()
        self._unheard.append(range(first, first + count))
        try:
            answer: Any = await self._pipe.request(*request)
        except NoScriptError:
            await self._connections.script_cache.load(FETCH)
            answer = await self._pipe.request(*request)
        self._unheard.pop()
        return parse_fetched(answer, self._loop.worker, first), asked

    async def _own_id(self) -> int:
        try:
            return int(await self._pipe.request("CLIENT", "ID"))
        except ResponseError:
            return -1  # not permitted, or a server that lacks it: reading works without

    async def _recover(self) -> bool:
        """Create the group if it is gone, and settle what is pending in our name."""
        try:
            if await ensure_ready(self._connections, self._keys):
                # No renewal yet: it would find nothing of ours pending. What runs here is read again first, and goes on.
                why = await why_gone(self._connections, self._keys)
                _log.warning("%s: the consumer group was gone and is created again: %s", self._keys.ready, why)
            else:
                self._loop.leases.renew_soon()  # recovery must not take them for abandoned
            await self._adopt()
        except CommandBusError:
            return False
        return True

    async def _adopt(self) -> None:
        """Settle what is pending in our name without being held here.

        It is not simply run: this worker may have started a command of it, and lost track of its lease since. Only what was started by a
        fetch that was never answered is given back: no handler of it ran.
        """
        deliveries = await self._unknown_pending()
        if deliveries:
            _log.warning("%s: %d activations are ours without being held here", self._keys.ready, len(deliveries))
            await self._discard(
                self._loop.hand_back(self._shard, [each for each in deliveries if each.mailbox is None or each.holder])
            )
            others = [(each.activation, each.mailbox) for each in deliveries if each.mailbox is not None and not each.holder]
            await self._loop.settle(self._shard, others)

    async def _unknown_pending(self) -> list[Delivery]:
        """Return activations that are pending in our name without being held here."""
        pending: Any = await self._connections.ask(
            lambda client: client.xpending_range(
                self._keys.ready, GROUP, min="-", max="+", count=10_000, consumername=self._loop.worker
            )
        )
        ids = [item["message_id"].decode() for item in pending]
        unknown = [entry for entry in ids if not self._loop.knows(self._shard, entry)]
        if not unknown:
            return []
        claimed: Any = await self._connections.ask(
            lambda client: client.xclaim(self._keys.ready, GROUP, self._loop.worker, 0, unknown)
        )
        deliveries = deliveries_of([(entry, fields) for entry, fields in claimed if entry is not None and fields])
        if self._unheard:
            await self._find_unheard([each for each in deliveries if each.mailbox is not None])
        return deliveries

    async def _find_unheard(self, deliveries: list[Delivery]) -> None:
        """Note which of these activations were started by a fetch whose answer was lost."""
        if not deliveries:
            return
        records: Any = await self._connections.ask(
            lambda client: client.hmget(self._keys.active, [each.mailbox or "" for each in deliveries])
        )
        note_unheard(deliveries, records, self._loop.worker, self._unheard)

    async def _discard(self, ticks: list[str]) -> None:
        await delete_entries(self._connections, self._keys, ticks)


@dataclass(eq=False)
class ConsumerLoop(Consumer):
    """Feeds activations to `run` while slots are free.

    Attributes:
        connections: Clients that this process shares.
        keys: The shards.
        worker: This worker's name, which is that of its consumer.
        slots: How many mailboxes may be held.
        leases: Holds what was read.
        steps: Gives back what exceeds the slots.
        line: The lines of shards that are in use.
        limits: Whether limits are.
        run: Runs one mailbox under its lease until it releases it.
        begin: Runs what was started with its delivery.
        wake: Called when something is due earlier than was known (a tick arrived).
        settle: Settles activations that are assigned to this worker, but that it does not hold.
    """

    connections: Connections
    keys: KeySpace
    worker: str
    slots: Slots
    leases: LeaseKeeper
    steps: Steps
    line: LineUse
    limits: KnownLimits
    run: Run
    begin: Begin
    wake: Callable[[int], None]
    settle: Callable[[int, list[tuple[str, str]]], Awaitable[None]]

    def __post_init__(self) -> None:
        self._readers: list[Reader] = []
        self._running: dict[asyncio.Future[Any], Lease] = {}
        self._giving_back: set[asyncio.Task[None]] = set()
        self._returning: set[tuple[int, str]] = set()
        self._parked: ParkedTask | None = None

    def start(self) -> None:
        """Begin to read; returns at once."""
        self._readers += [Reader(self, shard) for shard in range(self.keys.count)]
        for reader in self._readers:
            reader.start()

    async def stop_reading(self) -> None:
        """Stop reading; give back activations that are delivered until then."""
        await asyncio.gather(*(reader.stop() for reader in self._readers))

    @property
    def running(self) -> dict[asyncio.Future[Any], str]:
        return {each: lease.mailbox for each, lease in self._running.items()}

    def cancel(self) -> None:
        """Cancel what runs. A step that was asked for still leaves."""
        for task in (*self._running, *self._giving_back, *([] if self._parked is None else [self._parked.task])):
            task.cancel()

    @property
    def silent_for(self) -> float:
        return max((reader.silent_for for reader in self._readers), default=math.inf)

    @property
    def reads(self) -> bool:
        return all(reader.reads for reader in self._readers)

    def arrived(self, shard: int, ask: Ask, deliveries: list[Delivery], read_at: float | None) -> list[str]:
        """Run what was read; return the ids of ticks, which name no mailbox.

        Args:
            shard: Number of the reader's shard.
            ask: What it was allowed.
            deliveries: What it got.
            read_at: When the server was asked; None if it waited for work.
        """
        ticks = [each.activation for each in deliveries if each.mailbox is None]
        # An activation that is held here already is delivered again if the group was deleted: it goes on.
        activations = [each for each in deliveries if each.mailbox is not None and not self.knows(shard, each.activation)]
        room = self.slots.answered(shard, ask, len(deliveries), len(activations))
        self._hold_all(shard, activations[:room], read_at)
        self.hand_back(shard, activations[room:])
        if ticks:
            self.wake(shard)
        return ticks

    def knows(self, shard: int, activation: str) -> bool:
        """Return whether this activation is held here, or being given back."""
        return self.leases.holds(shard, activation) or (shard, activation) in self._returning

    def hand_back(self, shard: int, deliveries: list[Delivery]) -> list[str]:
        """Give back delivered activations, also those whose command was started with the delivery; return the ids of ticks."""
        for each in deliveries:
            if each.mailbox is not None:
                lease = Lease(shard, each.mailbox, each.activation, mono(), each.holder, each.attempt_id)
                name = f"command_bus.give_back {each.mailbox}"
                answer = self.steps.advance(lease, GIVE_BACK_UNCOUNTED)
                task = asyncio.get_running_loop().create_task(self._give_back(lease, answer), name=name)
                self._returning.add((shard, each.activation))
                self._giving_back.add(task)
                task.add_done_callback(self._finished)
        return [each.activation for each in deliveries if each.mailbox is None]

    def _hold_all(self, shard: int, deliveries: list[Delivery], read_at: float | None) -> None:
        """Hold what was read. What was started with its delivery begins now."""
        lone: list[Lease] = []
        for each in deliveries:
            lease = self.leases.add(shard, each.mailbox or "", each.activation, holder=each.holder, read_at=read_at)
            lease.attempt_id, lease.begun, lease.has_place = each.attempt_id, each.started, each.has_place
            lease.record = each.record
            if lease.begun is not None:
                lone.append(lease)
            else:
                self.take(lease)
        if lone:
            self._begin_all(lone)

    def take(self, lease: Lease) -> None:
        """Ask for the first command of a mailbox, which begins in the turn in which the answer comes."""
        asked = self.steps.advance(lease, TAKE)
        if isinstance(asked, asyncio.Future):
            self._running[asked] = lease
            asked.add_done_callback(partial(self._taken, lease))
        else:
            self.run_in_task(lease, partial(self.run, asked=asked))

    def _taken(self, lease: Lease, asked: asyncio.Future[Answer]) -> None:
        answer = None if asked.cancelled() or asked.exception() is not None else asked.result()
        if type(answer) is Started:
            del self._running[asked]
            lease.begun = answer
            self._begin_all([lease])
        else:
            is_over = asked.cancelled() or type(answer) is Released or type(answer) is LeaseLost
            self._over(lease, asked, None if is_over else partial(self.run, asked=asked))

    def _begin_all(self, leases: list[Lease]) -> None:
        """Begin what was started, under the name of the parked task."""
        if self._parked is None or self._parked.is_over:
            self._parked = ParkedTask()
        for lease in self._parked.begin(partial(self._begin, leases, self._parked)):
            self.run_in_task(lease, self.run)

    def _begin(self, leases: list[Lease], parked: ParkedTask) -> list[Lease]:
        """Begin lone commands until one waits, which goes on in the parked task; return those that were not begun."""
        if not parked.may_begin():
            return leases
        for number, lease in enumerate(leases, 1):
            rest = self.begin(lease, parked.task, self._over)
            if isinstance(rest, asyncio.Future):
                self._running[rest] = lease
            else:
                self._note(parked.go_on(rest(lease)), lease)
            if not parked.may_begin():
                return leases[number:]
        return []

    def run_in_task(self, lease: Lease, run: Run) -> None:
        """Run a mailbox in a task of its own."""
        self._note(asyncio.get_running_loop().create_task(run(lease), name=lease.task_name), lease)

    def _note(self, task: asyncio.Task[None], lease: Lease) -> None:
        self._running[task] = lease
        task.add_done_callback(self._finished)

    def _over(self, lease: Lease, answer: asyncio.Future[Answer], run: Run | None) -> None:
        """Let a mailbox go that had no task; or go on with it in one."""
        del self._running[answer]
        if run is not None:
            self.run_in_task(lease, run)
        else:
            self._drop(lease)

    def _drop(self, lease: Lease) -> None:
        self.leases.drop(lease)
        self.slots.give()

    async def _give_back(self, lease: Lease, asked: Awaitable[Answer]) -> None:
        try:
            answer = await asked
            while type(answer) is StepFailed:  # until its key is repaired, as for a command that runs
                await asyncio.sleep(_BROKEN_PAUSE)
                answer = await self.steps.advance(lease, GIVE_BACK_UNCOUNTED)
        finally:
            self._returning.discard((lease.shard, lease.activation))

    def _finished(self, task: asyncio.Task[None]) -> None:
        lease = self._running.pop(task, None)
        if lease is not None:
            self._drop(lease)
        self._giving_back.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "%s failed unexpectedly; its entity is taken over when its lease ends", printable(task.get_name()), exc_info=error
            )
