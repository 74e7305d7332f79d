"""Dead letters of commands that a durable command called. That was told how they ended, and may call them again by itself: under another id."""

from __future__ import annotations

from command_bus.durable.names import UNDO
from command_bus.errors import InvalidCommand
from command_bus.serialization.durable_options import ReturnAddress, return_address_in
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.limits import Limits, Undecodable
from command_bus.transport.mailboxes import mailbox_label

__all__ = ["caller_of", "check_alone", "undoes"]


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


def check_alone(letter_id: str, caller: ReturnAddress | None) -> None:
    """Check that a letter may be replayed by itself.

    Raises:
        InvalidCommand: It is of a command that undoes something: its caller calls that again, so it would be undone twice.
    """
    if caller is not None and undoes(caller):
        raise InvalidCommand(
            f"letter {letter_id} is of a command that undoes what {caller.command_id} on {mailbox_label(caller.mailbox)} did, and that calls it "
            "again: replay the letter of that one, which is parked, and discard this one"
        )
