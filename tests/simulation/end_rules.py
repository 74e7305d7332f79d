"""The ends of commands in the history: switched on in some of the seeds, and what must be kept there."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from command_bus import History as Kept
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.outcome import OutcomeRecord
from tests.simulation.history import End, Execution, History, Sent, of_commands

__all__ = ["ends", "ends_in", "kept_of"]

_RAN = {"completed": "returned", "rejected": "rejected"}


def kept_of(seed: int) -> Kept | None:
    """Return the history of a seed's bus; None: it has none."""
    return Kept("1000 days", 1_000_000, payload=True) if Random(f"history {seed}").random() < 0.4 else None


def ends_in(entries: dict[Any, list[bytes]], ids: dict[bytes, bytes]) -> list[End]:
    """Return the ends in the stream of a shard, with its index."""
    return [_end(_text(entry), dict(zip(flat[::2], flat[1::2], strict=True)), ids) for entry, flat in entries.items()]


def _end(entry: bytes, fields: dict[bytes, bytes], ids: dict[bytes, bytes]) -> End:
    record, command_id = OutcomeRecord.unpack(fields[b"r"]), fields[b"i"].decode()
    payload: Any = unpack(unpack_envelope(record.envelope).payload) if record.envelope else {}
    return End(command_id, payload.get("tag", command_id), record.status, record.fence, ids.get(fields[b"i"]) == entry)


def _text(entry: Any) -> bytes:
    return entry if isinstance(entry, bytes) else b"%d-%d" % entry


def ends(history: History) -> Iterator[tuple[str, str]]:
    """Find commands with a history that were settled without an end or with two, and ends that are not theirs."""
    if history.ends is None or history.stuck:
        return
    by_tag: dict[str, End] = {}
    seen: set[str] = set()
    for end in history.ends:
        if end.command_id in seen:
            yield "", f"two ends of {end.command_id} are kept"
        if not end.is_found:
            yield "", f"the end of {end.command_id} is not found by its id"
        seen.add(end.command_id)
        by_tag[end.tag] = end
    runs_of = of_commands(history)
    letters = {(letter.payload or {}).get("tag", "") for letter in history.letters}
    removed = {name for name, sent in history.sent.items() if sent.removed is not None}
    for name in sorted({*runs_of, *letters, *removed} - by_tag.keys()):
        if name in history.sent:
            yield history.sent[name].entity, f"{name} was settled, and no end of it is kept"
    for name, end in by_tag.items():
        sent = history.sent.get(name)
        if sent is not None and (fault := _fault(end, sent, runs_of.get(name, []), buried=name in letters)):
            yield sent.entity, f"{name} is kept as {end.status}, and {fault}"


def _fault(end: End, sent: Sent, runs: list[Execution], *, buried: bool) -> str:
    """Return what does not go with an end; empty if all does."""
    if end.status in _RAN:
        last = runs[-1] if runs else None
        goes = last is not None and last.fence == end.fence and last.how == _RAN[end.status]
        return "" if goes else f"its runs were {[(run.fence, run.how) for run in runs]}, not under fence {end.fence}"
    excuses = {
        "dead_lettered": buried,
        "expired": buried or sent.how == "call",
        "cancelled": sent.cancelled or sent.removed is not None,
        "superseded": sent.cancelled,
        "discarded": sent.discarded,
        "parked": False,
    }
    return "" if excuses[end.status] else "nothing of that kind happened to it"
