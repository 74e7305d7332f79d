"""Mutations of stored values, and what may suffer from each."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgpack

from tests.tables.live_namespace import NAMESPACE

__all__ = ["ATTACKS", "SOON", "TOKEN", "Mutation", "Snapshot", "mutate", "suffers", "together"]

TOKEN = re.compile(r"t\d\dx")
LIMITED = tuple(f"t5{number}x" for number in range(6))
MAY_SUFFER: dict[str, tuple[str, ...]] = {
    # Keys whose values concern entities that they do not name.
    "limits": (*LIMITED, "now-4"),
    "places": (*LIMITED, "now-4"),
    "rules": (*LIMITED, "now-4"),
    "due": ("t17x",),
    "out:": ("t17x",),
    "relayed:": ("t17x",),
    "k:": ("t14x",),
    "stats": ("t70x", "t71x"),  # a counter may refuse what is new, and so firings
    "x:": ("t14x",),
}
REFUSES = ("meta", "stats")
"""Keys by which all is refused, with a typed error, where they are not what they may be."""
OF_ONE = ("m:", "x:", "k:", "b:", "in:", "p:", "out:", "relayed:")
"""Keys of one entity or command, of which also the type may be another."""

ODD_TEXTS = [
    b"", b"\xff\xfe", b"nan", b"inf", b"-inf", b"1e308", b"0x10", b"-1", b"0", b"9" * 40, b"9223372036854775807", b"-9223372036854775808", b"|",
    b"||||||||||", b"\n", b"\x00", b"*", b"%", b"1.5", b"1e3", b" 7", b"no", b"\xc1", b"\x91" * 1500 + b"\xc0", b"[" * 1500, b"{}", b"null",
    b"s:", b"p:", b"o:", b"o:99", b"l:", b"d:", b"d:x", b"r:", b"r:\xff",
]  # fmt: skip
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 2**62, 2**63 - 1, 1.5, float("inf"), float("nan"), "", "x", b"", b"\xff", [], {}, [1], {"a": 1}, [[[[]]]], "\ud800", -(2**62),
]  # fmt: skip
ODD_SCORES: list[float] = [float("inf"), float("-inf"), 0.0, -1.0, 1.5, 1e300, -1e300, 2.0**53, 2.0**63]


class Mutation(NamedTuple):
    """A change of one stored value."""

    key: str
    what: str
    touched: bytes


class Snapshot:
    """The keys of a namespace, which can be put back."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.keys: list[bytes] = sorted(self._client.keys("*"))
        self._dumped = {key: self._client.dump(key) for key in self.keys}
        self.types: dict[bytes, str] = {key: self._client.type(key).decode() for key in self.keys}

    def restore(self) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.flushall()
        for key, value in self._dumped.items():
            pipeline.restore(key, 0, value)
        pipeline.execute()


def name_of(key: bytes) -> str:
    return key.decode().partition("}:")[2]


def suffers(mutation: Mutation) -> set[str]:
    """Return the tokens of what may suffer from a mutation; of what was only added nobody."""
    if not mutation.touched:
        return set()
    found = set(TOKEN.findall(mutation.key)) | set(TOKEN.findall(mutation.touched.decode("latin-1")))
    for start, tokens in MAY_SUFFER.items():
        if name_of(mutation.key.encode()).startswith(start):
            found |= set(tokens)
    return found


def _flip(chance: random.Random, data: bytes) -> bytes:
    if not data:
        return b"\x80"
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data))] if data else b"x"


def _odd(chance: random.Random, _: bytes) -> bytes:
    return chance.choice(ODD_TEXTS)


def _part(chance: random.Random, data: bytes) -> bytes:
    """Put something odd in the place of one part of a text in parts."""
    between = chance.choice([sign for sign in (b"|", b":", b"\n", b"/", b",") if sign in data] or [b"|"])
    parts = data.split(between)
    parts[chance.randrange(len(parts))] = chance.choice(ODD_TEXTS)
    return between.join(parts)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for name, item in items:
        found += _places(item, (*path, name))
    return found


