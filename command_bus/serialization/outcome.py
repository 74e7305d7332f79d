"""The record of what became of one command, kept in the stream of outcomes of its dispatch, or in the history.

    [version, status, name, entity_type, entity_id, attempt, worker, accepted_ms, first_started_ms, fence, message, reply, other?]

Behind these may stand, in the history alone: the command's envelope, without what is for its caller alone, where payloads are kept; the
further entities of one of several, `[[type, id], …]`; and of a durable one its story, a map (see `story.py`).

The reply is the record that a caller would have got (see `reply`); it holds the command id. The time of settling is the entry's id. The
scripts write `folded` and `superseded` (`lua/shared/unstarted.lua`), with the other command's id at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

from command_bus.errors import BadReport
from command_bus.messages.reports import MOST_BYTES
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.msgpack import pack, reason_of, unpack
from command_bus.serialization.native import Packer, unpackb

Status = Literal["completed", "rejected", "expired", "dead_lettered", "parked", "cancelled", "discarded", "folded", "superseded"]
_VERSION = 1
_LENGTH = 12
_STATUSES = get_args(Status)
_TYPES = (str, str, None, None, int, str, int, int, int, str, bytes)


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """Outcome of a command, and the lease under which it was settled.

    Attributes:
        status: `parked` and `dead_lettered` are provisional: an operator may replay the command, which then has another outcome.
        accepted_ms: The server's time of acceptance.
        first_started_ms: The server's time of its first start; 0 if it never started.
        fence: Number of the start that settled it; grows with every start in its shard. 0 if it never started.
        message: Its id in the mailbox: the order of acceptance within its entity.
        reply: The packed reply.
        other: The id of the command that it was folded into, or that took its place; empty for other statuses.
        envelope: With the payload, if that is kept; else None.
        others: Types and ids of its further entities.
        story: What it did, if that is kept; else None.
    """

    status: Status
    name: str
    entity_type: str | None
    entity_id: str | None
    attempt: int
    worker: str
    accepted_ms: int
    first_started_ms: int
    fence: int
    message: str
    reply: bytes
    other: str = ""
    envelope: bytes | None = None
    others: Sequence[tuple[str, str]] = ()
    story: Mapping[str, Any] | None = None

    def pack(self) -> bytes:
        """Return the record's bytes."""
        data: bytes = Packer(buf_size=512).pack(
            (
                _VERSION, self.status, self.name, self.entity_type, self.entity_id, self.attempt, self.worker,
                self.accepted_ms, self.first_started_ms, self.fence, self.message, self.reply,
                *(() if self.envelope is None else (self.envelope,)),
                *((self.others,) if self.others else ()),
                *(() if self.story is None else (self.story,)),
            )
        )  # fmt: skip
        return data

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the record that was packed.

        Raises:
            Undecodable: It is no record, or one of a later version.
        """
        try:
            parts: Any = unpackb(data, max_array_len=64)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - msgpack raises many types on bad bytes
            raise Undecodable(f"an outcome: {reason_of(error)}") from None
        if type(parts) is not list or len(parts) < _LENGTH or parts[0] != _VERSION or type(parts[_LENGTH - 1]) is not bytes:
            raise Undecodable("an outcome of an unknown version or shape")
        values = parts[1:_LENGTH]
        if values[0] not in _STATUSES or not all(map(_fits, values, _TYPES)):
            raise Undecodable("an outcome with an element of the wrong type")
        record = cls(*values)
        return replace(record, **dict(filter(None, map(_further, parts[_LENGTH:])))) if len(parts) > _LENGTH else record


def _further(value: Any) -> tuple[str, Any] | None:
    """Return the field that stands behind the others of a record, and its value; None of one that only a later release knows."""
    if type(value) is list and all(type(each) is list and [*map(type, each)] == [str, str] for each in value):
        return "others", tuple(map(tuple, value))
    if type(value) is dict:
        return ("story", value) if type(value.get("f")) is dict else None
    return ("envelope", value) if type(value) is bytes else ("other", value) if type(value) is str else None


def _fits(value: Any, kind: type | None) -> bool:
    """Return whether a value has this type; `None` means text or `None`."""
    return type(value) is kind if kind is not None else value is None or type(value) is str


PROGRESS, LOG = "p", "l"
"""Names of their fields in a side record, under which they are encrypted."""
Cipher = Callable[[str, bytes], bytes]
"""Encrypts or decrypts the data of a name."""
_CLEAR, _SEALED = b"\x00", b"\x01"


def pack_progress(share: float, note: str, at_ms: int, seal: Cipher | None) -> bytes:
    """Return the bytes of how far a command is."""
    return _sealed(PROGRESS, pack([share, note, at_ms]), seal)


def pack_entry(text: str, facts: Mapping[str, Any], at_ms: int, seal: Cipher | None) -> bytes:
    """Return the bytes of an entry of a command's log.

    Raises:
        BadReport: It is too long, or has values that are no plain data.
    """
    try:
        data = pack([text, dict(facts), at_ms])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadReport(f"an entry of the log has plain data only: {error}") from None
    if len(data) > MOST_BYTES + 32:
        raise BadReport(f"an entry of the log has {len(data):,} bytes: at most {MOST_BYTES:,}")
    return _sealed(LOG, data, seal)


def unpack_report(name: str, data: bytes | None, unseal: Cipher) -> list[Any] | None:
    """Return the three parts of a report; None if there is none, or it cannot be read."""
    if not data or data[:1] not in (_CLEAR, _SEALED):
        return None
    try:
        parts: Any = unpack(unseal(name, data[1:]) if data[:1] == _SEALED else data[1:])
    except Undecodable:
        return None
    return parts if type(parts) is list and len(parts) == 3 else None


def _sealed(name: str, data: bytes, seal: Cipher | None) -> bytes:
    return _CLEAR + data if seal is None else _SEALED + seal(name, data)
