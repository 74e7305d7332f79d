"""Values whose bytes are fixed. One command writes the files: `python -m tests.unit.serialization.vectors`.

Each group is a file in `golden/`, a line per vector: its name, and its bytes in hexadecimal. Other languages' implementations can be
tested against the same files. A difference means that workers and producers of two versions would no longer understand each other:
raise the version and keep reading the old one, rather than write the files again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import AT_MOST_ONCE, GIVEN_ID, OPTIONS, WireEnvelope, pack_envelope, unpack_envelope
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.protection import Signatures
from command_bus.serialization.reply import (
    BadReply,
    Cancelled,
    Completed,
    Expired,
    Failed,
    Forged,
    Interrupted,
    Invalid,
    Rejected,
    Unhandled,
    pack_reply,
    unpack_reply,
)

__all__ = ["GROUPS", "Group", "read", "write"]

FOLDER = Path(__file__).with_name("golden")


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Group:
    """Vectors of one kind, how to pack them and how to read them back."""

    vectors: dict[str, Any]
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]


def _reply(outcome: Any) -> bytes:
    return pack_reply("c-1", outcome)


def _outcome(data: bytes) -> Any:
    command_id, outcome = unpack_reply(data)
    assert command_id == "c-1"
    return outcome


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "int_small": 5,
    "int_negative": -33,
    "int_largest": 2**64 - 1,
    "int_smallest": -(2**63),
    "float": 1.5,
    "text": "Grüße",
    "bytes": b"\x00\xff",
    "list": [1, "two"],
    "map": {"account_id": "a-17", "amount": 5},
    "map_int_keys": {1: "one"},
    "datetime_utc": datetime(2026, 11, 21, 12, 30, 15, 123456, tzinfo=UTC),
    "datetime_offset": datetime(2026, 11, 21, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "datetime_before_1970": datetime(1900, 1, 1, tzinfo=timezone(timedelta(hours=-8))),
    "datetime_naive": datetime(2026, 11, 21, 12, 30, 15, 123456),
    "date": date(2026, 11, 21),
    "date_before_1970": date(1, 1, 1),
    "time": time(12, 30, 15, 123456),
    "time_offset": time(12, 30, tzinfo=timezone(timedelta(hours=-5))),
    "timedelta": timedelta(days=1, seconds=2, microseconds=3),
    "timedelta_negative": timedelta(seconds=-1),
    "decimal": Decimal("-12.50"),
    "decimal_exponent": Decimal("1E+30"),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "set": {3, 1, 2},
    "set_empty": set(),
    "set_of_sets": {frozenset({1}), frozenset({1, 2})},
    "set_mixed": {"b", "a", 1, (1, "x")},
    "enum": Color.RED,
}

ENVELOPES: dict[str, Any] = {
    "dispatch": WireEnvelope("c-1", "Deposit", "account", "a-17", pack({"account_id": "a-17", "amount": 5})),
    "free": WireEnvelope("c-2", "SendMail", None, None, pack({})),
    "given_id": WireEnvelope("c-3", "Deposit", "account", "a-17", b"\x80", GIVEN_ID),
    "at_most_once_expires": WireEnvelope("c-4", "Charge", "account", "a-17", b"\x80", GIVEN_ID | AT_MOST_ONCE, 60_000),
    "call": WireEnvelope("c-5", "Deposit", "account", "a-17", b"\x80", 0, 5_000, "p-1"),
    "correlated": WireEnvelope("c-6", "Deposit", "account", "a-17", b"\x80", correlation_id="c-0"),
    "caused": WireEnvelope("c-7", "Deposit", "account", "a-17", b"\x80", correlation_id="c-0", causation_id="c-1"),
    "headers": WireEnvelope("c-8", "Deposit", "account", "ä", b"\x80", headers={"traceparent": "00-ab-cd-01", "n": ""}),
    "version": WireEnvelope("c-9", "Deposit", "account", "a-17", b"\x80", OPTIONS, options={"v": 2}),
}

REPLIES: dict[str, Any] = {
    "completed": Completed(pack(42)),
    "completed_none": Completed(pack(None)),
    "rejected": Rejected("insufficient funds", "insufficient_funds", {"balance": Decimal("1.50")}),
    "failed": Failed("app.PaymentError", "card declined", 3),
    "interrupted": Interrupted("its worker was lost"),
    "expired": Expired("not started in time"),
    "unhandled": Unhandled("no worker handles 'Deposit'"),
    "invalid": Invalid("amount: Input should be a valid integer"),
    "bad_reply": BadReply("the reply is int, the handler returned str"),
    "cancelled": Cancelled("purged"),
    "forged": Forged("bad signature: it is not signed"),
    "completed_encrypted": Completed(b"ciphertext", encrypted=("Deposit", "account", "a-17")),
    "completed_compressed_and_encrypted": Completed(b"ciphertext", encrypted=("Deposit", "account", "a-17"), compressed=True),
}

SIGNED = {name: ENVELOPES[name] for name in ("dispatch", "free", "call", "headers")}
_SIGNATURES = Signatures("shop", {"2026-11": b"a secret, long enough"}, required=True)


def _signed(envelope: WireEnvelope) -> bytes:
    return pack_envelope(envelope, _SIGNATURES.sign)


def _verified(data: bytes) -> WireEnvelope:
    envelope = unpack_envelope(data)
    assert _SIGNATURES.fault(data, envelope.signature) is None
    return replace(envelope, signature=None)


DEAD_LETTERS: dict[str, Any] = {
    "full": DeadLetterRecord(
        reason="failed",
        command_id="c-1",
        name="Deposit",
        entity_type="account",
        entity_id="a-17",
        error_type="ValueError",
        error_message="no",
        traceback="Traceback …",
        attempts=3,
        accepted_ms=1_795_222_048_047,
        first_started_ms=1_795_222_048_048,
        failed_ms=1_795_222_049_000,
        worker="host:1",
        headers={"tenant": "t-1"},
    ),
    "undecodable": DeadLetterRecord(reason="undecodable", error_message="cut short"),
}

GROUPS = {
    "values": Group(VALUES, pack, unpack),
    "envelopes": Group(ENVELOPES, pack_envelope, unpack_envelope),
    "signed": Group(SIGNED, _signed, _verified),
    "replies": Group(REPLIES, _reply, _outcome),
    "dead_letters": Group(DEAD_LETTERS, DeadLetterRecord.pack, DeadLetterRecord.unpack),
}


def read(group: str) -> dict[str, bytes]:
    """Return the recorded vectors of a group by name."""
    lines = (FOLDER / f"{group}.hex").read_text(encoding="ascii").splitlines()
    return {name: bytes.fromhex(text) for name, text in (line.split() for line in lines)}


def write() -> None:
    """Record the bytes as they are now."""
    FOLDER.mkdir(exist_ok=True)
    for name, group in GROUPS.items():
        lines = [f"{key} {group.pack(value).hex()}\n" for key, value in group.vectors.items()]
        (FOLDER / f"{name}.hex").write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    write()
