"""Dead letters of commands that a durable command called. That was told how they ended, and may call them again by itself: under another id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from command_bus.durable.names import UNDO
from command_bus.errors import InvalidCommand
from command_bus.serialization.durable_options import ReturnAddress, is_durable, return_address_in
from command_bus.serialization.envelope_reading import unpack_envelope
from command_bus.serialization.limits import Limits, Undecodable
from command_bus.serialization.wire_envelope import WireEnvelope
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.records import StoredDeadLetter


class CalledLetter(NamedTuple):
    """The dead letter of a command that a durable one called.

    Attributes:
        letter_id: Its id.
        command_id: Of its command.
        caller: Who called that.
    """

    letter_id: str
    command_id: str
    caller: ReturnAddress


def begins_anew(stored: StoredDeadLetter, envelope: WireEnvelope) -> bool:
    """Return whether a replay runs a durable command from its first line: it was compensated, so it calls all again, under other ids."""
    return not stored.parked and not stored.keeps and is_durable(envelope.options)


def called_again(called: Iterable[CalledLetter], callers: Collection[str]) -> set[str]:
    """Return the letters of what these commands called, and of what that called, and so on. They are of no use once the callers begin again."""
    letters, found, waiting = defaultdict[str, list[CalledLetter]](list), set[str](), list(callers)
    for each in called:
        letters[each.caller.command_id].append(each)
    while waiting:
        for each in letters.pop(waiting.pop(), ()):
            found.add(each.letter_id)
            waiting.append(each.command_id)
    return found


def caller_of(raw: bytes, limits: Limits, *, parked: bool) -> ReturnAddress | None:
    """Return the durable command that was told how this one ended; None if there is none. Of a parked one it waits still, and is not told."""
    if parked:
        return None
    try:
        return return_address_in(unpack_envelope(raw, limits).options)
    except Undecodable:
        return None


def undoes(caller: ReturnAddress) -> bool:
    """Return whether a command undoes what its caller did. The caller is parked then, and its replay calls again."""
    return caller.call.startswith(UNDO)


def check_alone(letter_id: str, caller: ReturnAddress, callers_letter: str) -> None:
    """Check that the letter of a command that was called may be replayed by itself.

    Args:
        letter_id: Its id.
        caller: Who called it.
        callers_letter: The letter of that, if its replay begins it again; else empty.

    Raises:
        InvalidCommand: Its caller calls that again, so it would be done twice.
    """
    if callers_letter:
        raise InvalidCommand(
            f"letter {letter_id} is of a command that {caller.command_id} on {mailbox_label(caller.mailbox)} had called. That was compensated, and "
            f"calls it again: replay the letter {callers_letter} of that one, which discards this one, or discard that one first"
        )
    if undoes(caller):
        raise InvalidCommand(
            f"letter {letter_id} is of a command that undoes what {caller.command_id} on {mailbox_label(caller.mailbox)} did, and that calls it "
            "again: replay the letter of that one, which is parked, and discard this one"
        )
