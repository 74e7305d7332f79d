"""A store with the Redis commands that the bus uses: strings, hashes, sorted sets, lists. Streams are in `streams`.

Written for speed and for control over time. The conformance suite runs on it as on every server, and so checks it. Commands are
functions of the store and their arguments as bytes, found by name in `COMMANDS`; those of a collection are written as functions of its
Python value (`of`). Errors are raised as `ReplyError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar


def option(words: Sequence[bytes], name: bytes, at: int = 1) -> bytes | None:
    """Return the word that stands behind an option, in any case; None without the option."""
    names = [word.upper() for word in words]
    return words[names.index(name) + at] if name in names else None


def matching(options: Sequence[bytes]) -> Callable[[bytes], object]:
    """Return what says whether a name matches the pattern of a scan: that of `MATCH`, else any."""
    parts = re.findall(rb"\\.|\[(?:\\.|[^\]])*\]|.", option(options, b"MATCH") or b"*", re.DOTALL)
    return re.compile(b"".join(map(_as_regex, parts)), re.DOTALL).fullmatch


def _as_regex(part: bytes) -> bytes:
    """Return a part of a pattern of Redis as a regular expression has it."""
    if part in (b"*", b"?"):
        return b".*" if part == b"*" else b"."
    return part if len(part) > 2 else re.escape(part[-1:])


T = TypeVar("T")
Args = list[bytes]
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class ReplyError(Exception):
    """An error reply."""


class ZSet(dict[bytes, float]):
    """Members with scores."""

    def ranked(self) -> list[tuple[bytes, float]]:
        """Return members by score, then by name."""
        return sorted(self.items(), key=lambda item: (item[1], item[0]))


class Store:
    """The data of one server. `now` is its wall clock in ms, which may jump."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.data: dict[bytes, Any] = {}
        self.expires: dict[bytes, float] = {}
        self.clock = clock
        self.fed: dict[bytes, None] = {}
        """Keys with new data that a blocking read may wait for."""
        self.watch: Any = None
        """Observer of leases and mailboxes, or None."""

    @property
    def now(self) -> int:
        """Return milliseconds of the server's clock."""
        return int(self.clock() * 1000)

    def get(self, key: bytes, kind: type[T]) -> T | None:
        """Return the value of a key, or None; raise `ReplyError` if it is of another type."""
        value = self.data.get(key)
        if value is None:
            return None
        if key in self.expires and self.expires[key] <= self.now:
            self.drop(key)
            return None
        if type(value) is not kind:
            raise ReplyError(WRONG_TYPE)
        return value

    def make(self, key: bytes, kind: type[T]) -> T:
        """Return the value of a key; create it if it is absent."""
        value = self.get(key, kind)
        if value is None:
            value = self.data[key] = kind()
        return value

    def has(self, key: bytes) -> bool:
        """Return whether the key exists."""
        if key in self.expires and self.expires[key] <= self.now:
            self.drop(key)
        return key in self.data

    def drop(self, key: bytes) -> bool:
        """Delete a key; return whether it existed."""
        self.expires.pop(key, None)
        return self.data.pop(key, None) is not None

    def names(self) -> list[bytes]:
        """Return all keys."""
        return [key for key in list(self.data) if self.has(key)]


Command = Callable[[Store, Args], Any]
COMMANDS: dict[bytes, Command] = {}


def command(function: Command) -> Command:
    """Register a command under its function's name."""
    COMMANDS[function.__name__.rstrip("_").upper().replace("__", " ").encode()] = function
    return function


def of(kind: type[Any], function: Callable[..., Any]) -> Command:
    """Return the command of a collection: a function of its value, which is empty if there is no such key, and of the further arguments.

    As in Redis, a key is there while its value holds something.
    """

    def run(store: Store, args: Args) -> Any:
        found = store.get(args[0], kind)
        value = kind() if found is None else found
        answer = function(value, *args[1:])
        if found is None:
            if value:
                store.data[args[0]] = value
        elif not value:
            store.drop(args[0])
        return answer

    return run


