"""Checks of `doctor`: pure functions from what was read to findings, each with advice."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from command_bus.clock import format_duration
from command_bus.spelling import some_of

if TYPE_CHECKING:
    from command_bus.admin.info import EntityInfo, Stats
    from command_bus.serialization.announcements import WorkerStatus
    from command_bus.settings import UnknownVariable
    from command_bus.transport.records import HoldInfo
    from command_bus.transport.redis.admin.examination import Examination

Grade = Literal["ok", "warning", "bad"]
CommandLine = Callable[..., str]
"""Returns a command line of this program, ready to paste, for a command's words."""
PROGRAM = "command-bus"
_GIB, _MIB = 1024**3, 1024**2
_SKEW = 1.0  # seconds; people and `expires` compare stored times between machines
_FULL, _ALMOST = 0.95, 0.8
_LONG = 60.0  # seconds that a handler has run
_RECENT = 600.0  # seconds since a worker was lost
_SMALL_NODE = 1024  # bytes
_MANY_ENTITIES = 10_000  # they reserve 35 MB more than they need


def command_line(*words: str) -> str:
    """Return a command line for the target that the environment names."""
    return shlex.join([PROGRAM, *words])


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        about: The subject.
        grade: Its severity.
        found: The state that was found.
        advice: What to change; empty if nothing needs to change.
    """

    about: str
    grade: Grade
    found: str
    advice: str = ""


def worst_grade(findings: list[Finding]) -> Grade:
    """Return the worst grade of the findings."""
    grades = {finding.grade for finding in findings}
    return "bad" if "bad" in grades else "warning" if "warning" in grades else "ok"


def check_server(seen: Examination) -> list[Finding]:
    """Check the server: version, role, persistence, memory, scripts, clock, rights."""
    return [
        Finding("connection", "ok", f"{seen.label} answers in {seen.round_trip * 1000:.1f} ms"),
        *_version(seen.info),
        *_role(seen),
        *_persistence(seen),
        *_eviction(seen),
        *_memory(seen),
        *_connections(seen),
        _scripts(seen),
        _clock(seen),
        *_rights(seen),
    ]


def check_namespace(seen: Examination, namespace: str, shards: int | None) -> list[Finding]:
    """Check what the namespace recorded against this release and the settings."""
    from command_bus.transport.redis.namespace import format_advice

    if "shards" not in seen.meta:
        text = "nothing is recorded under this name"
        return [Finding("namespace", "warning", f"{namespace}: {text}", "start a worker or sender, or check --namespace")]
    recorded = seen.meta["shards"]
    advice = format_advice(seen.meta)
    text = f"{namespace}: format {seen.meta.get('protocol', '')}, {recorded} shard{'' if recorded == '1' else 's'}"
    findings = [Finding("namespace", "bad" if advice else "ok", text, advice or "")]
    if shards is not None and str(shards) != recorded:
        change = (
            f"leave COMMAND_BUS_SHARDS out, or set {recorded}; to change it: drain, take schedules and states along, obliterate"
        )
        text = f"all clients follow the recorded {recorded}; the {shards} of this environment would count only when a namespace is made"
        findings.append(Finding("shards", "warning", text, change))
    policies = sorted(
        f"{name.removeprefix('mailbox:')} {value}" for name, value in seen.meta.items() if name.startswith("mailbox:")
    )
    if policies:
        findings.append(Finding("mailboxes", "ok", some_of(policies)))
    return findings


def check_entities(oldest: Sequence[EntityInfo], unhandled: Collection[str], line: CommandLine = command_line) -> list[Finding]:
    """Check the entities that have waited longest for some that do not go on although they are not held.

    Args:
        oldest: They.
        unhandled: The names of those whose command no live worker handles.
        line: Writes a command line.
    """
    unknown = [each.name for each in oldest if each.name in unhandled]
    slow = [each for each in oldest if (each.running_for or 0.0) >= _LONG]
    long = [f"{each.name} for {each.running_for:,.0f} s" for each in slow]
    findings: list[Finding] = []
    if unknown:
        findings.append(Finding("unknown commands", "warning", f"hold {_few(unknown)}", "start a worker that knows them"))
    if long:
        advice = f"{line('entity', slow[0].name)}; do their handlers have a timeout?"
        findings.append(Finding("long running", "warning", _few(long), advice))
    return findings


def _resume(hold: HoldInfo, line: CommandLine) -> str:
    if hold.subscription:
        return line("subscriptions", "resume", hold.subscription)
    if hold.entity_type is not None:
        return line("resume", hold.entity_type)
    return line("resume", "--all") if hold.what == "everything" else line("resume", "~")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def check_work(
    stats: Stats, workers: list[WorkerStatus], holds: list[HoldInfo], unhandled: list[str], line: CommandLine = command_line
) -> list[Finding]:
    """Check the workers, holds, parked entities and dead letters."""
    live = [worker for worker in workers if worker.alive]
    lost = [worker for worker in workers if not worker.alive]
    findings: list[Finding] = []
    if live or not stats.depth:
        findings.append(Finding("workers", "ok", f"{len(live)} live"))
    else:
        findings.append(
            Finding("workers", "bad", f"none is live, and {stats.depth:,} commands wait", "start `command-bus worker`")
        )
    if lost:
        findings.append(_lost(sorted(lost, key=lambda worker: worker.lost_for)))
    if unhandled and live:
        findings.append(
            Finding(
                "handlers",
                "warning",
                f"no live worker handles {', '.join(unhandled)}",
                "start a worker that does, or forget them",
            )
        )
    if odd := {worker.name: worker.odd_values for worker in live if worker.odd_values}:
        findings.append(_odd(f"{some_of(sorted(odd))} passed over {sum(odd.values()):,} since the start", "their logs name them"))
    for hold in holds:
        whole = "" if hold.everywhere else ", not on every shard"
        findings.append(
            Finding(hold.mode, "warning", f"{hold.what}{whole} {hold.reason}".rstrip(), f"{_resume(hold, line)}, when it is time")
        )
    if stats.parked:
        findings.append(
            Finding(
                "parked",
                "warning",
                f"{stats.parked:,} {'entity' if stats.parked == 1 else 'entities'}",
                line("entities", "--state", "parked"),
            )
        )
    if stats.dead_letters:
        findings.append(Finding("dead letters", "warning", f"{stats.dead_letters:,}", line("dlq", "list")))
    return findings


def check_values(counts: Mapping[str, int]) -> list[Finding]:
    """Check what this process has passed over while it looked."""
    if not counts:
        return []
    found = ", ".join(f"{count:,} in {key}" for key, count in sorted(counts.items()))
    return [
        _odd(
            f"{found} cannot be what they should be",
            "see who may write to the server, and delete what is odd: wire-format.md names the keys",
        )
    ]


def _odd(found: str, advice: str) -> Finding:
    return Finding("odd values", "warning", found, advice)


def check_mailboxes(seen: Examination, entities: int) -> list[Finding]:
    """Check how many bytes the server reserves for a stream's first node: an entity with several commands has one."""
    size = seen.config.get("stream-node-max-bytes", "")
    if not size.isdecimal():
        return []
    found = f"{int(size):,} bytes for a stream's first node"
    if 0 < int(size) <= _SMALL_NODE:
        return [Finding("mailbox size", "ok", found)]
    advice = "CONFIG SET stream-node-max-bytes 512: an entity with two commands takes 1.1 kB instead of 4.7"
    if entities < _MANY_ENTITIES:
        return [Finding("mailbox size", "ok", found, advice)]
    return [Finding("mailbox size", "warning", f"{found}, and {entities:,} entities have one", advice)]


