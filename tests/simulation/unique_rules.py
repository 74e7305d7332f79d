"""Rules of unique keys: at most one command waits for each, no key outlives its command, and a run follows the last trigger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from command_bus.serialization.envelope import unpack_envelope
from command_bus.testing.simulated.store import Store
from command_bus.testing.simulated.streams import Stream, id_of
from command_bus.transport.mailboxes import envelope_in
from command_bus.transport.redis.mailbox_record import parse_record
from command_bus.transport.unique_keys import Stander, mailbox_of_key, stored_key, unique_key

if TYPE_CHECKING:
    from tests.simulation.history import History

__all__ = ["after_the_last_trigger", "broken_keys"]


def broken_keys(store: Store, prefix: bytes) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the unique keys of a shard: the mailbox, and what was found.

    Args:
        store: The server's data.
        prefix: Of the shard's keys.
    """
    keys = store.get(prefix + b"unique", dict)
    if not keys:
        return
    waiting = _waiting(store, prefix)
    for key, count in Counter(key for key, _ in waiting).items():
        if count > 1:
            yield mailbox_of_key(key), f"{count} commands wait for the key {key}"
    places = set(waiting)
    for stored, value in keys.items():
        key, stander = stored.decode(), Stander.parse(value)
        mailbox = mailbox_of_key(key)
        record = parse_record((store.get(prefix + b"active", dict) or {}).get(mailbox.encode()))
        if stander is None:
            yield mailbox, f"the key {key} has {value!r}"
        elif (key, stander.command_id) not in places and not _is_started(store, prefix, mailbox, stander.place, record.message):
            yield mailbox, f"the key {key} is left, of {stander.command_id} at {stander.place}"


def _waiting(store: Store, prefix: bytes) -> list[tuple[str, str]]:
    """Return the keys of the commands that wait and were never started, each with the command's id."""
    found: list[tuple[str, str]] = []
    for name, value in (store.get(prefix + b"active", dict) or {}).items():
        record, stream = parse_record(value), store.get(prefix + b"m:" + name, Stream)
        if stream is None:
            continue
        running = id_of(record.message.encode()) if record.is_held else None
        entries = [entry for entry in stream.entries if running is None or entry > running]
        if running is None and record.first_ms:
            entries = entries[1:]
        for entry in entries:
            fields = stream.entries[entry]
            if fields[0] == b"e" and b"s" not in fields[::2] and (key := _key_of(name, fields[1])):
                found.append(key)
    for value in (store.get(prefix + b"delayed", dict) or {}).values():
        name, _, entry = value.partition(b"\n")
        if key := _key_of(name, envelope_in(entry)):
            found.append(key)
    return found


@lru_cache(4096)
def _key_of(mailbox: bytes, envelope: bytes) -> tuple[str, str] | None:
    """Return the key of a command as it is stored, and the command's id; None if it has no key."""
    read = unpack_envelope(envelope)
    key = unique_key(read)
    return (stored_key(mailbox.decode(), key), read.command_id) if key else None


def _is_started(store: Store, prefix: bytes, mailbox: str, place: str, running: str) -> bool:
    """Return whether a command runs, or stands at the head of its mailbox."""
    stream = store.get(prefix + b"m:" + mailbox.encode(), Stream)
    if stream is None or place == "d":
        return False
    head = next(iter(stream.entries), None)
    return place == running or (not running and id_of(place.encode()) == head)


def after_the_last_trigger(history: History) -> Iterator[tuple[str, str]]:
    """Check that a command of a key is started after its last trigger, in each entity."""
    for entity in sorted({each.entity for each in history.triggers}):
        triggers = [each for each in history.triggers if each.entity == entity]
        last = max(triggers, key=lambda each: each.invoked)
        if last.acked is None or history.stuck:
            continue  # it may not have arrived
        if any(each == entity and ended >= last.invoked for each, _, ended in history.purges):
            continue
        ids = {each.id for each in triggers}
        if not any(run.began >= last.invoked for run in history.executions if run.id in ids):
            yield entity, f"no command of the key was started after its last trigger, {last.id}"
