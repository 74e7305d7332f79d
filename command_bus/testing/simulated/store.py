"""A store with the Redis commands that the bus uses: strings, hashes, sorted sets, lists. Streams are in `streams`.

Written for speed and for control over time. The conformance suite runs on it as on every server, and so checks it. Commands are
functions of the store and their arguments as bytes, found by name in `COMMANDS`. Errors are raised as `ReplyError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar


def matching(options: Sequence[bytes]) -> Callable[[bytes], object]:
    """Return what says whether a name matches the pattern of a scan: that of `MATCH`, else any."""
    names = [option.upper() for option in options[::2]]
    pattern = options[2 * names.index(b"MATCH") + 1] if b"MATCH" in names else b"*"
    parts = re.findall(rb"\\.|\[(?:\\.|[^\]])*\]|.", pattern, re.DOTALL)
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


COMMANDS: dict[bytes, Callable[[Store, Args], Any]] = {}


def command(function: Callable[[Store, Args], Any]) -> Callable[[Store, Args], Any]:
    """Register a command under its function's name."""
    COMMANDS[function.__name__.rstrip("_").upper().replace("__", " ").encode()] = function
    return function


def number(value: float) -> bytes:
    """Return a score as Redis prints it."""
    return b"%d" % value if value == int(value) else repr(value).encode()


# Keys.


@command
def ping(store: Store, args: Args) -> Any:
    return b"PONG"


@command
def time(store: Store, args: Args) -> Any:
    micros = int(store.clock() * 1_000_000)
    return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]


@command
def exists(store: Store, args: Args) -> Any:
    return sum(store.has(key) for key in args)


@command
def del_(store: Store, args: Args) -> Any:
    return sum(store.has(key) and store.drop(key) for key in args)


COMMANDS[b"UNLINK"] = del_


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
def persist(store: Store, args: Args) -> Any:
    return int(store.has(args[0]) and store.expires.pop(args[0], None) is not None)


@command
def pttl(store: Store, args: Args) -> Any:
    if not store.has(args[0]):
        return -2
    return int(store.expires[args[0]] - store.now) if args[0] in store.expires else -1


@command
def scan(store: Store, args: Args) -> Any:
    return [b"0", [*filter(matching(args[1:]), store.names())]]


@command
def type_(store: Store, args: Args) -> Any:
    names = {bytes: b"string", dict: b"hash", ZSet: b"zset", list: b"list"}
    return names.get(store.data[args[0]].__class__, b"stream") if store.has(args[0]) else b"none"


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
    options = [option.upper() for option in rest]
    there = store.has(key)
    if b"NX" in options and there:
        return None
    before = store.data[key] if there else None
    if b"GET" in options and not isinstance(before, bytes | None):
        raise ReplyError(WRONG_TYPE)
    store.data[key] = value
    store.expires.pop(key, None)
    if b"PX" in options:
        store.expires[key] = store.now + int(float(options[options.index(b"PX") + 1]))
    return before if b"GET" in options else b"OK"


# Hashes.


@command
def hset(store: Store, args: Args) -> Any:
    table = store.make(args[0], dict)
    before = len(table)
    table.update(zip(args[1::2], args[2::2], strict=True))
    return len(table) - before


@command
def hsetnx(store: Store, args: Args) -> Any:
    table = store.make(args[0], dict)
    if args[1] in table:
        return 0
    table[args[1]] = args[2]
    return 1


@command
def hget(store: Store, args: Args) -> Any:
    return (store.get(args[0], dict) or {}).get(args[1])


@command
def hmget(store: Store, args: Args) -> Any:
    table = store.get(args[0], dict) or {}
    return [table.get(field) for field in args[1:]]


@command
def hgetall(store: Store, args: Args) -> Any:
    return [part for pair in (store.get(args[0], dict) or {}).items() for part in pair]


@command
def hkeys(store: Store, args: Args) -> Any:
    return list(store.get(args[0], dict) or ())


@command
def hscan(store: Store, args: Args) -> Any:
    matches = matching(args[2:])
    return [b"0", [part for name, value in (store.get(args[0], dict) or {}).items() if matches(name) for part in (name, value)]]


@command
def hlen(store: Store, args: Args) -> Any:
    return len(store.get(args[0], dict) or ())


@command
def hstrlen(store: Store, args: Args) -> Any:
    return len((store.get(args[0], dict) or {}).get(args[1], b""))


@command
def hexists(store: Store, args: Args) -> Any:
    return int(args[1] in (store.get(args[0], dict) or ()))


@command
def hdel(store: Store, args: Args) -> Any:
    table = store.get(args[0], dict)
    if not table:
        return 0
    removed = sum(table.pop(field, None) is not None for field in args[1:])
    if not table:
        store.drop(args[0])
    return removed


@command
def hincrby(store: Store, args: Args) -> Any:
    table = store.make(args[0], dict)
    try:
        value = int(table.get(args[1], b"0")) + int(float(args[2]))
    except ValueError:
        raise ReplyError("ERR hash value is not an integer") from None
    if not -(2**63) <= value < 2**63:
        raise ReplyError("ERR increment or decrement would overflow")
    table[args[1]] = b"%d" % value
    return value


# Sorted sets.


@command
def zadd(store: Store, args: Args) -> Any:
    members = store.make(args[0], ZSet)
    before = len(members)
    for score, member in zip(args[1::2], args[2::2], strict=True):
        members[member] = float(score)
    return len(members) - before


@command
def zrem(store: Store, args: Args) -> Any:
    members = store.get(args[0], ZSet)
    if not members:
        return 0
    removed = sum(members.pop(member, None) is not None for member in args[1:])
    if not members:
        store.drop(args[0])
    return removed


@command
def zscore(store: Store, args: Args) -> Any:
    score = (store.get(args[0], ZSet) or ZSet()).get(args[1])
    return None if score is None else number(score)


@command
def zcard(store: Store, args: Args) -> Any:
    return len(store.get(args[0], ZSet) or ())


@command
def zrange(store: Store, args: Args) -> Any:
    members = store.get(args[0], ZSet)
    if not members:
        return []
    start, stop = int(args[1]), int(args[2])
    ranked = members.ranked()[start : None if stop == -1 else stop + 1]
    if len(args) > 3:
        return [part for member, score in ranked for part in (member, number(score))]
    return [member for member, _ in ranked]


# Lists; the left end is the end of the Python list.


@command
def lpush(store: Store, args: Args) -> Any:
    values = store.make(args[0], list)
    values.extend(args[1:])
    store.fed[args[0]] = None
    return len(values)


def popped(store: Store, key: bytes, count: int) -> list[bytes]:
    """Pop values from the right end."""
    values = store.get(key, list)
    if not values:
        return []
    taken, values[:count] = values[:count], []
    if not values:
        store.drop(key)
    return taken


@command
def rpop(store: Store, args: Args) -> Any:
    return popped(store, args[0], int(args[1])) or None


@command
def llen(store: Store, args: Args) -> Any:
    return len(store.get(args[0], list) or ())


@command
def lrange(store: Store, args: Args) -> Any:
    return list(reversed(store.get(args[0], list) or []))
