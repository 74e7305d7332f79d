"""Records that workers publish of themselves and of their commands: write and read them, for `introspect`, `generate` and typed clients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from command_bus.serialization.announced_schema import plain_data, sound_schema
from command_bus.serialization.envelope_options import VERSION
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.stored_fields import stored_fields

_ESSENTIAL = frozenset({"entity", "key", "delivery", "schema"})
_POLICY: dict[str, Any] = {"attempts": int, "on_poison": str, "attempt_timeout": int | float, "priority": str, "fair_by": str}


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def read_description(name: str, record: bytes, workers: tuple[str, ...]) -> CommandInfo | None:
    """Return the description of a command, without parts that do not fit (see `sound_schema`); None if it cannot be read."""
    try:
        facts: Any = json.loads(record, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, Mapping) or not facts.keys() >= _ESSENTIAL:
        return None
    schema, kind = sound_schema(facts["schema"]), facts.get("kind", "command")
    texts = (facts["entity"], facts["key"])
    if schema is None or not all(isinstance(each, str | None) for each in texts):
        return None
    if not isinstance(kind, str) or not isinstance(facts["delivery"], str):
        return None
    return CommandInfo(
        name=name,
        kind=kind,
        entity=facts["entity"],
        key=facts["key"],
        delivery=facts["delivery"],
        policy=_policy(facts.get("policy")),
        schema=schema,
        reply=sound_schema(facts.get("reply")),
        workers=workers,
        version=_version(facts.get("version", 1)),
        also=_also(facts.get("also", ())),
        across_shards=facts.get("across_shards") is True,
        durable=facts.get("durable") is True,
    )


def _also(found: Any) -> tuple[tuple[str, str], ...]:
    pairs = found if isinstance(found, list) else []
    return tuple((each[0], each[1]) for each in pairs if isinstance(each, list) and [*map(type, each)] == [str, str])


def _version(found: Any) -> int:
    return found if VERSION.check(found) else 1


def _policy(found: Any) -> dict[str, Any]:
    """Return the policy, without values of another type than this version writes."""
    if not isinstance(found, Mapping):
        return {}
    policy: dict[str, Any] = plain_data(found)
    return {name: value for name, value in policy.items() if value is None or isinstance(value, _POLICY.get(name, object))}


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's record of itself.

    Attributes:
        name: Its consumer name, random per start.
        host: The place where it runs.
        pid: Its process.
        started_ms: When it started, by its wall clock.
        seen_ms: Time of its last sign of life, by the server's clock.
        concurrency: How many entities it runs at a time.
        running: How many entities it held at that time.
        commands: The wire names that it handles.
        lease: Length of its leases in seconds.
        longest: Seconds for which its longest attempt had run at that time.
        threads: How many synchronous handlers it runs at a time.
        awaiting_thread: Entities among `running` whose next command waited for one of its threads.
        awaiting_reply: Entities among `running` whose handler waited for a reply of the bus; they do not count against `concurrency`.
        paused: Whether it takes no work for now.
        odd_values: How many stored values its process has passed over because they were odd.
        tallies: What became of its runs, packed (see `Tallies`).
    """

    name: str
    host: str
    pid: int
    started_ms: int
    seen_ms: int
    concurrency: int
    running: int
    commands: tuple[str, ...]
    lease: float = 30.0
    longest: float = 0.0
    threads: int = 0
    awaiting_thread: int = 0
    awaiting_reply: int = 0
    paused: bool = False
    odd_values: int = 0
    tallies: bytes = b""

    @property
    def patience_ms(self) -> int:
        """After how long without a sign of life it is no longer counted as live."""
        return int(max(min(self.lease, _LONGEST_LEASE) * 2, 5.0) * 1000)


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """A command as the workers announce it; the worker that started last decides.

    Attributes:
        name: The wire name.
        kind: `command` or `query`.
        entity: Type of its entity, or None.
        key: The field with the entity's id, or None.
        delivery: `at_least_once` or `at_most_once`.
        policy: Retries, timeout, the action after the last failure, unique key, priority and the field of the tenant; empty if the worker
            was of an earlier version.
        schema: JSON Schema of its fields.
        reply: JSON Schema of its reply; None if JSON Schema cannot describe it.
        workers: The live workers that handle it.
        version: Number of the form that its fields have (see `upcasts`).
        also: Types of further entities in whose lines it stands, each with the field that holds the id.
        across_shards: Whether all these may be of several shards.
        durable: Whether its handler survives its worker.
    """

    name: str
    kind: str
    entity: str | None
    key: str | None
    delivery: str
    policy: Mapping[str, Any]
    schema: Mapping[str, Any]
    reply: Mapping[str, Any] | None
    workers: tuple[str, ...]
    version: int = 1
    also: tuple[tuple[str, str], ...] = ()
    across_shards: bool = False
    durable: bool = False

    def others(self, fields: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """Return types and ids of the further entities of a command with these fields."""
        return tuple((entity, fields.get(key)) for entity, key in self.also)


_LIMITS = PayloadLimits(max_bytes=1024 * 1024)
_LONGEST_LEASE = 1e9


def worker_record(info: WorkerInfo) -> bytes:
    """Pack a worker's record."""
    return pack({slot: getattr(info, slot) for slot in WorkerInfo.__slots__})


def read_worker(record: bytes) -> WorkerInfo | None:
    """Return a worker's record; None if it cannot be read. Fields of a later version are ignored."""
    try:
        return WorkerInfo(**stored_fields(WorkerInfo, unpack(record, _LIMITS)))
    except (Undecodable, TypeError, ValueError) as error:
        pass_over("workers", record, error)
        return None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker, live or lost.

    Attributes:
        name: Random per start.
        host: The place where it runs.
        pid: Its process.
        started_ms: When it started, by its clock.
        silent_for: Seconds since its last sign of life.
        alive: Whether that is less than two of its leases ago (at least 5 s). A lost one is forgotten after an hour, or after
            ten leases if that is longer.
        concurrency: Entities that it runs at a time.
        running: How many it ran then.
        commands: The wire names that it handles.
        lost_for: Seconds that it has not been alive; 0.0 while it is.
        awaiting_thread: Entities among `running` whose next command waited for a thread.
        awaiting_reply: Entities among `running` whose handler waited for a reply; they do not count against `concurrency`.
        paused: Whether it takes no work for now (`Worker.pause`).
        odd_values: How many stored values its process has passed over because they were odd; its log names them.
    """

    name: str
    host: str
    pid: int
    started_ms: int
    silent_for: float
    alive: bool
    concurrency: int
    running: int
    commands: tuple[str, ...]
    lost_for: float = 0.0
    awaiting_thread: int = 0
    awaiting_reply: int = 0
    paused: bool = False
    odd_values: int = 0


def worker_statuses(records: Iterable[tuple[int, bytes]]) -> list[WorkerStatus]:
    """Return the workers, live ones first, from their records, each with the server's time in ms when it was read."""
    found: dict[str, WorkerStatus] = {}
    for now_ms, record in records:
        info = read_worker(record)
        if info is None:
            continue
        silent = max(now_ms - info.seen_ms, 0)
        known = found.get(info.name)
        if known is None or silent / 1000 < known.silent_for:
            found[info.name] = WorkerStatus(
                info.name, info.host, info.pid, info.started_ms, silent / 1000, silent <= info.patience_ms, info.concurrency, info.running,
                info.commands, max(silent - info.patience_ms, 0) / 1000, info.awaiting_thread, info.awaiting_reply, info.paused, info.odd_values,
            )  # fmt: skip
    return sorted(found.values(), key=lambda worker: (not worker.alive, worker.host, worker.started_ms, worker.name))
