"""Redis users with the least rights: each role of a namespace may send what it needs, and nothing else.

    for line in acl_lines("worker", "shop", password="…"):
        client.execute_command(line)

Three facts shape the lines. A server checks what a script does against the script's caller, so a role needs every command that its
scripts use, on the keys that they use. A user that may load scripts may load any script. It reaches no key that its caller does not reach,
but a script that writes and never ends stops the server for everyone. So workers load scripts, and producers do not. And an ACL covers
commands and keys, not arguments and entries: a user that may append to a mailbox may append anything, and trim it while doing so.
`docs/security.md` has the list.

From Redis 7 on, rights differ by key (*selectors*): a producer may write a mailbox and not delete from it. Redis 6.2 has one list of
commands and one of keys for each user: there a role may do with any of its keys what it may do with one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, get_args

from command_bus.errors import CommandBusError, InvalidSettings, UnsuitableServer
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_not_permitted
from command_bus.transport.redis.keys import KEYS, KeySpace, ShardKeys, suffix

Role = Literal["producer", "worker", "operator", "gateway", "pipeline", "relay", "owner"]
"""A producer dispatches and calls; a worker runs commands; an operator reads, pauses, replays and cancels; a gateway is a producer
and an operator; a pipeline is a producer that also loads dispatches from Spark and reads their outcomes; a relay is a producer that also takes
commands from the outbox of a database; an owner is an operator who may
delete the namespace."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_NO_PASSWORD: Final = re.compile(r"[\s\x00-\x1f\x7f]")

_EVERYONE: Final = "ping hello auth select info time client|setname client|id wait cluster|slots"
"""Commands without keys."""

_UNKNOWN_TO_62: Final = frozenset({"+blmpop"})
"""One unknown word makes the whole line fail; without it replies are popped one at a time."""

_LOADING: Final = "script|load"

