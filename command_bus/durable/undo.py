"""`Undo`: a command that undoes something, as a side record keeps it until it is sent, or the command is settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from command_bus.durable.names import UNDO
from command_bus.errors import BadStep
from command_bus.sending.children import Child
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.outcome import Status
from command_bus.serialization.reply import BadReply, Cancelled, Completed, Expired, Outcome, unpack_reply
from command_bus.serialization.stored_fields import stored_row
from command_bus.transport.steps import FollowUp


class _Kept(NamedTuple):
    """The parts of what is kept."""

    place: int
    call: str
    digest: bytes
    mailbox: str
    command_id: str
    envelope: bytes
    flow: str
    mark: bytes


def pack_undo(place: int, call: str, child: Child) -> bytes:
    """Return what is kept of a command that undoes something.

    Args:
        place: In the order in which handlers name such commands. They are sent in reverse.
        call: Name of the call that it undoes; empty if it was named by itself.
        child: The command.
    """
    sent = child.follow_up
    kept = _Kept(place, call, child.digest, sent.mailbox, sent.command_id, sent.envelope, sent.flow, sent.mark)
    return pack(list(kept))


class UndoPlaces:
    """The places of commands that undo something: each is behind all that were named before, in this run or an earlier one.

    Args:
        fields: The side record of the command.
    """

    def __init__(self, fields: Mapping[str, bytes]) -> None:
        self._fields = fields
        self._last: int | None = None

    def next(self) -> int:
        """Return the next place.

        Raises:
            BadStep: What earlier runs named cannot be read.
        """
        if self._last is None:
            named = (Undo.read(name, value).place for name, value in self._fields.items() if name.startswith(UNDO))
            self._last = max(named, default=0)
        self._last += 1
        return self._last


@dataclass(frozen=True, slots=True)
class Undo:
    """A command that undoes something.

    Attributes:
        field: Its field in the side record.
        place: In the order in which the handler named it.
        call: Name of the call that it undoes; empty if it was named by itself.
        digest: Tells the command from another.
        follow_up: What is sent.
    """

    field: str
    place: int
    call: str
    digest: bytes
    follow_up: FollowUp

    @classmethod
    def read(cls, field: str, value: bytes) -> Self:
        """Return what a side record keeps.

        Raises:
            BadStep: It is none of ours.
        """
        try:
            kept = stored_row(_Kept, unpack(value))
        except (Undecodable, ValueError) as error:
            raise BadStep(f"{field} cannot be read, or was written by another release: {error}") from None
        sent = FollowUp(kept.mailbox, kept.command_id, kept.envelope, kept.flow, 0, kept.mark)
        return cls(field, kept.place, kept.call, kept.digest, sent)

    def call_of(self, attempt: int) -> str:
        """Return the name under which it is called; it is called again when an operator replays the command that it failed to undo."""
        return self.field if attempt == 1 else f"{self.field}~{attempt}"


_STATUS_OF: dict[type[Outcome], Status] = {
    Completed: "completed", BadReply: "completed", Expired: "expired", Cancelled: "cancelled"
}  # fmt: skip


def ending_as(reply: bytes, limits: PayloadLimits) -> Ending:
    """Return the end of a command that ends as another did, whose outcome this is. The dead letter is the other's alone."""
    return Ending(_STATUS_OF.get(type(unpack_reply(reply, limits)[1]), "rejected"), reply)


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


class _KeptEnd(NamedTuple):
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
        kept = stored_row(_KeptEnd, unpack(data))
        if kept.status not in _STATUSES:
            raise ValueError(f"its status is {kept.status[:40]!r}")
        sends = tuple(FollowUp(*stored_row(_Sent, each)) for each in kept.sends)
    except (Undecodable, ValueError) as error:
        raise BadStep(f"the end of the command cannot be read, or was written by another release: {error}") from None
    return Ending(kept.status, kept.reply, kept.record, sends, kept.given_up)
