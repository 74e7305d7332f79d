"""Records of commands that run: how far they are, their logs, their steps. Reached as `bus.commands.record` and `.progress`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from command_bus.admin.command_status import CommandStatus, StatusReader
from command_bus.durable.names import UNDO, call_field, outcome_field, over_field, refused_field
from command_bus.durable.undo import Undo
from command_bus.errors import BadStep, UnknownCommand
from command_bus.messages.reports import ProgressInfo
from command_bus.sending.call_progress import LookPauses, progress_in, unsealer
from command_bus.serialization.envelope import names_of
from command_bus.serialization.outcome import LOG, PROGRESS, unpack_report
from command_bus.session import Session
from command_bus.transport.mailboxes import envelope_in, mailbox_label
from command_bus.transport.marks import mailbox_in
from command_bus.transport.records import called_in


class LogEntry(NamedTuple):
    """An entry of a command's log.

    Attributes:
        at_ms: When it was written, by the server's clock, about.
        text: What the handler wrote.
        facts: The values that it gave.
    """

    at_ms: int
    text: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Something that a durable command has stored.

    Attributes:
        kind: `step`, `call`, `signal` (one that came), or `undo` (a command that undoes something, from when it is named).
        name: Its name; of a call the wire name. A number tells those of the same name apart.
        done: Whether it has a result: the outcome of a call, or of what undoes, is there. Of a signal: False if the handler
            did not take its value. Of a step: False if the handler has caught its error.
        command_id: Id of the command that was called, else empty: what undoes is called once the command ends.
        entity: What that command is for, as people read it.
    """

    kind: Literal["step", "call", "signal", "undo"]
    name: str
    done: bool = True
    command_id: str = ""
    entity: str = ""


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """All that a command has stored while it runs.

    Attributes:
        progress: How far it is.
        log: The last entries of its log, oldest first.
        steps: What a durable command has done, by kind and name.
    """

    progress: ProgressInfo
    log: tuple[LogEntry, ...] = ()
    steps: tuple[StepInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandTree:
    """A command, and what it has called.

    Attributes:
        status: Where it is.
        calls: Those of a durable command that is not settled, in no order; what they have called is in them.
        complete: Whether all that it has called is in it; else there were too many.
    """

    status: CommandStatus
    calls: tuple[CommandTree, ...] = ()
    complete: bool = True


async def tree_of(session: Session, command_id: str, likely: str | None, limit: int) -> CommandTree:
    """Return a command with what it has called, and what that has called, level by level.

    Raises:
        UnknownCommand: Nothing is known of the first.
    """
    left = limit - 1

    async def grown(wanted: str, place: str | None) -> CommandTree:
        nonlocal left
        reader = StatusReader(session, wanted, place, looks_around=place is likely)
        status, record = await asyncio.gather(reader.status(), record_of(session, wanted, reader))
        calls = [each.command_id for each in record.steps if each.command_id]
        taken = calls[: max(left, 0)]
        left -= len(taken)
        below = await asyncio.gather(*(_unless_unknown(grown(each, "")) for each in taken))
        found = tuple(each for each in below if each is not None)
        return CommandTree(status, found, len(taken) == len(calls) and all(each.complete for each in found))

    return await grown(command_id, likely)


async def _unless_unknown(tree: Awaitable[CommandTree]) -> CommandTree | None:
    try:
        return await tree
    except UnknownCommand:  # it has ended, and its mark is gone
        return None


async def record_of(session: Session, command_id: str, reader: StatusReader) -> CommandRecord:
    """Return what a command has stored; empty if it has nothing (any more).

    Raises:
        UnknownCommand: Nothing is known of the command.
    """
    mailbox = await reader.mailbox() or ""
    fields = await session.transport.durable.record(mailbox, command_id) if mailbox else {}
    if not mailbox:
        await reader.status()
    entries = sorted((int(name[2:]), value) for name, value in fields.items() if name.startswith("l:") and name[2:].isdecimal())
    read = [unpack_report(LOG, value, unsealer(session, mailbox, command_id)) for _, value in entries]
    log = tuple(LogEntry(at, text, facts) for text, facts, at in filter(None, read))
    return CommandRecord(progress_in(session, mailbox, command_id, fields.get(PROGRESS)), log, _steps(fields))


async def progress_of(session: Session, command_id: str) -> AsyncIterator[ProgressInfo]:
    """Yield how far a command is, whenever that changes, and how it ended.

    Raises:
        UnknownCommand: Nothing is known of it.
    """
    last, pauses = ProgressInfo(), LookPauses()
    while True:
        mailbox = await _mailbox(session, command_id)
        if mailbox is None:
            status = await StatusReader(session, command_id, looks_around=False).status()
            if status.state in ("settled", "parked"):
                yield ProgressInfo(last.share, last.note, last.at_ms, status.outcome or status.state)
                return
        else:
            (found,) = await session.transport.durable.fields(mailbox, command_id, [PROGRESS])
            now = progress_in(session, mailbox, command_id, found)
            if now not in (last, ProgressInfo()):
                last = now
                pauses.begin()
                yield now
        await pauses.wait()


async def _mailbox(session: Session, command_id: str) -> str | None:
    """Return where the command waits or runs; None if it is settled or not known."""
    marks = await session.transport.locations.marks(command_id)
    return next((mailbox for mailbox in map(mailbox_in, marks) if mailbox is not None), None)


def _steps(fields: Mapping[str, bytes]) -> tuple[StepInfo, ...]:
    """Return what a side record says of steps, calls and signals."""
    found: list[StepInfo] = []
    for field, value in sorted(fields.items()):
        kind, _, name = field.partition(":")
        if kind == "s":
            found.append(StepInfo("step", unquote(name)))
        elif kind == "x" and over_field(field) not in fields:
            found.append(StepInfo("step", unquote(name.rsplit("~", 2)[0]), done=False))
        elif kind == "g":
            found.append(StepInfo("signal", unquote(name), refused_field(field) not in fields))
        elif kind == "u":
            found.append(_undo(field, value, fields))
        elif kind == "c" and not name.startswith(UNDO):
            child, mailbox = called_in(value)
            found.append(
                StepInfo("call", unquote(name.partition("@")[0]), outcome_field(name) in fields, child, mailbox_label(mailbox))
            )
    return tuple(found)


def _undo(field: str, value: bytes, fields: Mapping[str, bytes]) -> StepInfo:
    """Return what a side record says of a command that undoes something, and of its last call if it was called."""
    try:
        undo = Undo.read(field, value)
    except BadStep:  # of another release
        return StepInfo("undo", unquote(field.removeprefix(UNDO)), done=False)
    name, entity, call = names_of(envelope_in(undo.follow_up.envelope)[2:])[1], mailbox_label(undo.follow_up.mailbox), ""
    for attempt in itertools.count(1):
        if call_field(undo.call_of(attempt)) not in fields:
            break
        call = undo.call_of(attempt)
    if not call:
        return StepInfo("undo", name, done=False, entity=entity)
    return StepInfo("undo", name, outcome_field(call) in fields, called_in(fields[call_field(call)])[0], entity)
