"""The options `d` and `w` of an envelope: it is durable; and who waits for its outcome.

The return address of a command that a durable one has called: the mailbox and the command id of that one, and the name of the call in its side
record. The step that settles the command delivers its outcome there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

DURABLE: Final = "d"
RETURN: Final = "w"


class ReturnAddress(NamedTuple):
    """The durable command that waits for an outcome, and by what name it knows it."""

    mailbox: str
    command_id: str
    call: str


def is_return_address(value: Any) -> bool:
    """Return whether a value is a return address."""
    if type(value) is not list or len(value) != len(ReturnAddress._fields):
        return False
    mailbox, _, call = value
    return all(type(each) is str and each for each in value) and "|" not in mailbox and "|" not in call


def return_address_in(options: Mapping[str, Any] | None) -> ReturnAddress | None:
    """Return who waits for the outcome of a command, by the options of its envelope."""
    return ReturnAddress(*options[RETURN]) if options and RETURN in options else None


def is_durable(options: Mapping[str, Any] | None) -> bool:
    """Return whether a command is durable, by the options of its envelope."""
    return bool(options) and DURABLE in (options or {})
