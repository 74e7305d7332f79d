"""Compensation: a durable command that fails for good undoes what it did, then it is settled with its first error.

What the command ends with is stored first; from then on its handler does not run again. The commands that undo are called one after the other, in
reverse order. One that fails parks the entity; a replay of its dead letter calls it again, and a discard goes on with the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from command_bus.durable.combined import AllOf
from command_bus.durable.names import CALL, ENDING, UNDO, outcome_field
from command_bus.durable.run import DurableRun, cancelled
from command_bus.durable.undo import Undo
from command_bus.durable.values import child_of
from command_bus.durable.waits import Ended, UndoCall
from command_bus.errors import CommandOutcomeError, InvalidCommand
from command_bus.messages.durable import Durable
from command_bus.serialization.reply import BEGUN, Cancelled, Expired, Forged, Invalid, Rejected, Unhandled, unpack_reply
from command_bus.transport.ports.durable import NO_ROOM, Note

_FAILED = "pf:"
_REMOVED = b"-"


class CompensationFailed(Exception):
    """A command that undoes something has failed for good."""


def has_to_compensate(run: DurableRun) -> bool:
    """Return whether a run has something to undo."""
    return any(name.startswith(UNDO) for name in run.fields)


def is_compensating(run: DurableRun) -> bool:
    """Return whether a command ends already: its handler does not run again."""
    return ENDING in run.fields


async def note_ending(run: DurableRun, ending: bytes) -> bytes:
    """Store what a command ends with; return what is stored."""
    return (await run.store(Note(ENDING, ending)))[0] or ending


def failed_undos(fields: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the fields of what undoes and has failed, by the side record of a command; one that was called again may have worked then."""
    return tuple(name for name in fields if name.startswith(UNDO) and f"{_FAILED}{name}" in fields)


async def compensate(run: DurableRun, given_up: Collection[str] = ()) -> None:
    """Undo what was done, once all that was called has ended: what has not started is taken out of line, what has started is waited for.

    Args:
        run: State of the handler's run.
        given_up: The fields of what undoes and is not called again.

    Raises:
        CompensationFailed: A command that undoes has failed for good.
        Suspended: The command waits for one.
    """
    await _end_calls(run)
    undos = [Undo.read(name, value) for name, value in run.fields.items() if name.startswith(UNDO) and name not in given_up]
    for undo in sorted(undos, key=lambda each: each.place, reverse=True):
        await _undo(run, undo)


async def _end_calls(run: DurableRun) -> None:
    """End what the handler called and did not wait for, also where that has no command of its own that undoes it."""
    running: list[Durable[bytes]] = []
    for name in [name for name in run.fields if name.startswith(CALL) and not name.startswith(CALL + UNDO)]:
        call = name.removeprefix(CALL)
        if outcome_field(call) in run.fields:
            continue
        child, mailbox = child_of(run.fields[name])
        children, wish = run.tools.children, run.wish
        if await (children.remove(mailbox, child) if wish is None else children.give_up(mailbox, child, str(cancelled(run)))):
            await run.store(Note(outcome_field(call), _REMOVED))
        else:
            running.append(Durable(Ended(run, call)))
    if running:
        await Durable(AllOf(run, tuple(running)))


def _did_nothing(run: DurableRun, call: str) -> bool:
    """Return whether a call certainly did nothing: it was refused, or never ran."""
    ended = run.fields[outcome_field(call)]
    if ended == _REMOVED or ended.startswith(NO_ROOM):
        return ended == _REMOVED
    outcome = unpack_reply(ended, run.tools.limits)[1]
    if isinstance(outcome, Cancelled):
        return outcome.code != BEGUN
    if isinstance(outcome, Forged | Invalid | Unhandled):
        return not outcome.begun
    return isinstance(outcome, Expired | Rejected)


async def _undo(run: DurableRun, undo: Undo) -> None:
    if undo.call and _did_nothing(run, undo.call):
        return
    attempt = 1
    while f"{_FAILED}{undo.call_of(attempt)}" in run.fields:
        attempt += 1
    run.names.used += [undo.call_of(each) for each in range(1, attempt + 1)]
    try:
        await Durable(UndoCall(run, undo, attempt))
    except (CommandOutcomeError, InvalidCommand) as error:
        if outcome_field(undo.call_of(attempt)) not in run.fields:
            raise  # it was not sent: this worker cannot read it, or may not sign it again
        await run.store(Note(f"{_FAILED}{undo.call_of(attempt)}", b"1"))
        raise CompensationFailed(f"{outcome_field(undo.call_of(attempt))}: {error.message}") from error