def check_environment(found: Sequence[UnknownVariable]) -> list[Finding]:
    """Check for misspelt variables: a warning if the intended setting is clear; otherwise another program may use the prefix."""
    return [
        Finding("environment", "warning" if each.meant else "ok", str(each), f"write {each.meant}" if each.meant else "")
        for each in found
    ]


def _lost(workers: list[WorkerStatus]) -> Finding:
    """Report lost workers, the last one first. It is a warning only at first: otherwise one kill would fail `--strict` for an hour."""
    names = _few([f"{each.name} ({each.host}, process {each.pid}) {format_duration(each.lost_for)} ago" for each in workers])
    if workers[0].lost_for >= _RECENT:
        return Finding("lost workers", "ok", names)
    return Finding("lost workers", "warning", names, "see why they ended: their work is taken over when leases end")


def _version(info: dict[str, Any]) -> Iterator[Finding]:
    text = str(info.get("redis_version", ""))
    if not text:
        yield Finding(
            "version",
            "warning",
            "the server does not report it (INFO is not permitted)",
            "make sure that it is Redis 6.2 or newer, or Valkey",
        )
        return
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {text}"
    if numbers < (6, 2):
        yield Finding("version", "bad", name, "Redis 6.2 or newer, or Valkey")
    elif numbers < (7, 0):
        yield Finding(
            "version", "warning", f"{name}: rights cannot differ by key, replies are popped one at a time", "Redis 7 or newer"
        )
    else:
        yield Finding("version", "ok", name)


def _role(seen: Examination) -> Iterator[Finding]:
    info = seen.info
    mode = info.get("redis_mode") or info.get("server_mode")
    if mode == "sentinel":
        yield Finding("role", "bad", "a Sentinel, not a server", "redis+sentinel://host:port/NAME")
    elif mode == "cluster" and not seen.as_cluster:
        yield Finding("role", "bad", "a node of a Redis Cluster", "write redis+cluster:// instead of redis://")
    elif info.get("role") == "slave":
        yield Finding("role", "bad", "a read-only replica", "connect to its primary, or through redis+sentinel://")
    elif info:
        yield Finding(
            "role",
            "ok",
            f"primary with {info.get('connected_slaves', 0)} replicas{', of a cluster' if mode == 'cluster' else ''}",
        )