def _replaced(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    value[path[0]] = _replaced(value[path[0]], path[1:], odd)
    return value


def _typed(chance: random.Random, data: bytes) -> bytes:
    """Put a value of another type into MessagePack or JSON, else something odd."""
    odd = chance.choice(ODD_VALUES)
    head = b"\x00" if data[:1] == b"\x00" else b""
    try:
        value = json.loads(data)
        return json.dumps(_replaced(value, chance.choice(_places(value)), odd if not isinstance(odd, bytes) else "b")).encode()
    except ValueError:
        pass
    for skipped in (0, 8, 9, len(data.partition(b"\n")[0]) + 1):
        try:
            value = msgpack.unpackb(data[skipped:], raw=False, strict_map_key=False, unicode_errors="surrogatepass")
            if isinstance(value, list | dict):
                path = chance.choice(_places(value))
                packed: bytes = msgpack.packb(_replaced(value, path, odd), unicode_errors="surrogatepass") or b""
                return data[:skipped] + packed
        except Exception:
            continue
    return head + _part(chance, data)


CHANGES: list[Callable[[random.Random, bytes], bytes]] = [_flip, _flip, _cut, _odd, _part, _typed, _typed, _typed]


def choose(snapshot: Snapshot, number: int) -> tuple[random.Random, bytes]:
    """Return the key that the mutation of a number changes, and what decides how."""
    chance = random.Random(number)
    groups: dict[str, list[bytes]] = {}
    for key in snapshot.keys:  # keys of one kind count as one
        groups.setdefault(re.sub(r"^(m|x|k|hint|p):.*", r"\1:", name_of(key)), []).append(key)
    return chance, chance.choice(groups[chance.choice(sorted(groups))])


def together(snapshot: Snapshot, numbers: Iterable[int], most: int) -> Iterator[tuple[int, ...]]:
    """Divide mutations into those that one namespace can have: of different keys, and alone by which all is refused."""
    group: dict[bytes, int] = {}
    for number in numbers:
        _, key = choose(snapshot, number)
        is_alone = name_of(key) in REFUSES
        if group and (is_alone or key in group or len(group) == most):
            yield tuple(group.values())
            group.clear()
        if is_alone:
            yield (number,)
        else:
            group[key] = number
    if group:
        yield tuple(group.values())


def mutate(client: Any, snapshot: Snapshot, number: int) -> Mutation:
    """Change one stored value; the number says which, and how."""
    chance, key = choose(snapshot, number)
    kind, name = snapshot.types[key], name_of(key)
    if name.startswith(OF_ONE) and chance.random() < 0.1:
        client.delete(key)
        other = chance.choice(["string", "list", "zset", "hash"])
        if other == "string":
            client.set(key, "odd")
        elif other == "list":
            client.rpush(key, "odd")
        elif other == "zset":
            client.zadd(key, {"odd": 1})
        else:
            client.hset(key, "odd", "odd")
        return Mutation(key.decode(), f"is a {other}", key)
    change = chance.choice(CHANGES)
    return _CHANGED[kind](client, key, chance, change)


def _string(client: Any, key: bytes, chance: random.Random, change: Any) -> Mutation:
    before = client.get(key)
    after = change(chance, before)
    client.set(key, after)
    return Mutation(key.decode(), f"{change.__name__}: {before!r} -> {after!r}", before + after)


def _list(client: Any, key: bytes, chance: random.Random, change: Any) -> Mutation:
    before = client.lindex(key, 0)
    after = change(chance, before)
    client.lset(key, 0, after)
    return Mutation(key.decode(), f"{change.__name__}: {before!r} -> {after!r}", before + after)


def _hash(client: Any, key: bytes, chance: random.Random, change: Any) -> Mutation:
    items = sorted(client.hgetall(key).items())
    field, value = chance.choice(items)
    how = chance.random()
    if how < 0.75:
        after = change(chance, value)
        client.hset(key, field, after)
        return Mutation(key.decode(), f"{change.__name__} {field!r}: {value!r} -> {after!r}", field + value + after)
    other = change(chance, field)
    if name_of(key) == "paused":
        other = other.replace(b"*", b"~")  # a pause of all of a type is no odd value
    if how < 0.9:
        client.hdel(key, field)
    client.hset(key, other, value)
    return Mutation(key.decode(), f"{change.__name__} field {field!r} -> {other!r} (value {value!r})", field + other + value)


def _zset(client: Any, key: bytes, chance: random.Random, change: Any) -> Mutation:
    member, score = chance.choice(sorted(client.zrange(key, 0, -1, withscores=True)))
    if chance.random() < 0.4:
        odd = chance.choice(ODD_SCORES)
        client.zadd(key, {member: odd})
        return Mutation(key.decode(), f"score {member!r} {score} -> {odd}", member)
    other = change(chance, member)
    if chance.random() < 0.5:
        client.zrem(key, member)
    client.zadd(key, {other: chance.choice([score, score, *ODD_SCORES])})
    return Mutation(key.decode(), f"{change.__name__} member {member!r} -> {other!r}", member + other)


def _stream(client: Any, key: bytes, chance: random.Random, change: Any) -> Mutation:
    entries = client.xrange(key)
    at, fields = chance.choice(entries) if entries else (b"1-1", {b"e": b"x"})
    fields = dict(fields)
    field = chance.choice(sorted(fields))
    value = fields[field]
    if chance.random() < 0.8:
        fields[field] = change(chance, value)
    else:
        del fields[field]
        fields[change(chance, field)] = value
    touched = b"".join((at, value, *(part for pair in fields.items() for part in pair)))
    if name_of(key) == "ready" or not entries:  # it has a group: what is changed stands at its end
        client.xadd(key, fields)
    else:
        client.delete(key)
        for entry, others in entries:
            client.xadd(key, fields if entry == at else others, id=entry)
    return Mutation(key.decode(), f"{change.__name__} {at!r} {field!r}: {value!r} -> {fields!r}", touched)


_CHANGED: dict[str, Callable[[Any, bytes, random.Random, Any], Mutation]] = {
    "string": _string,
    "list": _list,
    "hash": _hash,
    "zset": _zset,
    "stream": _stream,
}


def _zadd(name: str, members: dict[Any, float]) -> Callable[[Any], bytes]:
    return lambda client: client.zadd(_first(name), members) and b""


def _hset(name: str, field: Any, value: Any) -> Callable[[Any], bytes]:
    return lambda client: client.hset(_first(name), field, value) and b""


def _xadd(name: str, fields: dict[Any, Any], at: str) -> Callable[[Any], bytes]:
    return lambda client: client.xadd(_first(name), fields, id=at) and b""


def _another(name: str) -> Callable[[Any], bytes]:
    def act(client: Any) -> bytes:
        client.delete(_first(name))
        client.zadd(_first(name), {"odd": 1})
        return b""

    return act


def _worker(**odd: Any) -> bytes:
    facts = {
        "name": "odd",
        "host": "h",
        "pid": 1,
        "started_ms": 1,
        "seen_ms": 1,
        "concurrency": 1,
        "running": 1,
        "commands": ["Put"],
    }
    return bytes(msgpack.packb({**facts, **odd}))


def _first(name: str) -> str:
    return f"{{{NAMESPACE}:0}}:{name}"


ATTACKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    # What somebody who may write one value did to all others.
    **{
        f"due has {member!r} at {score}": ("due", _zadd("due", {member: score}))
        for member, score in (
            (b"r:\xff", 5.0), (b"d:\xff", 5.0), (b"s:\xff", 5.0), (b"p:\xff", 5.0), (b"o:\xff", 5.0), (b"l:\xff", 5.0), (b"\xff", 5.0), ("", 5.0),
            ("r:", 5.0), ("r:nobody", float("-inf")), ("r:nobody", -1e300), ("d:", 5.0), ("d:no", 5.0), ("d:x:y", float("-inf")), ("s:", 5.0),
            ("s:nobody", float("-inf")), ("p:", 5.0), ("p:*", 1.5), ("p:box:*", float("-inf")), ("o:", 5.0), ("o:99", 5.0), ("o:-1", 5.0),
            ("o:1", float("-inf")), ("l:", 5.0), ("l:nothing", 5.0), ("l:name:nothing:x", float("-inf")), ("l:name:partner:\n", 5.0),
            ("l:name:partner:umbra", 1e300), ("l:name:partner:acme", float("inf")),
        )
    },
    "due has 400 odd members": ("due", _zadd("due", {f"d:{number}\0x": float(number) for number in range(400)})),
    **{
        f"flows has {field} {value!r}": ("flows", _hset("flows", field, value))
        for field in ("most", "c0", "v1", "s2", "w:acme", "counted", "swept", "n:1acme")
        for value in ("inf", "-inf", "nan", "no", "-5", "0", "1.5", b"\xff")
    },
    **{
        f"the incarnation is {value!r}": ("stats", _hset("stats", "incarnation", value))
        for value in (b"", b"\xb9b2", b"a b", b"x" * 200, b"other")
    },
    **{
        f"a record is {record!r}": ("active", _hset("active", "box:t32x", record))
        for record in (b"q|||1-0\xfc0|0|1/1-2", b"o|1-0||\xb1-0|0|0|", b"o|", b"U|||x|x|x|x", b"h|\xff|x|\xff-1|1|1|w", b"|||||||", b"")
    },
    "a mailbox that has a grant is no stream": ("m:store:t52x", _another("m:store:t52x")),
    **{
        f"rules has {text!r}": ("rules", _hset("rules", "name:partner", text))
        for text in ("100.00|{}|1|10000|1.0|0", "x|1|1|1|1|0", "||||", "nan|inf|-1|1|1|0", "-1|0|0|1|1|0", "1e308|1e308|1e308|1|1|0", b"\xff|\xff")
    },
    **{
        f"turns has {flow!r} at {score}": ("turns", _zadd("turns", {flow: score}))
        for flow, score in (
            ("1", float("inf")), ("1", float("-inf")), ("1", -5.0), ("1", 1e300), ("0", 2.0**62), (b"\xff", 0.0), ("", 1.0),
            ("x", 2.0), ("7", 2.0**51),
        )
    },
    **{
        f"line has {place!r} at {score}": ("line", _zadd("line", {place: score}))
        for place, score in (("1", 0.0), ("1/0/box:nobody", 0.0), ("", 0.0), (b"\xff", 0.0), ("1/0/box:nobody", 5.0),
                             ("x", -1.0), ("1//", float("inf")))
    },
    **{
        f"places has {place!r} at {score}": ("places", _zadd("places", {place: score}))
        for place, score in (("q", 0.0), ("q\n\n\n", 0.0), ("g\n\xff", 0.0), ("s\nx\ny", 0.0), ("g\nbox:nobody", 7.0), ("x", -1.0))
    },
    **{
        f"schedules has {value!r}": ("schedules", _hset("schedules", "odd", value))
        for value in (
            b"", b"\xc1", b"\x90", msgpack.packb([1]), msgpack.packb([1, "odd", b"", ["e", 0], [], []]),
            msgpack.packb([1, "odd", b"", ["e", float("inf")], ["one", None, "queue", 0.0, None, None, None, False], [0] * 22]),
            msgpack.packb([1, "odd", b"", ["c", "* * * * *", "No/Where"], ["one", None, "queue", 0.0, None, None, None, False], [0] * 22]),
            msgpack.packb([1, "t70x", b"", ["e", 1000], ["one", None, "queue", 0.0, None, None, None, False], [0] * 22]),
        )
    },
    **{
        f"webhooks has {value!r}": (book, _hset(book, "odd", value))
        for book in ("note:webhooks", "note:webhook-pumps")
        for value in ("", "{}", "[]", "[" * 5000, '{"kinds":5,"entity_types":1,"secrets":2,"retries":3}', b"\0\xff", '{"cursor":1e999}')
    },
    **{
        f"workers has {odd}": ("workers", _hset("workers", "odd", _worker(**odd)))
        for odd in (
            {"lease": 1e308}, {"lease": float("nan")}, {"seen_ms": 2**62}, {"seen_ms": -(2**62)}, {"running": "x"}, {"commands": [1]},
            {"concurrency": 0}, {"running": 2**62},
        )
    },
    **{
        f"{name} has an entry at {at}": (name, _xadd(name, fields, at))
        for name, fields in (
            ("audit", {"v": msgpack.packb(["ada"] * 7)}), ("trends", {"v": msgpack.packb({"at_ms": 2**62})}), ("history", {"i": "x", "a": "9" * 30}),
            ("events", {"v": "a|b|c|d|e", "m": "x", "c": "x"}), ("dead", {"r": "x", "e": "x", "m": "x"}), ("dead", {"x": "x"}),
        )
        for at in (f"{2**62}-1", f"{2**64 - 1}-1")
    },
    **{
        f"{name} has a field that is no UTF-8": (name, _hset(name, b"\xff\xfe", b"\xff|\xfe"))
        for name in (
            "active", "lone", "delayed", "later", "paused", "parked", "interrupts", "unique", "watched", "rules", "limits", "flows", "suspended",
            "commands",
            "workers", "schedules", "fired", "history:ids", "note:webhooks", "note:webhook-pumps", "b:load", "b:load:ids", "b:load:bad",
        )
    },
}  # fmt: skip

SOON = (
    "due has b'r:\\xff' at 5.0", "due has 'd:x:y' at -inf", "due has 'p:*' at 1.5", "due has 400 odd members", "flows has most '0'",
    "turns has '0' at 4.611686018427388e+18",
    "line has 'x' at -1.0", "places has 'g\\nbox:nobody' at 7.0", "schedules has b''", "webhooks has '[]'",
)  # fmt: skip
"""Those that `make test` tries."""
