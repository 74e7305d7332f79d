"""The waits of a durable handler: calls, sleeps and signals."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from command_bus.clock import checked_seconds
from command_bus.durable.names import ROOM, late_field, outcome_field, refused_field, undo_field
from command_bus.durable.run import DurableRun, Waited, cancelled
from command_bus.durable.run_tools import LINGER, LONG_LINGER
from command_bus.durable.undo import Ending, Undo, ending_as
from command_bus.durable.values import child_of, compare, readable_codec
from command_bus.errors import BadResult, BadStep, CallCycle, CommandBusError, CommandCancelled
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.serialization.envelope_options import DURABLE
from command_bus.serialization.limits import printable
from command_bus.serialization.reply import Completed, is_completed, unpack_reply
from command_bus.transport.ports.durable import NO_ROOM, SMALL_OUTCOME, Note

_log = logging.getLogger("command_bus.worker")
_TURNS = 10
"""Turns of the event loop in which a task that was cancelled gives back what it waited for."""
TIMED_OUT = b""
"""The value of a field whose time was over first."""


class Call(Waited):
    """Sends a command once, and waits for its outcome. Where time was over first, all runs see that, and the outcome is stored all the same."""

    def __init__(
        self,
        run: DurableRun,
        out: OutgoingMessage,
        reply: Any,
        timeout: float | None,
        undo: OutgoingMessage | None,
        *,
        key: str | None,
        counts: bool = False,
    ) -> None:
        super().__init__(run)
        self._counts = counts
        self._out = out
        self._reply = reply
        self._timeout = timeout
        self._undo = undo
        self._call = self.name = run.names.call(out.name, out.entity_type, out.entity_id, key)
        self._undo_place = 0 if undo is None or f"c:{self._call}" in run.fields else run.undo_places.next()
        self._is_told = self._is_told_to_end = False
        self.field = outcome_field(self._call)
        self._late = late_field(self._call)
        self._begun = False

    async def begin(self) -> None:
        run = self.run
        if self._begun:
            return
        run.check()
        known = run.fields.get(f"c:{self._call}")
        if known is None:
            await run.cut_offs.check(run.now_ms)
            if run.wish is not None:
                raise cancelled(run)
            known, digest = await self._send()
        else:
            digest = run.tools.children.digest_of(self._out)
        compare(f"the call {self._call!r}", known, digest)
        self._child, self._child_mailbox = child_of(known)
        if self._late in run.fields:
            self.field = self._late
        elif self._timeout is not None:
            self.until_ms = await self.fixed_time(self._call, self._timeout)
        self._begun = True

    async def _send(self) -> tuple[bytes, bytes]:
        """Store the call and send its command; return what is stored of it, and its digest."""
        run, call = self.run, self._call
        child = await run.tools.children.child(self._out, call, run.seed)
        sent = child.follow_up
        reply = run.tools.children.expect(sent.command_id)
        reply.then(self._told)
        run.replies.append(reply)
        value = child.digest + f"{sent.command_id}|{sent.mailbox}".encode()
        notes = [Note(f"c:{call}", value, child=sent)]
        if run.has_called and ROOM not in run.fields:  # the outcome of a single call always has room
            notes.append(Note(ROOM, str(_room(run)).encode()))
        run.has_called = True
        if self._undo is not None:
            notes.append(await run.undoing(self._undo, undo_field(call), self._undo_place, call))
        self.lingers = LONG_LINGER
        found = await run.store(*notes, progressed=True)
        if run.passed is not None:
            await run.passed(f"call:{self._out.name}")
        return found[0] or value, child.digest

    def _told(self, record: bytes) -> None:
        """Take the outcome from the inbox: the side record may get it later. Of a large one it says whether there was room."""
        if len(record) > SMALL_OUTCOME:
            self.run.look_soon()
            return
        field = outcome_field(self._call)
        self._is_told = field not in self.run.fields
        self.run.arrive(field, record)

    async def result(self) -> Any:
        run = self.run
        record = run.fields.get(self.field)
        if self._counts and record is not None and is_completed(record.removeprefix(NO_ROOM)):
            return None  # its result is not asked for
        if record is None:
            self.field, record = self._late, TIMED_OUT
            await run.store(Note(self._late, TIMED_OUT))
        elif self._is_told and (self.until_ms is not None or run.limit_ms is not None):  # all runs see the same: it is on its way
            record = (await run.store(Note(self.field, record)))[0] or record
        if record.startswith(NO_ROOM):
            raise BadStep(
                f"{self._out.name} on {self._child_mailbox} has ended, and its outcome is not stored: the outcomes of a durable command's calls "
                f"may have {self.run.size.most_bytes:,} bytes together. Let them return less, a reference say"
            )
        if self.field == self._late:
            late = TimeoutError(f"{self._out.name} on {self._child_mailbox} has not ended in time; it may still run")
            raise self.run.errors.note(late)
        try:
            return self.run.tools.children.value_of(record, self._reply, self._child)
        except CommandBusError as error:
            if isinstance(error, CallCycle):  # it has not started, and its caller waits for it no more
                await self.run.tools.children.remove(self._child_mailbox, self._child)
            if isinstance(error, CommandCancelled) and self.run.wish is not None:  # it was given up, by an earlier run perhaps
                raise cancelled(self.run) from None
            raise self.run.errors.note(error)  # noqa: B904 - it is the same

    async def give_up(self) -> bool:
        """Wait for a command that has started: what it did may have to be undone. A durable one ends, too."""
        if self._is_told_to_end:
            return False
        reason, durable = str(cancelled(self.run)), DURABLE.of(self._out.options)
        is_out = await self.run.tools.children.give_up(self._child_mailbox, self._child, reason, is_durable=durable)
        self._is_told_to_end = not is_out
        return is_out


class HeldCall(Call):
    """Calls the part of a command in its lines of the next shard; its result is an `Ending`: the caller ends as that does."""

    def __init__(self, run: DurableRun, part: OutgoingMessage, last: str, key: str) -> None:
        """Begin nothing yet; `last` is a mailbox of the last shard, where the command runs."""
        super().__init__(run, part, Any, None, None, key=key)
        self._last = last

    async def result(self) -> Ending:
        """Return the end, once all fences that others get in this shard are above that of the run."""
        run = self.run
        with suppress(CommandBusError):  # it ends with that
            await super().result()
        above = await run.tools.records.raise_fence(self._last, 0)
        await run.tools.records.raise_fence(run.lease.mailbox, above)
        return ending_as(run.fields[self.field], run.tools.limits)


class UndoCall(Waited):
    """Sends a command that undoes something, and waits for its outcome."""

    def __init__(self, run: DurableRun, undo: Undo, attempt: int) -> None:
        super().__init__(run)
        self._undo = undo
        self._attempt = attempt
        self._call = undo.call_of(attempt)
        self.field = outcome_field(self._call)

    async def begin(self) -> None:
        field, sent = f"c:{self._call}", self._undo.follow_up
        if field in self.run.fields:
            return
        if self._attempt > 1:  # what was called before has ended, and is remembered as that
            sent = await self.run.tools.children.again(sent, self._undo.field, self._call, self.run.seed)
        reply = self.run.tools.children.expect(sent.command_id)
        reply.then(lambda record: self.run.arrive(self.field, record))
        self.run.replies.append(reply)
        value = self._undo.digest + f"{sent.command_id}|{sent.mailbox}".encode()
        self.lingers = LONG_LINGER
        await self.run.store(Note(field, value, child=sent), progressed=True)

    async def result(self) -> None:
        """Return nothing: this worker may not be able to read what it returned."""
        outcome = self.run.fields[self.field]
        if not isinstance(unpack_reply(outcome, self.run.tools.limits)[1], Completed):
            child, _ = child_of(self.run.fields[f"c:{self._call}"])
            self.run.tools.children.value_of(outcome, None, child)

    async def give_up(self) -> bool:
        """Wait on: what undoes is not given up."""
        return False


class Ended(Waited):
    """Waits for the outcome of a call that was sent, and returns it as it is stored."""

    def __init__(self, run: DurableRun, call: str) -> None:
        super().__init__(run)
        self.field = outcome_field(call)

    async def result(self) -> bytes:
        return self.run.fields[self.field]

    async def give_up(self) -> bool:
        """Wait on: what the call did has to be known."""
        return False


class Sleep(Waited):
    """Waits for a time."""

    def __init__(self, run: DurableRun, seconds: float, key: str | None) -> None:
        super().__init__(run)
        self._seconds = checked_seconds("the time to sleep", seconds, zero=True)
        self.name = run.names.numbered("sleep", key)
        self.lingers = min(self._seconds, LINGER)

    async def begin(self) -> None:
        if self.until_ms is None:
            self.until_ms = await self.fixed_time(self.name, self._seconds)

    async def result(self) -> None: ...


class Signal(Waited):
    """Waits for the next signal of a name whose value fits.

    Who may send signals must not be able to end the command, or to stop its entity: what does not fit is refused where it comes, also for all runs
    and waits after this.
    """

    def __init__(self, run: DurableRun, name: str, checked: str, timeout: float | None, returns: Any) -> None:
        super().__init__(run)
        self._codec = readable_codec(f"signal {name!r}", returns)
        self._shown = f"signal {name!r}"
        self._name = checked
        self._wait = self.name = run.names.numbered(f"signal:{checked}")
        self._timeout = None if timeout is None else checked_seconds("timeout", timeout, zero=True)
        self._missed = outcome_field(self._wait)
        self._begun = False
        self._takes = False  # one that may still go to the next wait for this name

    async def begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        self.run.check()
        if self._missed in self.run.fields:
            self.field = self._missed
            return
        for field, value in (await self.run.signals.early()).items():
            self.run.arrive(field, value)
        for _ in range(_TURNS):
            if self._name in self.run.signals.waiting:
                await asyncio.sleep(0)
        self.field = self.run.signals.take(self._name)
        self._takes = True
        if self._timeout is not None:
            self.until_ms = await self.fixed_time(self._wait, self._timeout)

    def has_come(self) -> bool:
        run = self.run
        while self._takes and self.field in run.fields:
            try:
                self._value()
            except BadResult as error:
                run.storing.begin(self._refuse(self.field, error))
                self.field = run.signals.next(self._name)
            else:
                break
        return self.field in run.fields

    async def _refuse(self, field: str, error: BadResult) -> None:
        """Store that no run takes a signal, before any goes on from that."""
        (known,) = await self.run.store(Note(refused_field(field), b"1"))
        if known is None:
            number, why = field.rpartition("#")[2], error.message.replace("the reply", "it", 1)
            text = "%s: the %s, the number %s of its name, is left out, as its value does not fit what the handler waits for: %s"
            _log.warning(text, printable(self.run.command_id), self._shown, number, printable(why))

    def _value(self) -> Any:
        """Return the value of the signal that has come.

        Raises:
            BadResult: It does not fit, or cannot be decrypted.
        """
        name, tools = self.field.partition("#")[0], self.run.tools
        return self._codec.decode(tools.unseal(name, self.run.fields[self.field]), tools.limits)

    def leave(self) -> None:
        """Leave the signal to the next wait for this name."""
        if self._takes:
            self.run.signals.give_back(self._name)
            self._takes = False
        if self.field != self._missed:
            self.field, self._begun = "", False

    async def result(self) -> Any:
        run = self.run
        if self.field == self._missed or self.field not in run.fields:
            if self.field != self._missed:
                await run.store(Note(self._missed, TIMED_OUT))
                self.leave()
                self.field = self._missed
            raise run.errors.note(TimeoutError(f"the {self._shown} has not come in time"))
        if self._takes:
            run.signals.waiting.discard(self._name)
            self._takes = False
        return self._value()


def _room(run: DurableRun) -> int:
    """Return how many bytes outcomes of calls may still have in a side record, besides small ones."""
    outcomes = (len(value) for name, value in run.fields.items() if name.startswith("o:"))
    return max(0, run.size.most_bytes - sum(size for size in outcomes if size > SMALL_OUTCOME))