# By role: which commands on which keys, each of them used. Keys are named as in `ShardKeys`; `*` follows a prefix. `%R~` and `%W~`
# would add nothing: the commands are named one by one.
_SENDING: Final = (
    ("hmget hsetnx hlen", "meta"),
    ("xgroup|create xinfo|groups xadd xlen xpending", "ready"),  # how many are not delivered: the line fills it up
    ("hget hmget hset exists hlen", "active"),
    ("hset hlen", "lone"),
    ("hget hincrby", "stats"),
    ("exists hmget", "paused"),
    ("exists hget hset hincrby", "delayed_counts"),  # and the number of each command
    ("exists", "delayed_counts paused watched flows"),  # one request may name all four
    ("exists hget hmget hset", "flows"),
    ("zadd zrem zscore zrangebyscore del", "turns"),
    ("zadd zrem zscore zcard zrangebylex", "line"),
    ("hgetall", "watched"),
    ("xadd", "arrivals"),
    ("zadd zcount zscore", "due"),
    ("hset hexists", "delayed"),
    ("hget hset", "unique"),
    ("xadd xlen exists", "mailboxes*"),
    ("set get mget", "marks*"),
    ("get set", "last_batches*"),
    ("blmpop brpop rpop del", "inboxes*"),
    ("hget", "commands"),
    ("hgetall", "workers"),  # a call that timed out says why
)
_KEEPING: Final = (  # ends of commands with a history
    ("xadd xdel xlen xrange pttl pexpire", "history"),
    ("hget hset hdel pttl pexpire", "history_ids"),
)
_REPLACING: Final = (  # the one that waits is taken out of line, and its caller told
    ("xdel", "mailboxes*"),
    ("lpush pexpire", "inboxes*"),
    ("hdel", "delayed delayed_counts"),
    ("hlen", "delayed_counts"),
    ("zrem", "due"),
    *_KEEPING,  # the end of that one
    ("hmget xadd pexpire", "bulk*"),  # its dispatch keeps its outcome
)
_FIGURES: Final = (  # `stats`: an operator's, a worker's `/metrics`, and what Spark compares
    ("hgetall", "stats workers paused"),
    ("hlen", "active parked schedules suspended states"),
    ("xinfo|groups xpending xlen xrange", "ready"),
    ("xlen", "dead history"),
    ("zcard zrange", "due"),
    ("hmget", "flows"),
    ("zrange", "turns"),
    ("zlexcount zrangebylex", "line"),
    ("zlexcount", "places"),
)
_GRANTS: Final[dict[Role, tuple[tuple[str, str], ...]]] = {
    "producer": _SENDING,
    "relay": (*_SENDING, ("hget hkeys hdel hset", "outboxes*")),
    "pipeline": (
        *_SENDING,
        *_FIGURES,
        ("hgetall", "meta"),
        ("hscan", "active paused"),
        ("hget", "lone"),
        ("hmget", "parked"),
        ("hmget hscan", "delayed_counts"),
        ("hscan", "delayed"),
        ("xrange", "mailboxes*"),
        ("xrange xrevrange", "dead"),
        ("hmget hgetall hset hsetnx hexists hincrby hlen hdel hscan pexpire pttl unlink", "bulk*"),
        ("xadd xrange xrevrange xinfo|stream", "bulk*"),
        ("zadd zrange zremrangebyscore", "dispatches"),
    ),
    "worker": (
        ("exists", "paused flows"),
        ("hscan hdel", "flows"),  # forgets what was served long ago
        ("xrevrange", "ready"),
        *_SENDING,  # handlers send, too
        *_FIGURES,
        ("hget hgetall hset hdel", "notes:subscriptions"),  # it puts what it declares, and its handlers publish
        ("client|unblock script|exists", ""),  # to end its own blocked read when it stops; to see that scripts are lost
        ("xgroup|delconsumer xinfo|consumers xreadgroup xpending xclaim xack xdel xtrim xlen xrange", "ready"),
        ("hdel hexists hscan hgetall hkeys", "active"),
        ("hget hmget hdel", "lone"),
        ("hget hset hexists", "parked"),
        ("hdel hscan hlen", "unique"),
        ("hget hdel hlen hkeys hstrlen", "delayed"),
        ("hdel hlen hgetall", "delayed_counts"),
        ("get set", "fence"),
        ("zrem", "due"),
        ("exists hget hmget hgetall hset hdel", "rules"),
        ("exists", "watched paused rules limits"),  # one request may name several
        ("hget hmget hset hdel hscan", "limits"),
        ("zadd zrem zrangebylex zremrangebyscore", "places"),
        ("zremrangebyscore", "line"),
        ("xrange xread xtrim xdel del", "mailboxes*"),
        ("lpush pexpire", "inboxes*"),
        ("xadd", "dead events"),
        ("hset hdel", "workers"),
        ("hset", "commands"),
        ("hgetall hset pexpire", "interrupts"),
        ("hget hmget hset hdel hscan hlen", "schedules"),
        ("hget hset hdel", "fired"),
        ("xadd xdel xlen xrange del", "outs*"),
        ("hget hmget hgetall hlen hset hsetnx hdel hexists hincrby hscan exists del persist pexpire", "sides*"),
        ("hget hset hdel hscan", "suspended"),
        ("hget hmget hset hdel hscan hlen", "states"),
        ("hget hgetall hset hdel hincrby", "relays*"),
        ("hsetnx hset", "stats"),  # the incarnation that schedules are compared with; wrong counters
        ("hget hdel", "paused"),  # pauses that end by themselves
        ("hmget", "parked delayed_counts"),  # predecessors of firings
        ("hmget", "bulk*"),
        ("xadd xtrim pexpire", "bulk*"),
        *_KEEPING,
    ),
    "operator": (
        *_FIGURES,
        ("hmget hgetall hsetnx hlen hdel", "meta"),
        ("hget hgetall", "commands"),
        ("xgroup|create xinfo|groups xpending xack xadd xdel xrange", "ready"),
        ("hget hmget hset hdel hexists hscan exists hgetall hkeys", "active"),
        ("hget hset hdel hlen", "lone"),
        ("hincrby hget hset hsetnx", "stats"),
        ("hget hmget hset hdel hscan", "paused"),
        ("hget hmget hdel hexists hscan", "parked"),
        ("hget hset hdel hexists hscan hlen hkeys hstrlen", "delayed"),
        ("hget hmget hset hdel hexists hincrby hlen hscan hgetall", "delayed_counts"),
        ("xadd xlen", "outs*"),  # commands that go to another shard count, too; outcomes of what it takes out go there
        ("hget hset hsetnx hdel hscan", "unique"),
        ("hget hset hdel pexpire", "interrupts"),
        ("exists hget hmget hgetall hset hdel", "flows"),
        ("zadd zrem zscore zrange zrangebyscore del", "turns"),
        ("zadd zrem zscore zcard zrangebylex zlexcount", "line"),
        ("hget hincrby", "stats"),  # who changes a schedule ends a firing that is under way
        ("exists hgetall hset hdel del", "watched"),
        ("xadd", "events"),
        ("xread xrange xrevrange pexpire persist", "events arrivals"),
        ("zadd zcount zrem zscore", "due"),
        ("hget hmget hset hdel hscan hlen", "schedules"),
        ("hget hset hdel", "fired"),
        ("hget hmget hgetall hset hdel", "rules"),
        ("hget hscan", "limits"),
        ("zrangebylex", "places"),
        ("xadd xlen xrange xdel del", "mailboxes*"),
        ("xrange xdel", "dead"),
        ("get set", "marks*"),
        ("hget hmget hset hsetnx hdel hexists hincrby hscan exists del pexpire", "sides*"),  # signals, wishes, progress, letters
        ("hget hmget hdel hlen hscan", "suspended"),
        ("hget hmget hset hdel hscan", "states"),
        ("lpush pexpire", "inboxes*"),
        ("hmget", "bulk*"),
        ("xadd pexpire", "bulk*"),
        *_KEEPING,
        ("xrevrange", "history dead"),
        ("xadd xrevrange", "audit trends"),
        ("xrange xinfo|stream pttl", "history events arrivals audit dead"),  # what is exported
        ("hget hgetall hset hdel", "notes:subscriptions"),
    ),
}

