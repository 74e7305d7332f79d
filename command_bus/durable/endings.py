"""The end of a durable command, as its side record keeps it while the command is compensated."""

from __future__ import annotations

from typing import Any, NamedTuple

from command_bus.errors import BadStep
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.stored_fields import stored_row
from command_bus.transport.steps import FollowUp

_STATUSES = ("rejected", "expired", "cancelled", "dead_lettered")


class Ending(NamedTuple):
    """The end of a command.

    Attributes:
        status: Under which it is settled.
        reply: Its outcome, as its caller gets it.
        record: Its dead letter; empty if there is none.
        sends: What its handler sends with this end.
        given_up: The fields of what undoes, and was given up by an operator: it failed.
    """

    status: str
    reply: bytes
    record: bytes = b""
    sends: tuple[FollowUp, ...] = ()
    given_up: tuple[str, ...] = ()


class _Sent(NamedTuple):
    """The parts of what is kept of a command that is sent."""

    mailbox: str
    command_id: str
    envelope: bytes
    flow: str
    delay_ms: int
    mark: bytes


class _Kept(NamedTuple):
    """The parts of what is kept."""

    status: str
    reply: bytes
    record: bytes
    sends: tuple[list[Any], ...]
    given_up: tuple[str, ...] = ()


def pack_ending(ending: Ending) -> bytes:
    """Return what is kept."""
    sends = [
        list(_Sent(each.mailbox, each.command_id, each.envelope, each.flow, each.delay_ms, each.mark)) for each in ending.sends
    ]
    kept = [ending.status, ending.reply, ending.record, sends]
    return pack([*kept, list(ending.given_up)] if ending.given_up else kept)


def unpack_ending(data: bytes) -> Ending:
    """Return what was kept.

    Raises:
        BadStep: It is none of ours.
    """
    try:
        kept = stored_row(_Kept, unpack(data))
        if kept.status not in _STATUSES:
            raise ValueError(f"its status is {kept.status[:40]!r}")
        sends = tuple(FollowUp(*stored_row(_Sent, each)) for each in kept.sends)
    except (Undecodable, ValueError) as error:
        raise BadStep(f"the end of the command cannot be read, or was written by another release: {error}") from None
    return Ending(kept.status, kept.reply, kept.record, sends, kept.given_up)
