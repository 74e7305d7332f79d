"""Rules that must hold on the server after each script, whoever sent it: mailboxes, lone commands and counters agree."""

from __future__ import annotations

from collections.abc import Iterator

from command_bus.testing.simulated.store import Store, ZSet
from command_bus.testing.simulated.streams import Stream, id_of
from command_bus.transport.redis.mailbox_record import MailboxRecord, parse_record

__all__ = ["broken_states"]

_SHARDS = 2
"""Shards that a simulated namespace has at most."""


def broken_states(store: Store, prefix: bytes) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in a shard: the invariant with its entity, and what was found.

    Args:
        store: The server's data.
        prefix: Of the shard's keys.
    """
    table = store.get(prefix + b"active", dict) or {}
    lone = store.get(prefix + b"lone", dict) or {}
    waiting = len(store.get(prefix + b"delayed", dict) or {})
    for name, value in table.items():
        record, stream = parse_record(value), store.get(prefix + b"m:" + name, Stream)
        if record.is_lone:
            waiting += 1
            if stream is not None:
                yield name.decode(), "its only command is no entry of its mailbox, which has entries"
            if name not in lone:
                yield name.decode(), "the envelope of its only command is gone"
        elif stream is not None:
            waiting += len(stream.entries) - _settled(record, stream)
        if (found := _strange_snoozes(record, stream)) is not None:
            yield name.decode(), found
    for name in lone:
        if name not in table:
            yield name.decode(), "it is idle, and an envelope is left"
    yield from _broken_line(store, prefix)
    waiting += _leaving(store, prefix)
    counters = store.get(prefix + b"stats", dict) or {}
    depth = int(counters.get(b"depth", b"0"))
    if depth != waiting:
        yield (
            "",
            f"{depth} commands are not settled, but {waiting} stand in mailboxes, behind what is settled, are delayed, or go to another shard",
        )


def _leaving(store: Store, prefix: bytes) -> int:
    """Return how many commands go to another shard."""
    streams = [store.get(prefix + b"out:%d" % shard, Stream) for shard in range(_SHARDS)]
    return sum(len(stream.entries) for stream in streams if stream is not None)


def _broken_line(store: Store, prefix: bytes) -> Iterator[tuple[str, str]]:
    """Yield entities that wait in the line, and would not be found there."""
    line, turns = (store.get(prefix + name, ZSet) or ZSet() for name in (b"line", b"turns"))
    for name, value in (store.get(prefix + b"active", dict) or {}).items():
        record = parse_record(value)
        if record.state != "q":
            continue
        if record.holder.encode() + b"/" + name not in line:
            yield name.decode(), "it waits in the line, and has no place there"
        if record.holder.partition("/")[0].encode() not in turns:
            yield name.decode(), "it waits in the line, and its flow has no turn"


def _strange_snoozes(record: MailboxRecord, stream: Stream | None) -> str | None:
    """Return what is wrong with the count of snoozes in a record: it is of the oldest command that is not settled."""
    part = record.parts.get("z")
    if part is None:
        return None
    heads = [] if stream is None else sorted(stream.entries)
    oldest = "-".join(map(str, heads[0])) if heads else ""
    if record.is_held or record.is_lone:
        oldest = record.message or record.activation
    count, of, first, waits = part.split(":")
    if of != oldest:
        return f"its oldest command is {oldest or 'none'}, and {count} snoozes of {of} are counted"
    is_put_off = int(count) > 0 or waits == "0"  # of none: it was suspended, or parked
    return None if int(first) > 0 and is_put_off and waits in "01" else "a count of snoozes without a first start"


def _settled(record: MailboxRecord, stream: Stream) -> int:
    """Return how many entries of a mailbox count as settled: those before the one that runs."""
    if not record.is_held:
        return 0
    running = id_of(record.message.encode())
    return sum(entry < running for entry in stream.entries)