_READING: Final = (("hmget hscan", "states"),)
_PUBLISHING: Final = (("hgetall", "notes:subscriptions"),)
_PRUNING: Final = (("xrange xdel", "dead"),)
_TELLING: Final = (("incrby pexpire", "hints*"),)
_HEARING: Final = (("get decr", "hints*"),)
_WEBHOOKS: Final = (("hget hgetall hset hdel", "notes*"), ("xread xrange xrevrange", "events arrivals"))
_TELL: Final = ("producer", "gateway", "pipeline", "worker")
_HEAR: Final = ("worker", "operator", "gateway", "owner")
_LOADS: Final = ("worker", "operator", "gateway")


def _every_key() -> str:
    """Return the names of all keys, as in `_GRANTS`."""
    return " ".join(name + ("*" if suffix(name).endswith(":") else "") for name in KEYS)


_GRANTS["gateway"] = (*_SENDING, *_GRANTS["operator"])
_GRANTS["owner"] = (
    *_GRANTS["operator"],
    ("scan", ""),  # it names the keys of other namespaces, too
    ("unlink", _every_key()),
)


def acl_lines(
    role: Role,
    namespace: str,
    *,
    user: str | None = None,
    password: str | None = None,
    selectors: bool = True,
    load_scripts: bool = False,
    prunes: bool = False,
    replaces: bool = False,
    notifies: bool = False,
    webhooks: bool = False,
    reads_states: bool = False,
    publishes: bool = False,
) -> list[str]:
    """Return the `ACL SETUSER` command that makes a user of this role, as one line per user; an application has one user for each role.

    A user that exists is reset: run it again to change a password. Run it on every server, also on replicas and nodes of a cluster: ACLs
    are not replicated.

    Args:
        role: What the user is for.
        namespace: What the bus is called whose keys it may use.
        user: Name of the user; by default `command_bus-<namespace>-<role>`.
        password: In clear text; without one the user stays disabled until it is given one (`ACL SETUSER <user> on >…`).
        selectors: Whether rights differ by key; Redis 6.2 does not support that.
        load_scripts: Whether a producer or pipeline may load scripts, and so stop the server by one that never ends. Without this right
            it can run only scripts that are loaded: every worker loads all scripts of its version, when it starts and within about a
            second after the server lost them. Until then a request is repeated, and fails with `TransportUnavailable` after
            `dispatch_timeout`. Workers, operators and gateways always have the right.
        prunes: Whether a worker may delete dead letters, as `dead_letter_ttl` and `max_dead_letters` ask for.
        replaces: Whether a producer, gateway or pipeline may take commands out of line, as `Unique(wins="latest")` does, and answer their callers.
            Without this right such a dispatch fails with `MayNotReplace`. Workers always have the right, operators never dispatch.
        notifies: Whether the user may tell, on the namespace's channels, as a bus with a `RedisNotifier` does (producers, pipelines,
            workers), and listen there and consume hints (workers, operators, owners).
        webhooks: Whether a worker may deliver webhooks, and an operator or owner put them. Their records have the secrets.
        reads_states: Whether a producer or pipeline may read the states of entities. The others always may.
        publishes: Whether a producer, relay or pipeline may publish events: it may read which subscriptions there are. The others always may.

    Raises:
        InvalidSettings: A name or password cannot be written in such a line.
    """
    if role not in get_args(Role):
        raise InvalidSettings(f"role: one of {', '.join(get_args(Role))}, not {role!r}")
    if not _NAME.fullmatch(namespace):
        raise InvalidSettings("namespace: 1 to 100 of letters, digits, '_', '.' and '-'")
    name = user if user is not None else f"command_bus-{namespace}-{role}"
    for what, text in (("user", name), ("password", password or "-")):
        if not text or _NO_PASSWORD.search(text):
            raise InvalidSettings(f"{what}: not empty, without spaces and control characters")
    if replaces and role == "operator":
        raise InvalidSettings("replaces: of a producer, gateway or pipeline; an operator does not dispatch")
    pruning = _PRUNING if prunes and role == "worker" else ()
    replacing = _REPLACING if replaces and role != "worker" else ()
    grants = (
        *_GRANTS[role],
        *pruning,
        *replacing,
        *(_notices(role) if notifies else ()),
        *(_WEBHOOKS if webhooks and role in _HEAR else ()),
        *(_READING if reads_states and role in ("producer", "pipeline") else ()),
        *(_PUBLISHING if publishes and role in ("producer", "relay", "pipeline") else ()),
    )
    head = ["ACL", "SETUSER", name, "reset", *((f">{password}", "on") if password else ("off",)), "resetchannels", "-@all"]
    if notifies:
        head += [*_channels(namespace), *_allowed(_channel_commands(role))]
    head += _allowed(f"{_EVERYONE} {_LOADING}" if load_scripts or role in _LOADS else _EVERYONE)
    # A request is checked as a whole, against one selector: a script names the keys of its whole role.
    every_key = " ".join(dict.fromkeys(key for _, keys in grants for key in keys.split()))
    grants = (("evalsha", every_key), *grants)
    if selectors:
        rules = [f"({' '.join([*_patterns(namespace, keys), *_allowed(commands)])})" for commands, keys in grants]
    else:
        rules = [
            *dict.fromkeys(key for _, keys in grants for key in _patterns(namespace, keys)),
            *dict.fromkeys(command for commands, _ in grants for command in _allowed(commands) if command not in _UNKNOWN_TO_62),
        ]
    return [" ".join([*head, *rules])]


