"""Streams and their consumer groups, as far as the bus uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from command_bus.testing.simulated.store import COMMANDS, Args, ReplyError, Store, command, of, option

Id = tuple[int, int]
_LAST: Id = (2**64 - 1, 2**64 - 1)


@dataclass(slots=True)
class Pending:
    """An entry that was delivered and not acknowledged. `touched` is true time, which a jump of the server's clock does not change."""

    consumer: bytes
    at_ms: int
    count: int


@dataclass(slots=True)
class Group:
    """A consumer group: the last id it read, and what is pending of it by consumer."""

    last: Id
    pending: dict[Id, Pending] = field(default_factory=dict)
    consumers: dict[bytes, int] = field(default_factory=dict)


class Stream:
    """A stream: entries in the order of their ids."""

    __slots__ = ("entries", "groups", "last")

    def __init__(self) -> None:
        self.entries: dict[Id, list[bytes]] = {}
        self.last: Id = (0, 0)
        self.groups: dict[bytes, Group] = {}

    def __bool__(self) -> bool:
        """Return whether it was ever written to, or read by a group: it is there then, though it may have no entries."""
        return self.last != (0, 0) or bool(self.groups)


def id_of(text: bytes, low: int = 0) -> Id:
    """Parse an id; without a second part it gets `low`."""
    ms, dash, sequence = text.partition(b"-")
    return int(ms), int(sequence) if dash else low


def text_of(entry: Id) -> bytes:
    """Return an id as bytes for the wire."""
    return b"%d-%d" % entry


def bounds(low: bytes, high: bytes) -> tuple[Id, Id]:
    """Parse a range; both ends of what is returned are included."""
    if low == b"-":
        start: Id = (0, 0)
    elif low[:1] == b"(":
        ms, sequence = id_of(low[1:])
        if (ms, sequence) == _LAST:
            raise ReplyError("ERR invalid start ID for the interval")
        start = (ms, sequence + 1)
    else:
        start = id_of(low)
    if high[:1] == b"(":
        ms, sequence = id_of(high[1:])
        return start, (ms, sequence - 1) if sequence else (ms - 1, _LAST[1])
    return start, _LAST if high == b"+" else id_of(high, 2**63)


def _group(store: Store, key: bytes, name: bytes) -> tuple[Stream, Group]:
    stream = store.get(key, Stream)
    if stream is None or name not in stream.groups:
        raise ReplyError(f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}'")
    return stream, stream.groups[name]


@command
def xadd(store: Store, args: Args) -> Any:
    key, rest = args[0], args[1:]
    most = 0
    if rest[0].upper() == b"MAXLEN":
        rest = rest[2:] if rest[1] in (b"~", b"=") else rest[1:]
        most, rest = int(float(rest[0])), rest[1:]
    stream = store.make(key, Stream)
    stream.last = _next_id(store, stream) if rest[0] == b"*" else _given_id(stream, rest[0])
    stream.entries[stream.last] = rest[1:]
    while most and len(stream.entries) > most:
        del stream.entries[next(iter(stream.entries))]
    store.fed[key] = None
    if store.watch is not None:
        store.watch.added(key, text_of(stream.last), rest)
    return text_of(stream.last)


def _next_id(store: Store, stream: Stream) -> Id:
    if stream.last == _LAST:
        raise ReplyError("ERR The stream has exhausted the last possible ID, unable to add more items")
    ms, sequence = stream.last
    if store.now > ms:
        return store.now, 0
    return (ms, sequence + 1) if sequence < _LAST[1] else (ms + 1, 0)


def _given_id(stream: Stream, text: bytes) -> Id:
    ms, _, sequence = text.partition(b"-")
    last_ms, last = stream.last
    entry = (int(ms), last + 1 if int(ms) == last_ms else 0) if sequence == b"*" else id_of(text)
    if entry <= stream.last:
        raise ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return entry