def find(args: Args) -> tuple[Command, Args]:
    """Return the command of a request, whose name has one word or two, and its arguments.

    Raises:
        ReplyError: There is none.
    """
    name = args[0].upper()
    function = COMMANDS.get(name)
    if function is not None:
        return function, args[1:]
    function = COMMANDS.get(b" ".join(args[:2]).upper())
    if function is None:
        raise ReplyError(f"ERR unknown command '{name.decode()}'")
    return function, args[2:]


def number(value: float) -> bytes:
    """Return a score as Redis prints it."""
    return b"%d" % value if value == int(value) else repr(value).encode()


# Keys.


@command
def time(store: Store, args: Args) -> Any:
    seconds, micros = divmod(int(store.clock() * 1_000_000), 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


@command
def rename(store: Store, args: Args) -> Any:
    store.data[args[1]] = store.data.pop(args[0])
    return b"OK"


@command
def pexpire(store: Store, args: Args) -> Any:
    if not store.has(args[0]):
        return 0
    store.expires[args[0]] = store.now + int(float(args[1]))
    return 1


@command
def pttl(store: Store, args: Args) -> Any:
    if not store.has(args[0]):
        return -2
    return int(store.expires[args[0]] - store.now) if args[0] in store.expires else -1


@command
def type_(store: Store, args: Args) -> Any:
    names = {bytes: b"string", dict: b"hash", ZSet: b"zset", list: b"list"}
    return names.get(store.data[args[0]].__class__, b"stream") if store.has(args[0]) else b"none"


def _deleted(store: Store, keys: Args) -> int:
    return sum(store.has(key) and store.drop(key) for key in keys)


COMMANDS.update(
    {
        b"PING": lambda *_: b"PONG",
        b"EXISTS": lambda store, args: sum(map(store.has, args)),
        b"DEL": _deleted,
        b"UNLINK": _deleted,
        b"PERSIST": lambda store, args: int(store.has(args[0]) and store.expires.pop(args[0], None) is not None),
        b"SCAN": lambda store, args: [b"0", [*filter(matching(args[1:]), store.names())]],
    }
)

# Strings.


@command
def get(store: Store, args: Args) -> Any:
    return store.get(args[0], bytes)


@command
def mget(store: Store, args: Args) -> Any:
    values = [store.data[key] if store.has(key) else None for key in args]
    return [value if isinstance(value, bytes) else None for value in values]


@command
def set_(store: Store, args: Args) -> Any:
    key, value, *rest = args
    options = [each.upper() for each in rest]
    there = store.has(key)
    if b"NX" in options and there:
        return None
    before = store.data[key] if there else None
    if b"GET" in options and not isinstance(before, bytes | None):
        raise ReplyError(WRONG_TYPE)
    store.data[key] = value
    store.expires.pop(key, None)
    if lasts := option(options, b"PX"):
        store.expires[key] = store.now + int(float(lasts))
    return before if b"GET" in options else b"OK"


# Collections. The left end of a list is the end of the Python list.


def _flat(pairs: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return [*chain.from_iterable(pairs)]


def _removed(table: dict[bytes, Any], *names: bytes) -> int:
    return sum(table.pop(name, None) is not None for name in names)


def _put(table: dict[bytes, Any], names: Sequence[bytes], values: Iterable[Any]) -> int:
    before = len(table)
    table.update(zip(names, values, strict=True))
    return len(table) - before


def _put_absent(table: dict[bytes, bytes], name: bytes, value: bytes) -> int:
    return 0 if name in table else _put(table, [name], [value])


def _add(table: dict[bytes, bytes], name: bytes, added: bytes) -> int:
    try:
        value = int(table.get(name, b"0")) + int(float(added))
    except ValueError:
        raise ReplyError("ERR hash value is not an integer") from None
    if not -(2**63) <= value < 2**63:
        raise ReplyError("ERR increment or decrement would overflow")
    table[name] = b"%d" % value
    return value


def _scanned(table: dict[bytes, bytes], _cursor: bytes, *options: bytes) -> list[Any]:
    matches = matching(options)
    return [b"0", _flat(pair for pair in table.items() if matches(pair[0]))]


def _scored(ranked: Iterable[tuple[bytes, float]], *, scores: bool) -> list[bytes]:
    """Return members, each with its score if that is wanted."""
    return _flat((member, number(score)) for member, score in ranked) if scores else [member for member, _ in ranked]


def _score(members: ZSet, member: bytes) -> bytes | None:
    return number(members[member]) if member in members else None


def _ranks(members: ZSet, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
    return _scored(members.ranked()[int(start) : None if stop == b"-1" else int(stop) + 1], scores=bool(options))


def _end(text: bytes) -> tuple[float, bool]:
    """Return an end of a range of scores, and whether it belongs to it."""
    bare = text.removeprefix(b"(")
    return {b"+inf": math.inf, b"-inf": -math.inf}.get(bare) or float(bare), bare == text


def _between(members: ZSet, *ends: bytes) -> list[tuple[bytes, float]]:
    (low, with_low), (high, with_high) = map(_end, ends)
    return [
        (member, score)
        for member, score in members.ranked()
        if (low <= score if with_low else low < score) and (score <= high if with_high else score < high)
    ]


def _limited(found: list[T], options: Sequence[bytes]) -> list[T]:
    """Return the part of what was found that `LIMIT` names; without it all."""
    first, count = option(options, b"LIMIT"), option(options, b"LIMIT", 2)
    return found if first is None or count is None else found[int(first) :][: int(count)]


def _by_score(members: ZSet, low: bytes, high: bytes, *options: bytes) -> list[bytes]:
    scores = any(each.upper() == b"WITHSCORES" for each in options)
    return _scored(_limited(_between(members, low, high), options), scores=scores)


def _by_name(members: ZSet, low: bytes, high: bytes, *options: bytes) -> list[bytes]:
    found = sorted(
        member
        for member in members
        if (low == b"-" or low[1:] < member or (low[:1] == b"[" and low[1:] == member))
        and (high == b"+" or member < high[1:] or (high[:1] == b"[" and high[1:] == member))
    )
    return _limited(found, options)


@command
def lpush(store: Store, args: Args) -> Any:
    values = store.make(args[0], list)
    values.extend(args[1:])
    store.fed[args[0]] = None
    return len(values)


def _popped(values: list[bytes], count: bytes) -> list[bytes] | None:
    taken, values[: int(count)] = values[: int(count)], []
    return taken or None


_COLLECTIONS: dict[type[Any], dict[bytes, Callable[..., Any]]] = {
    dict: {
        b"HSET": lambda table, *pairs: _put(table, pairs[::2], pairs[1::2]),
        b"HSETNX": _put_absent,
        b"HGET": lambda table, name: table.get(name),
        b"HMGET": lambda table, *names: [table.get(name) for name in names],
        b"HGETALL": lambda table: _flat(table.items()),
        b"HKEYS": list,
        b"HSCAN": _scanned,
        b"HLEN": len,
        b"HSTRLEN": lambda table, name: len(table.get(name, b"")),
        b"HEXISTS": lambda table, name: int(name in table),
        b"HDEL": _removed,
        b"HINCRBY": _add,
    },
    ZSet: {
        b"ZADD": lambda members, *pairs: _put(members, pairs[1::2], map(float, pairs[::2])),
        b"ZREM": _removed,
        b"ZSCORE": _score,
        b"ZCARD": len,
        b"ZRANGE": _ranks,
        b"ZCOUNT": lambda members, *ends: len(_between(members, *ends)),
        b"ZRANGEBYSCORE": _by_score,
        b"ZREMRANGEBYSCORE": lambda members, *ends: _removed(members, *_scored(_between(members, *ends), scores=False)),
        b"ZRANGEBYLEX": _by_name,
        b"ZLEXCOUNT": lambda members, *ends: len(_by_name(members, *ends)),
    },
    list: {
        b"RPOP": _popped,
        b"LLEN": len,
        b"LRANGE": lambda values, *_: values[::-1],
    },
}
COMMANDS.update({name: of(kind, function) for kind, table in _COLLECTIONS.items() for name, function in table.items()})
