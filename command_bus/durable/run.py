"""`DurableRun`: one run of a durable handler: what is stored, what is stored now, and where it waits."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from command_bus.clock import mono
from command_bus.durable.in_flight import LAST_WORDS, InFlight, Leavable
from command_bus.durable.names import CANCEL, EPOCH, MESSAGE, Names, RecordSize, call_field
from command_bus.durable.run_tools import (
    RunLost,
    RunTools,
    Signals,
    StoredErrors,
    Storing,
    is_awaited_directly,
    own_fields,
    patience,
    read_own,
)
from command_bus.durable.step_failures import StepFailures
from command_bus.durable.time_limits import CutOffs
from command_bus.durable.undo import UndoPlaces, pack_undo
from command_bus.durable.values import child_of
from command_bus.errors import CommandCancelled
from command_bus.messages.context import while_lent
from command_bus.messages.durable import Durable, Suspended
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.transport.ports.durable import CalledCommand, Note
from command_bus.transport.ports.sender import Reply
from command_bus.transport.steps import GIVE_BACK_UNCOUNTED, WORKER_LOST, GiveBack, Lease, Started, Suspend

_SOON = 0.001
"""Seconds that are not waited for."""
_FIRST_LOOK, _LAST_LOOK = 0.1, 1.0
"""Seconds between two looks at a side record, by a run that waits and cannot be suspended."""
_LOST_AFTER = 60.0
"""Seconds for which such a run waits before it looks up what its calls came to, and between two of these looks."""
_LOOKED_UP = 500
"""Most calls that it looks up at once: all of ten thousand within twenty minutes, before a mark is over."""


class DurableRun:
    """The state of one run. Its operations are in `step.py`, `waits.py` and `combined.py`.

    Nothing that it holds refers back to it, except tracebacks of `errors`: once those are cleared, it and what it has read are freed when it is
    over, not by the garbage collector.

    Args:
        tools: What it works with.
        lease: Under which it runs.
        command_id: Id of the command.
        started: Its start.
        fields: Its side record; None if this is the first run: then it is read when a signal is asked for, which may have come before.
        task: In which the handler runs.
    """

    def __init__(
        self,
        tools: RunTools,
        lease: Lease,
        command_id: str,
        started: Started,
        fields: Mapping[str, bytes] | None,
        task: asyncio.Task[Any] | None,
    ) -> None:
        self.tools = tools
        self.lease = lease
        self.command_id = command_id
        self.names = Names()
        self.fields: dict[str, bytes] = own_fields(fields, started) if fields else {}
        self.is_resumed = MESSAGE in self.fields
        self.root: object = None
        self.suspension: Suspend | GiveBack | None = None  # how this run has ended before its handler
        self.ended_waiting = False  # whether the handler's task was cancelled while it waited
        self.progressed = False
        self.cut_offs = CutOffs(self.names, self.fields, tools.children.awaited)
        self.signals = Signals(
            self.fields, partial(read_own, tools.records, lease, command_id, started) if fields is None else None
        )
        self.errors = StoredErrors()
        self.failures = StepFailures(self.fields, tools.limits)
        self.replies: list[Reply] = []
        self.undo_places = UndoPlaces(self.fields)
        self.has_called = any(name.startswith("c:") for name in self.fields)
        self.storing = Storing()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self.on_suspended: Callable[[], None] | None = None
        self.passed: Callable[[str], Awaitable[None]] | None = None
        self._task = task
        self._started = started
        self._began = mono()
        self.size = RecordSize(self.fields, tools.limits)
        self._waiting: dict[asyncio.Future[None], Sequence[Waited]] = {}
        self._looked, self._looks_soon = mono(), False
        self._looked_up, self._last_call = mono(), ""
        self.in_flight = InFlight(command_id, partial(_wake, self._waiting))
        self.working = 0  # functions of steps that run now, or whose results are being stored
        self._counts_anew = started.attempt > 1

    # What is stored.

    @property
    def seed(self) -> str:
        """The same for all runs of this command, also of its replayed dead letter, and for no other command. Once compensated, it has another."""
        first = self.fields.get(EPOCH) or self.fields.get(MESSAGE)
        return self._started.message if first is None else first.decode()

    @property
    def wish(self) -> bytes | None:
        """The wish that the command ends."""
        return self.fields.get(CANCEL)

    def check(self) -> None:
        """Check that this run may go on.

        Raises:
            Suspended: It is over.
        """
        if self.suspension is not None:
            raise Suspended

    async def store(self, *notes: Note, progressed: bool = False) -> list[bytes | None]:
        """Store fields that are not there yet; return what was there already, by field.

        Raises:
            BadStep: The record would become too large.
            Suspended: The run is over.
        """
        if isinstance(self.suspension, Suspend):
            raise Suspended
        own = len(notes)
        if self.cut_offs.unstored or self.failures.unstored:
            notes = (*notes, *self.cut_offs.taken(), *self.failures.taken())
        if not notes:
            return []
        self.size.add(notes)
        store, is_progress = self.tools.records.store, progressed and self._counts_anew
        try:
            found = await store(self.lease, self.command_id, notes, progressed=is_progress)
        except asyncio.CancelledError:
            # It is on its way, and what it sends as well: the end of the run has to know, and asks again.
            answer = store(self.lease, self.command_id, notes, progressed=is_progress)
            self._unanswered.add(answer)
            answer.add_done_callback(partial(self._answered, notes))
            raise
        if found is None:
            await self._lost()
        if progressed:
            self.progressed, self._counts_anew = True, False
        self._keep(notes, found)
        return found[:own]

    def _answered(self, notes: Sequence[Note], answer: asyncio.Future[list[bytes | None] | None]) -> None:
        if not answer.cancelled() and answer.exception() is None and (found := answer.result()) is not None:
            self._keep(notes, found)

    def _keep(self, notes: Sequence[Note], found: list[bytes | None]) -> None:
        """Note what is stored now."""
        for note, value in zip(notes, found, strict=True):
            self.fields[note.name] = value if value is not None else note.value if isinstance(note.value, bytes) else b""

    async def _lost(self) -> NoReturn:
        """End the handler: another worker has its lease.

        Raises:
            RunLost: The handler has ended before, or does not wait for this.
        """
        if self.lease.cancel is not None:
            self.lease.cancel(WORKER_LOST)
        task = asyncio.current_task()
        if self.lease.cancel is None or self.storing.is_here or task is None:
            raise RunLost
        task.cancel()  # a lease ends its handler once: that may have been before, and this has gone on
        await asyncio.get_running_loop().create_future()
        raise RunLost

    async def undoing(self, out: OutgoingMessage, field: str, place: int, call: str = "") -> Note:
        """Return the field of a command that undoes something: its place in the order in which handlers name them, and the call."""
        child = await self.tools.children.child(out, field, self.seed)
        return Note(field, pack_undo(place, call, child))

    # What arrives.

    def arrive(self, field: str, value: bytes) -> None:
        """Note what came of something that this run may wait for."""
        if field not in self.fields:
            self.fields[field] = value
            self.size.arrived(field)
        _wake(self._waiting)

    def look_soon(self) -> None:
        """Note that something that this run may wait for is in its side record, or soon will be."""
        self._looks_soon = True
        _wake(self._waiting)

    # Time.

    @property
    def now_ms(self) -> int:
        """The server's time, about."""
        return self._started.now_ms + int((mono() - self._began) * 1000)

    @property
    def limit_ms(self) -> int | None:
        """The server's time at which what is awaited here is over."""
        return self.cut_offs.until_ms

    def is_over(self, wait: Waited) -> bool:
        """Return whether a wait has ended: what it waits for is there, or its time has passed, and that of no block before it."""
        if wait.has_come():
            return True
        until, limit = wait.until_ms, self.limit_ms
        return until is not None and self.now_ms >= until and (limit is None or until <= limit)

    # Waiting.

    async def wait(self, durable: Durable[Any], waits: Sequence[Waited], *, wanted: int) -> None:
        """Wait until so many of these are over.

        Raises:
            Suspended: The command waits without a worker from now on.
            CommandCancelled: The command is to end.
        """
        await self.store()
        began, pause, may_suspend = mono(), _FIRST_LOOK, asyncio.current_task() is self._task
        given_up: list[Waited] = []
        may_linger = self.tools.may_linger()
        limit, looks_at = self.limit_ms, began + pause
        while True:
            self.check()
            if self._looks_soon:
                self._looks_soon = may_linger = False  # what is not there yet comes from another shard
                await self._look(waits, 0)
            pending = [each for each in waits if not self.is_over(each)]
            if len(waits) - len(pending) >= wanted:
                return
            await self.cut_offs.check(self.now_ms)
            knows_wish = self.wish is not None  # one that comes after this wakes the command at once
            if knows_wish and not (pending := await self._not_given_up(pending, given_up)):
                raise cancelled(self)
            ends = [each.until_ms for each in pending if each.until_ms is not None]
            end = min([*ends, limit] if limit is not None else ends, default=None)
            left = patience([each.lingers for each in pending], may_linger) - (mono() - began)
            stays = not may_suspend
            if may_suspend and left < _SOON:
                await self.storing.end()
                may_suspend, stays = await is_awaited_directly(self.root, durable), True
                if (
                    may_suspend and self.in_flight.count == 1 and not self.storing.tasks
                ):  # else once what is in flight beside it has ended
                    self._suspend(pending, wanted - (len(waits) - len(pending)), end, knows_wish)
            rest = max(looks_at - mono(), 0.001) if stays else max(left, 0.0)
            if end is not None:
                rest = min(rest, max((end - self.now_ms) / 1000, 0.001))
            await self._change(rest, pending)
            if stays and mono() >= looks_at:
                await self._look_up(pending, mono() - began)
                await self._look(pending, pause)
                pause = min(2 * pause, _LAST_LOOK)
                looks_at = mono() + pause

    async def pause(self, seconds: float) -> None:
        """Wait so long, before a step is tried again. The slot is lent meanwhile.

        Raises:
            Suspended: The run is over.
            CommandCancelled: The command is to end.
        """
        end = mono() + seconds
        while (left := end - mono()) > 0:
            await self._change(left, ())
            self.check()
            if self.wish is not None:
                raise cancelled(self)

    async def _not_given_up(self, pending: Sequence[Waited], given_up: list[Waited]) -> list[Waited]:
        """Give up what may be, as the command is to end; return what has to be waited for."""
        given_up += [each for each in pending if each not in given_up and await each.give_up()]
        return [each for each in pending if each not in given_up]

    def _suspend(self, pending: Sequence[Waited], wanted: int, end: int | None, knows_wish: bool) -> NoReturn:
        fields = tuple(each.field for each in pending if each.field)
        missing = max(1, min(wanted, len(fields)))
        self.suspension = Suspend(self.command_id, fields, missing, end, knows_wish)
        self._leave()

    def hand_back(self) -> NoReturn:
        """End this run, for another worker to go on with. What the functions of other steps return is still stored.

        Raises:
            Suspended: Always.
        """
        self.suspension = GIVE_BACK_UNCOUNTED
        self._leave()

    def _leave(self) -> NoReturn:
        if self._task is not None:
            asyncio.get_running_loop().call_later(LAST_WORDS, self._end, self._task, self.lease.attempt_id)
        if self.on_suspended is not None:
            self.on_suspended()
        raise Suspended

    def _end(self, task: asyncio.Task[Any], attempt_id: str) -> None:
        """End a handler that goes on although its run is over."""
        if self.root is not None and self.lease.attempt_id == attempt_id:
            task.cancel()

    async def _change(self, patience: float, pending: Sequence[Waited]) -> None:
        """Wait until something arrives, at most so many seconds. The slot is lent meanwhile."""
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()
        self._waiting[changed] = pending
        timer = loop.call_later(patience, _note_change, changed)
        try:
            await while_lent(self.tools.children.awaited(changed))
        except asyncio.CancelledError:
            self.ended_waiting = True
            raise
        finally:
            timer.cancel()
            del self._waiting[changed]

    async def _look(self, pending: Sequence[Waited], pause: float) -> None:
        """Read what arrives from elsewhere and so does not come by itself: what this and all operations beside it wait for, in one look."""
        if mono() - self._looked < pause / 2:
            return  # one beside it has looked
        self._looked = mono()
        awaited = {each.field for waits in (pending, *self._waiting.values()) for each in waits if each.field}
        awaited = {CANCEL, *awaited}.difference(self.fields)
        for name, value in (await self.tools.records.fields(self.lease, self.command_id, sorted(awaited))).items():
            self.arrive(name, value)

    async def _look_up(self, pending: Sequence[Waited], waited: float) -> None:
        """Look up calls that this run has waited for for long: where a failover loses the delivery of an outcome, only their marks have it.

        One operation does for all beside it; of many calls it takes the next ones each time.
        """
        if min(waited, mono() - self._looked_up) < _LOST_AFTER:
            return
        self._looked_up = mono()
        awaited = {each.field for waits in (pending, *self._waiting.values()) for each in waits}.difference(self.fields)
        calls = sorted(field[2:] for field in awaited if field.startswith("o:") and call_field(field[2:]) in self.fields)
        calls = [each for each in calls if each > self._last_call] + [each for each in calls if each <= self._last_call]
        for call in calls[:_LOOKED_UP]:
            self._last_call = call
            await self.tools.children.look_up(CalledCommand(call, *child_of(self.fields[call_field(call)])))

    async def running(self, work: Awaitable[Any]) -> Any:
        """Run the handler, or what compensates for it; all that it stores is stored then."""
        if self.in_flight.is_over:  # what compensates has its own: the handler's context stays barred
            self.in_flight = InFlight(self.command_id, partial(_wake, self._waiting))
        self.root = work
        try:
            try:
                return await Leavable(work, self.in_flight)
            except Exception as error:
                self.failures.leave(error)
                raise
            finally:
                await self._rest()
        finally:
            self._over()

    async def _rest(self) -> None:
        """Bar the context, and end or await what is in flight."""
        threads = self.tools.threads
        try:
            await self.in_flight.rest(lambda: threads.are_busy)
        finally:
            await threads.rest()
            if self._unanswered:
                await asyncio.wait(self._unanswered)
            if self.storing.tasks:
                await self.storing.end()
            if self.failures.are_stored and (notes := self.failures.over()):
                await self.store(*notes)

    def _over(self) -> None:
        """Note that the handler is over."""
        self.root = None
        for reply in self.replies:
            reply.forget()
        self.replies.clear()


