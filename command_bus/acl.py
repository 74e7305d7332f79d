"""Redis users with the least rights: what each role of a namespace sends, and nothing else.

    for line in acl_lines("worker", "shop", password="…"):
        client.execute_command(line)

Three facts shape the lines. What a script does is checked against its caller, so a role needs every command that its scripts use, on
the keys that they use. Whoever may load scripts may load any: a script reaches what its caller reaches, no more. And an ACL speaks of
keys, not of the entries in them: who may append to a mailbox may append anything, in the form of a command that no `dispatch` would
have sent; signatures are against that (see `BusSettings.signing_keys`).

From Redis 7 on, rights differ by key (*selectors*): a producer may write a mailbox and not delete from it. Redis 6.2 has one list of
commands and one of keys for each user: there a role may do with any of its keys what it may do with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from command_bus.errors import InvalidSettings

__all__ = ["Role", "acl_lines"]

Role = Literal["producer", "worker", "operator", "pipeline"]
"""Who dispatches and calls; who runs commands; who looks, pauses, replays and cancels; a producer that also loads dispatches from
Spark and reads what became of them."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_NO_PASSWORD: Final = re.compile(r"[\s\x00-\x1f\x7f]")

_EVERYONE: Final = "ping hello auth select info time client|setname client|id wait cluster|slots"
"""Commands without keys."""

_UNKNOWN_TO_62: Final = frozenset({"+blmpop"})
"""One unknown word makes the whole line fail; without it replies are popped one at a time."""

_LOADING: Final = "script|load"

# By role: which commands on which keys. `%R~` and `%W~` would be finer still, but scripts read where they write.
_GRANTS: Final[Mapping[Role, tuple[tuple[str, str], ...]]] = {
    "producer": (
        ("hlen", "meta"),  # how many entity types there are
        ("hget hmget hsetnx hscan", "meta active"),
        ("xgroup|create xinfo|groups xadd xack xrange", "ready"),
        ("hget hmget hset hexists hincrby exists", "active stats paused later"),
        ("exists hgetall", "later paused watched"),  # one request may name all three
        ("xadd", "events"),
        ("zadd zrange hset", "due delayed"),
        ("xadd xlen", "m:*"),
        ("set get exists mget", "k:*"),
        ("get set", "p:*"),
        ("blmpop brpop rpop del", "in:*"),
        ("hget", "commands"),
        ("hgetall", "workers"),  # a call that timed out says why
        ("zscore", "due"),
    ),
    "pipeline": (
        ("hget hmget hsetnx hscan hgetall", "meta active"),
        ("xgroup|create xinfo|groups xadd xack xrange", "ready"),
        ("hget hmget hset hexists hincrby hscan exists", "active stats paused parked later commands"),
        ("exists hgetall", "later paused watched"),  # one request may name all three
        ("xadd", "events"),
        ("hscan hmget xlen", "delayed dead ready"),
        ("xadd xlen xrange", "m:*"),
        ("hget hmget hgetall hset hsetnx hexists hincrby hlen hdel hscan pexpire pttl unlink", "b:*"),
        ("xrange xrevrange xlen xinfo|stream pttl pexpire", "b:*"),
        ("xrange xrevrange", "dead"),
        ("zadd zrange zremrangebyscore", "dispatches"),
    ),
    "worker": (
        ("hlen", "meta"),
        ("client|unblock script|exists", ""),  # to end its own blocked read when it stops; to see that scripts are lost
        ("hget hmget hsetnx", "meta"),
        (
            "xgroup|create xgroup|delconsumer xinfo|groups xinfo|consumers xreadgroup xpending xclaim xack xadd xdel xlen xrange",
            "ready",
        ),
        ("hget hmget hset hdel hexists hincrby hscan exists", "active stats paused parked delayed later"),
        ("exists hgetall", "later paused watched"),  # one request may name all three
        ("xadd", "events"),
        ("get set", "fence"),
        ("zadd zrange zrem zscore", "due"),
        ("xadd xlen xrange xread xdel del", "m:*"),
        ("get set exists mget", "k:*"),
        ("get set", "p:*"),
        ("lpush pexpire", "in:*"),
        ("xadd", "dead"),
        ("hset hdel", "workers commands"),
        ("hgetall hset pexpire", "interrupts"),
        ("hget hmget hincrby hexists exists", "b:*"),
        ("xadd xlen xtrim pexpire", "b:*"),
    ),
    "operator": (
        ("hlen hdel", "meta"),  # to take an entity type back
        ("hget hmget hgetall hsetnx", "meta commands"),
        ("xgroup|create xinfo|groups xpending xack xadd xdel xlen xrange", "ready"),
        ("hget hmget hgetall hlen hset hdel hexists hincrby hscan exists", "active stats paused parked delayed later"),
        ("hgetall", "workers"),
        ("hget hset hdel pexpire", "interrupts"),
        ("exists hgetall hset hdel", "watched"),
        ("xadd xread xlen xrange xrevrange pexpire persist", "events"),
        ("zcard zadd zrange zrem zscore", "due"),
        ("xadd xlen xrange xdel del", "m:*"),
        ("xlen xrange xdel", "dead"),
        ("get set exists", "k:*"),
        ("lpush pexpire", "in:*"),
        ("hget hmget hincrby hexists exists", "b:*"),
        ("xadd xlen xtrim pexpire", "b:*"),
    ),
}