def _persistence(seen: Examination) -> Iterator[Finding]:
    info = seen.info
    if not info:
        return
    if "/command_bus-" in str(info.get("config_file", "")):
        yield Finding("persistence", "ok", "the development server: it keeps what is not settled")
    elif not info.get("aof_enabled"):
        yield Finding(
            "persistence", "bad", "no append-only file: accepted commands are lost with the server", "CONFIG SET appendonly yes"
        )
    else:
        fsync = seen.config.get("appendfsync", "?")
        advice = {"no": "CONFIG SET appendfsync everysec", "everysec": ""}.get(fsync, "")
        text = {"everysec": ": a power loss takes the last second", "no": ": a power loss takes up to 30 seconds"}.get(fsync, "")
        yield Finding("persistence", "warning" if fsync == "no" else "ok", f"append-only file, appendfsync {fsync}{text}", advice)
    for what, name in (
        ("last save", "rdb_last_bgsave_status"),
        ("last rewrite", "aof_last_bgrewrite_status"),
        ("last write", "aof_last_write_status"),
    ):
        if info.get(name, "ok") != "ok":
            yield Finding(what, "bad", f"{name} is {info[name]}", "look into the server's log: its disk may be full")


def _eviction(seen: Examination) -> Iterator[Finding]:
    policy = seen.info.get("maxmemory_policy") or seen.config.get("maxmemory-policy")
    if policy is None:
        return
    advice = "CONFIG SET maxmemory-policy noeviction"
    if policy.startswith("allkeys"):
        yield Finding("eviction", "bad", f"{policy}: deletes queued commands when memory is short", advice)
    elif policy.startswith("volatile"):
        yield Finding(
            "eviction", "warning", f"{policy}: forgets command ids when memory is short, so that a repeat may run twice", advice
        )
    else:
        yield Finding("eviction", "ok", policy)


def _size(count: float) -> str:
    return f"{count / _GIB:.2f} GiB" if count >= _GIB else f"{count / _MIB:.1f} MiB"


def _memory(seen: Examination) -> Iterator[Finding]:
    used, limit = seen.info.get("used_memory"), seen.info.get("maxmemory")
    if used is None:
        return
    if not limit:
        total = seen.info.get("total_system_memory") or 0
        text = f"{_size(used)} of {_size(total)}, without a limit"
        yield Finding(
            "memory",
            "warning",
            text,
            "CONFIG SET maxmemory: at its limit the server refuses new commands, without one it is killed",
        )
        return
    share = used / limit
    text = f"{_size(used)} of {_size(limit)} ({share:.0%})"
    if share >= _FULL:
        yield Finding(
            "memory", "bad", f"{text}: new commands are, or will soon be, refused", "more memory, more workers, or purge"
        )
    elif share >= _ALMOST:
        yield Finding("memory", "warning", text, "more memory, or more workers")
    else:
        yield Finding("memory", "ok", text)


def _connections(seen: Examination) -> Iterator[Finding]:
    used, limit = seen.info.get("connected_clients"), seen.config.get("maxclients", "")
    if used is not None and limit.isdecimal() and int(limit):
        share = used / int(limit)
        grade: Grade = "bad" if share >= _FULL else "warning" if share >= _ALMOST else "ok"
        advice = "" if grade == "ok" else "CONFIG SET maxclients, or fewer processes: at the limit new connections are refused"
        yield Finding("connections", grade, f"{used:,} of {int(limit):,}", advice)
    if (timeout := seen.config.get("timeout", "0")) != "0":
        found = f"those that are idle for {timeout} s are closed, and made again when they are needed"
        yield Finding("idle connections", "ok", found, "CONFIG SET timeout 0")


def _scripts(seen: Examination) -> Finding:
    if seen.scripts is None:
        return Finding("scripts", "ok", "can be loaded and run")
    return Finding(
        "scripts", "bad", seen.scripts, "allow SCRIPT LOAD and EVALSHA on the namespace's keys (command_bus.transport.redis.acl)"
    )


def _clock(seen: Examination) -> Finding:
    text = f"{round(seen.skew, 2) + 0.0:+.2f} s from this machine's (±{seen.skew_within:.2f})"
    if abs(seen.skew) - seen.skew_within > _SKEW:
        return Finding(
            "clock", "warning", text, "run NTP on both: times that people compare, and `since` filters, are wrong by that"
        )
    return Finding("clock", "ok", text)


def _rights(seen: Examination) -> Iterator[Finding]:
    if seen.user == "default":
        yield Finding("user", "warning", "default, who may do everything", "make users of least rights: docs/security.md")
    elif seen.user is not None:
        yield Finding("user", "ok", seen.user)
    if seen.denied:
        yield Finding("not looked at", "ok", f"this user may not: {', '.join(seen.denied)}")
