"""The bytes of progress and of log entries: a byte that says whether the rest is encrypted, then MessagePack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from command_bus.errors import BadReport
from command_bus.messages.reports import MOST_BYTES
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.msgpack import pack, unpack

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