def acl_lines(
    role: Role,
    namespace: str,
    *,
    user: str | None = None,
    password: str | None = None,
    selectors: bool = True,
    load_scripts: bool = True,
) -> list[str]:
    """The `ACL SETUSER` command that makes a user of this role, as one line per user; an application has one for each role.

    A user that exists is reset: run it again to change a password. It holds for every server alike, replicas and nodes of a cluster
    too, where ACLs are not replicated.

    Args:
        role: What the user is for.
        namespace: Whose keys it may touch.
        user: Its name; by default `command_bus-<namespace>-<role>`.
        password: In the clear; without one the user stays disabled until it is given one (`ACL SETUSER <user> on >…`).
        selectors: Whether rights differ by key; Redis 6.2 cannot do that.
        load_scripts: Whether it may load scripts. A producer or pipeline without can run only what others have loaded: every
            worker loads all scripts of its version, when it starts and within about a second after the server lost them.

    Raises:
        InvalidSettings: A name or password cannot stand in such a line.
    """
    if role not in get_args(Role):
        raise InvalidSettings(f"role: one of {', '.join(get_args(Role))}, not {role!r}")
    if not _NAME.fullmatch(namespace):
        raise InvalidSettings("namespace: 1 to 100 of letters, digits, '_', '.' and '-'")
    name = user if user is not None else f"command_bus-{namespace}-{role}"
    for what, text in (("user", name), ("password", password or "-")):
        if not text or _NO_PASSWORD.search(text):
            raise InvalidSettings(f"{what}: not empty, without spaces and control characters")
    grants = _GRANTS["producer"] + _GRANTS["pipeline"] if role == "pipeline" else _GRANTS[role]
    head = ["ACL", "SETUSER", name, "reset", *((f">{password}", "on") if password else ("off",)), "resetchannels", "-@all"]
    head += _allowed(f"{_EVERYONE} {_LOADING}" if load_scripts or role in ("worker", "operator") else _EVERYONE)
    # A request is checked as a whole, against one selector: a script names the keys of its whole role.
    every_key = " ".join(dict.fromkeys(key for _, keys in grants for key in keys.split()))
    grants = (("evalsha", every_key), *grants)
    if selectors:
        rules = [f"({' '.join([*_keys(namespace, keys), *_allowed(commands)])})" for commands, keys in grants]
    else:
        rules = [
            *dict.fromkeys(key for _, keys in grants for key in _keys(namespace, keys)),
            *dict.fromkeys(command for commands, _ in grants for command in _allowed(commands) if command not in _UNKNOWN_TO_62),
        ]
    return [" ".join([*head, *rules])]


def _keys(namespace: str, names: str) -> Iterable[str]:
    """The patterns of keys, in every shard. A namespace has no characters that a pattern would read otherwise."""
    return [f"~{{{namespace}:*}}:{name}" for name in names.split()]


def _allowed(commands: str) -> list[str]:
    return [f"+{command}" for command in dict.fromkeys(commands.split())]
