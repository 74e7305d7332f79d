"""Rules for the lines of commands of several entities that must hold on the server after each script: homes and places agree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from command_bus.testing.simulated.store import Store
from command_bus.testing.simulated.streams import Stream, id_of
from command_bus.transport.redis.mailbox_record import BLOCKED, MailboxRecord, parse_record

__all__ = ["broken_lines"]

_Entries = dict[str, dict[bytes, bytes]]


def broken_lines(store: Store, prefix: bytes) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what is wrong in a shard, each with its mailbox; and the homes whose command heads all its lines and is not made ready."""
    table: dict[bytes, bytes] = store.get(prefix + b"active", dict) or {}
    records = {name.decode(): parse_record(value) for name, value in table.items()}
    boxes = {name: _entries_of(store, prefix, name, record) for name, record in records.items()}
    if not any(b"w" in fields or b"s" in fields for entries in boxes.values() for fields in entries.values()):
        strange = [(name, "it is blocked by nothing") for name, record in records.items() if record.state == BLOCKED]
        return strange, []
    paused: dict[bytes, Any] = store.get(prefix + b"paused", dict) or {}
    found = [*_homeless(boxes), *_placeless(boxes), *_blocked_wrongly(records, boxes)]
    return found, [name for name, record in records.items() if _is_overlooked(name, record, records, boxes, paused)]


def _entries_of(store: Store, prefix: bytes, name: str, record: MailboxRecord) -> _Entries:
    """Return what is not settled in a mailbox, oldest first."""
    stream = store.get(prefix + b"m:" + name.encode(), Stream)
    if stream is None:
        return {}
    settled = id_of(record.message.encode()) if record.is_held and record.message else (0, 0)
    return {
        f"{entry[0]}-{entry[1]}": dict(zip(flat[::2], flat[1::2], strict=True))
        for entry, flat in stream.entries.items()
        if entry >= settled
    }


def _lines_of(fields: dict[bytes, bytes]) -> list[tuple[str, str]]:
    pairs = (each.rpartition("=") for each in fields.get(b"w", b"").decode().split())
    return [(name, entry) for name, _, entry in pairs]


def _homeless(boxes: dict[str, _Entries]) -> Iterator[tuple[str, str]]:
    """Yield places whose home has no such command."""
    named = {(home, *line) for home, entries in boxes.items() for fields in entries.values() for line in _lines_of(fields)}
    for name, entries in boxes.items():
        for entry, fields in entries.items():
            home = fields.get(b"s", b"").decode()
            if home and (home, name, entry) not in named:
                yield name, f"its place {entry} is of a command that {home} has not"


def _placeless(boxes: dict[str, _Entries]) -> Iterator[tuple[str, str]]:
    """Yield commands one of whose places is gone, or of another; and what stands in two orders in two lines."""
    for home, entries in boxes.items():
        for entry, fields in entries.items():
            for name, place in _lines_of(fields):
                if boxes.get(name, {}).get(place, {}).get(b"s", b"").decode() != home:
                    yield home, f"its command {entry} has no place {place} in {name}"
        lines: dict[str, list[tuple[int, int]]] = {}
        for fields in entries.values():
            for name, place in _lines_of(fields):
                lines.setdefault(name, []).append(id_of(place.encode()))
        for name, places in lines.items():
            if any(one > other for one, other in pairwise(places)):
                yield home, f"its commands stand in another order in {name}"


def _blocked_wrongly(records: dict[str, MailboxRecord], boxes: dict[str, _Entries]) -> Iterator[tuple[str, str]]:
    """Yield blocked mailboxes whose head is another than their record says, or no such entry."""
    for name, record in records.items():
        if record.state != BLOCKED:
            continue
        head = next(iter(boxes[name].items()), ("", {}))
        if head[0] != record.message:
            yield name, f"it is blocked by {record.message}, and its head is {head[0] or 'none'}"
        elif head[1].get(b"s", b"").decode() != record.parts.get("at", ""):
            yield name, f"it is blocked by a place of {record.parts.get('at')}, and its head is one of {head[1].get(b's')!r}"
        elif b"w" in head[1] and record.parts.get("w") != record.message:
            yield name, f"it is blocked by {record.message}, and keeps {record.parts.get('w')} as the command of its lines"


def _is_paused(name: str, paused: dict[bytes, Any]) -> bool:
    scopes = (name, name.partition(":")[0] + ":*", "*")
    return any(paused.get(scope.encode(), b"").startswith(b"p|") for scope in scopes)


def _is_overlooked(
    name: str, record: MailboxRecord, records: dict[str, MailboxRecord], boxes: dict[str, _Entries], paused: dict[bytes, Any]
) -> bool:
    if record.state != BLOCKED or _is_paused(name, paused):
        return False
    lines = _lines_of(boxes[name].get(record.message, {}))
    blocks = (other in records and records[other].state == BLOCKED and records[other].message == place for other, place in lines)
    return bool(lines) and all(blocks) and not any(_is_paused(other, paused) for other, _ in lines)