_NEEDED: Final[dict[Role, tuple[tuple[str, ...], ...]]] = {
    "operator": (("HDEL", "active", ""), ("XDEL", "dead", "0-1"), ("HDEL", "paused", "")),
    "gateway": (("HDEL", "active", ""), ("XDEL", "dead", "0-1"), ("HDEL", "unique", "")),
}
"""Requests that change nothing, and that only a user with these rights may send."""


async def check_rights(connections: Connections, keys: KeySpace, role: Role, what: str) -> None:
    """Check that the user of these connections has the rights of a role, as far as requests that change nothing can tell.

    Args:
        connections: Opened by the user whose rights are looked at.
        keys: All shards; one is asked.
        role: `operator` or `gateway`.
        what: The program that needs them.

    Raises:
        UnsuitableServer: It lacks one.
        CommandBusError: The server cannot be asked.
    """
    shard = keys.shards[0]
    requests = [(command, getattr(shard, key), *rest) for command, key, *rest in _NEEDED[role]]
    if role == "gateway":
        requests.append(("SET", f"{shard.last_batches}~rights", "", "XX"))
    for request in requests:
        try:
            await connections.ask(lambda client, *words: client.execute_command(*words), *request)
        except CommandBusError as error:
            if not is_not_permitted(error):
                raise
            raise lacking(role, what, request[0]) from error


def lacking(role: Role, what: str, command: str) -> UnsuitableServer:
    """Return the error of a user who lacks a right of a role.

    Args:
        role: What the user would have to be.
        what: The program that needs it.
        command: The request that was refused.
    """
    return UnsuitableServer(
        f"{what} needs a user with the role {role}: this one may not send {command}. acl_lines({role!r}, …) of "
        "command_bus.transport.redis.acl has its rights, docs/security.md how to give them"
    )


def _notices(role: Role) -> tuple[tuple[str, str], ...]:
    """Return the rights to hints: who sends adds to them, who may wake others takes from them."""
    return (*(_TELLING if role in _TELL else ()), *(_HEARING if role in _HEAR else ()))


def _channels(namespace: str) -> Iterable[str]:
    """Return the patterns of channels: who subscribes to a pattern may only if it is one of these, letter by letter."""
    return [f"&command_bus:{namespace}:{kind}:*" for kind in ("work", "settled", "lease_lost", "published")]


def _channel_commands(role: Role) -> str:
    """Return the commands of channels. A channel is no key: the namespace's are named beside them."""
    return " ".join(
        [*(["publish"] if role in _TELL else []), *(["subscribe psubscribe unsubscribe punsubscribe"] if role in _HEAR else [])]
    )


def _patterns(namespace: str, names: str) -> Iterable[str]:
    """Return the patterns of keys, in every shard. A namespace has no characters that mean something in a pattern."""
    keys = ShardKeys(namespace, "*")
    parts = [name.removesuffix("*").partition(":") for name in names.split()]
    ends = ["*" if name.endswith("*") else "" for name in names.split()]
    return [f"~{getattr(keys, name)}{one}{end}" for (name, _, one), end in zip(parts, ends, strict=True)]


def _allowed(commands: str) -> list[str]:
    return [f"+{command}" for command in dict.fromkeys(commands.split())]
