"""The server's answer to a submission, as a receipt or a typed refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from command_bus.errors import CommandBusError, Draining, IdempotencyConflict, InvalidCommand, MayNotReplace, QueueFull
from command_bus.messages.receipts import Receipt, kept
from command_bus.transport.submissions import Admission

_RETRY_AFTER = 0.25
"""Seconds; a full entity drains a command in far less, and a producer that waits this long loses little."""

_RETRY_AFTER_DRAIN = 5.0
"""Seconds; people take their time."""

_FULL: dict[Admission, tuple[str, str]] = {
    Admission.ENTITY_FULL: ("entity", "the entity holds as many commands as max_depth allows"),
    Admission.TOTAL_FULL: (
        "total",
        "the entity's shard holds as many commands as its part of max_total_depth allows",
    ),
    Admission.TOO_MANY_ENTITIES: (
        "entities",
        "as many entities of its shard have work as its part of max_entities allows, and this one has none; a parked one counts, too",
    ),
    Admission.PREDECESSOR_REFUSED: (
        "predecessor",
        "an earlier command of this entity in the same batch was refused, and must not be overtaken",
    ),
}


_ACCEPTED = Admission.ACCEPTED  # compared first: an enum's hash is a call in Python
_STATUS: dict[Admission, Literal["accepted", "duplicate", "replaced"]] = {
    Admission.ACCEPTED: "accepted",
    Admission.DUPLICATE: "duplicate",
    Admission.FOLDED: "duplicate",
    Admission.REPLACED: "replaced",
}


def refusal(admission: Admission, command_id: str) -> CommandBusError | None:
    """Return why a command was not accepted, or None if it was (now or before)."""
    if admission is _ACCEPTED or admission in _STATUS:
        return None
    if admission is Admission.CONFLICT:
        return IdempotencyConflict(f"command id {command_id!r} was used before for another command", command_id=command_id)
    if admission is Admission.WRONG_TYPE:
        return InvalidCommand(
            "this entity's mailbox takes no commands: its key holds something else (WRONGTYPE), or the ids of its stream are used up, as "
            "another program has written to it. Nothing was accepted; workers create a stream that is used up again once it is empty"
        )
    if admission is Admission.DRAINING:
        return Draining(
            "an operator drains this entity, its type or the whole bus: nothing new is accepted until it is resumed",
            retry_after=_RETRY_AFTER_DRAIN,
        )
    if admission is Admission.MAY_NOT_REPLACE:
        return may_not_replace()
    limit, text = _FULL[admission]
    return QueueFull(text, retry_after=_RETRY_AFTER, limit=limit)


def may_not_replace() -> MayNotReplace:
    """Return the error of a command that would replace another one, of a user who may not."""
    return MayNotReplace(
        "Unique(wins='latest') takes the command that waits out of line, and this user of the server may not delete from mailboxes: make "
        'it a producer that replaces, acl_lines("producer", …, replaces=True), or let the first win. Nothing was accepted'
    )


def status_of(admission: Admission) -> Literal["accepted", "duplicate", "replaced", "rejected"]:
    """Return `accepted`, `duplicate`, `replaced` or `rejected`."""
    return "accepted" if admission is _ACCEPTED else _STATUS.get(admission, "rejected")


def receipt(
    command_id: str, admission: Admission, ask: Callable[..., Awaitable[Any]] | None = None, other: str | None = None
) -> Receipt[Any]:
    """Return the receipt of an accepted command, with a result if `ask` is given.

    Raises:
        CommandBusError: It was refused.
    """
    error = refusal(admission, command_id)
    if error is not None:
        raise error
    plain: Receipt[Any] = Receipt(command_id, "accepted" if admission is _ACCEPTED else _STATUS[admission], other)
    return plain if ask is None else kept(plain, ask)