def _trim(stream: Stream, by: bytes, *rest: bytes) -> int:
    if by.upper() == b"MINID":
        low = id_of(rest[-1])
        gone = [entry for entry in stream.entries if entry < low]
        if b"~" in rest:  # whole nodes, which are small here
            gone = gone[: len(gone) // 3 * 3]
    else:
        gone = list(stream.entries)[: max(0, len(stream.entries) - int(rest[-1]))]
    for entry in gone:
        del stream.entries[entry]
    return len(gone)


def _range(stream: Stream, low: bytes, high: bytes, *options: bytes) -> list[Any]:
    start, end = bounds(low, high)
    count = int(option(options, b"COUNT") or -1)
    found: list[Any] = []
    if start == end:
        fields = stream.entries.get(start)
        return [] if fields is None else [[text_of(start), list(fields)]]
    for entry, fields in stream.entries.items():
        if entry > end or len(found) == count:
            break
        if entry >= start:
            found.append([text_of(entry), list(fields)])
    return found


def _range_back(stream: Stream, high: bytes, low: bytes, *options: bytes) -> list[Any]:
    count = option(options, b"COUNT")
    return _range(stream, low, high)[::-1][: None if count is None else int(count)]


def _deleted(stream: Stream, *ids: bytes) -> int:
    return sum(stream.entries.pop(id_of(text), None) is not None for text in ids)


def _places(args: Args) -> tuple[Args, Args]:
    """Return the streams of a read, and the ids behind which it reads them."""
    places = args[[word.upper() for word in args].index(b"STREAMS") + 1 :]
    return places[: len(places) // 2], places[len(places) // 2 :]


@command
def xread(store: Store, args: Args) -> Any:
    count = option(args, b"COUNT") or b"-1"
    found = [
        [key, COMMANDS[b"XRANGE"](store, [key, b"(" + after, b"+", b"COUNT", count]) if id_of(after) < _LAST else []]
        for key, after in zip(*_places(args), strict=True)
    ]
    return [stream for stream in found if stream[1]] or None


# Groups.


def _new_group(stream: Stream, name: bytes, last: bytes, *_: bytes) -> bytes:
    if name in stream.groups:
        raise ReplyError("BUSYGROUP Consumer Group name already exists")
    stream.groups[name] = Group(stream.last if last == b"$" else id_of(last))
    return b"OK"


@command
def xgroup__delconsumer(store: Store, args: Args) -> Any:
    _, group = _group(store, args[0], args[1])
    lost = [entry for entry, pending in group.pending.items() if pending.consumer == args[2]]
    for entry in lost:
        del group.pending[entry]
    group.consumers.pop(args[2], None)
    return len(lost)


def _groups(stream: Stream) -> list[Any]:
    return [
        [b"name", name, b"pending", len(group.pending), b"last-delivered-id", text_of(group.last)]
        for name, group in stream.groups.items()
    ]


@command
def xinfo__consumers(store: Store, args: Args) -> Any:
    _, group = _group(store, args[0], args[1])
    return [
        [b"name", name, b"pending", sum(p.consumer == name for p in group.pending.values()), b"idle", store.now - seen]
        for name, seen in group.consumers.items()
    ]


def read_group(store: Store, args: Args) -> Any:
    """XREADGROUP without blocking: return the answer, or None if there is nothing to read."""
    consumer = args[2]
    (key,), (start,) = _places(args)
    count = int(option(args, b"COUNT") or 2**31)
    stream, group = _group(store, key, args[1])
    now = store.now
    group.consumers[consumer] = now
    if start != b">":
        mine = [entry for entry, pending in group.pending.items() if pending.consumer == consumer and entry > id_of(start)]
        return [[key, [[text_of(entry), stream.entries.get(entry)] for entry in mine[:count]]]]
    found: list[Any] = []
    for entry, fields in stream.entries.items():
        if len(found) == count:
            break
        if entry > group.last:
            found.append([text_of(entry), list(fields)])
            group.pending[entry] = Pending(consumer, now, 1)
            if store.watch is not None:
                store.watch.touched(key, text_of(entry), consumer)
    if not found:
        return None
    group.last = id_of(found[-1][0])
    return [[key, found]]


def _acknowledged(stream: Stream, name: bytes, *ids: bytes) -> int:
    group = stream.groups.get(name)
    return 0 if group is None else sum(group.pending.pop(id_of(text), None) is not None for text in ids)


@command
def xpending(store: Store, args: Args) -> Any:
    _, group = _group(store, args[0], args[1])
    rest = args[2:]
    if not rest:
        if not group.pending:
            return [0, None, None, None]
        per = Counter(pending.consumer for pending in group.pending.values())
        ids = sorted(group.pending)
        return [len(ids), text_of(ids[0]), text_of(ids[-1]), [[name, b"%d" % count] for name, count in per.items()]]
    idle = 0
    if rest[0].upper() == b"IDLE":
        idle, rest = int(rest[1]), rest[2:]
    start, end = bounds(rest[0], rest[1])
    consumer = rest[3] if len(rest) > 3 else None
    now = store.now
    found = [
        [text_of(entry), pending.consumer, max(0, now - pending.at_ms), pending.count]
        for entry, pending in sorted(group.pending.items())
        if start <= entry <= end and (not idle or now - pending.at_ms >= idle) and consumer in (None, pending.consumer)
    ]
    return found[: int(rest[2])]


@command
def xclaim(store: Store, args: Args) -> Any:
    stream, group = _group(store, args[0], args[1])
    consumer, idle = args[2], int(args[3])
    now = store.now
    words = [word.upper() for word in args[4:]]
    justid, retries = b"JUSTID" in words, option(words, b"RETRYCOUNT")
    group.consumers[consumer] = now
    claimed: list[Any] = []
    for text in takewhile(lambda word: b"-" in word, words):
        entry = id_of(text)
        pending = group.pending.get(entry)
        if pending is None or (idle and now - pending.at_ms < idle):
            continue
        fields = stream.entries.get(entry)
        if fields is None:
            del group.pending[entry]
            continue
        if store.watch is not None:
            store.watch.claimed(args[0], text, pending.consumer, consumer, justid=justid)
        group.pending[entry] = Pending(consumer, now, pending.count + (not justid) if retries is None else int(retries))
        claimed.append(text if justid else [text, list(fields)])
    return claimed


COMMANDS[b"XREADGROUP"] = read_group
_OF_STREAMS: dict[bytes, Callable[..., Any]] = {
    b"XLEN": lambda stream: len(stream.entries),
    b"XDEL": _deleted,
    b"XTRIM": _trim,
    b"XRANGE": _range,
    b"XREVRANGE": _range_back,
    b"XACK": _acknowledged,
    b"XGROUP CREATE": _new_group,
    b"XGROUP DESTROY": lambda stream, name: int(stream.groups.pop(name, None) is not None),
    b"XINFO GROUPS": _groups,
}
COMMANDS.update({name: of(Stream, function) for name, function in _OF_STREAMS.items()})