def _wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    for each in waiting:
        _note_change(each)


def _note_change(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def cancelled(run: DurableRun) -> CommandCancelled:
    """Return the error of a command that is to end."""
    wish = (run.wish or b"").decode(errors="replace")
    return CommandCancelled(wish or "it was cancelled", command_id=run.command_id)


class TrackedOperation(ABC):
    """An `Operation` of a durable handler: it is in flight while it is awaited.

    Args:
        run: State of the handler's run.
    """

    name: str = ""
    """What it is known by in all runs; empty: it only combines others."""

    def __init__(self, run: DurableRun) -> None:
        self.run = run
        self.awaits = 0
        self._in_flight = run.in_flight

    async def perform(self, durable: Durable[Any]) -> Any:
        run, in_flight = self.run, self._in_flight
        if run.suspension is not None or in_flight.is_over:
            await in_flight.refuse()
            run.check()
        task = in_flight.begin()
        self.awaits += 1
        try:
            cut_offs = run.cut_offs
            if run.storing.tasks:
                await run.storing.end()
            if cut_offs.are_stored:
                await cut_offs.again(self._which())
            began = mono()
            try:
                return await self.performed(durable)
            except asyncio.CancelledError:
                self.leave()
                if not in_flight.is_over:
                    cut_offs.note(self._which(), began)
                raise
        finally:
            in_flight.end(task)

    def _which(self) -> str:
        """Return its name and which of its awaits this is; empty for one that combines others."""
        return self.name and f"{self.name}~{self.awaits}"

    @abstractmethod
    async def performed(self, durable: Durable[Any]) -> Any:
        """Begin it, wait for it, and return its result."""

    def leave(self) -> None:  # noqa: B027 - most take nothing
        """Give back what it has taken: the handler goes on without it. It may be awaited later."""


class Waited(TrackedOperation):
    """An operation that waits for a field, or for a time."""

    field: str = ""
    """The field that has what it comes to; empty if only time ends it."""
    until_ms: int | None = None
    """The server's time when the wait is over."""
    lingers: float = 0.0
    """Most seconds for which the worker waits itself before the command is suspended."""

    async def performed(self, durable: Durable[Any]) -> Any:
        await self.begin()
        if not self.run.is_over(self):
            await self.run.wait(durable, (self,), wanted=1)
        return await self.result()

    async def begin(self) -> None:
        """Store what it begins with."""

    async def result(self) -> Any:
        """Return its result; called once it is over."""

    def has_come(self) -> bool:
        """Return whether what it waits for is there."""
        return self.field in self.run.fields

    async def give_up(self) -> bool:
        """Give it up because the command is to end; return False if its outcome has to be waited for. One that was given up has none for this run."""
        return True

    async def fixed_time(self, name: str, seconds: float) -> int:
        """Return the server's time, in ms, of so many seconds after it was first asked for."""
        field = f"t:{name}"
        if field not in self.run.fields:
            await self.run.cut_offs.check(self.run.now_ms)
            await self.run.store(Note(field, int(seconds * 1000), is_time=True))
        return int(self.run.fields[field])
