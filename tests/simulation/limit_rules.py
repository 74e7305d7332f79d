"""Limits in a run: some seeds have a rate, places, or both. What must hold on the server after each script, and at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from command_bus.messages.limits import Limit, Rate, rule_text
from command_bus.testing.simulated.store import Store, ZSet
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.mailbox_record import MailboxRecord, parse_record

__all__ = ["LimitWatch", "limits_of"]

Limits = Mapping[str, tuple[Limit, ...]]
"""Limits by entity type."""

_SLACK = 1.0
"""Tokens: a start that was asked for takes its token when leave is given, and follows by the time of a request, which may be slow here."""
_CALLED = re.compile(rb"\.\d+x$")
"""Entities that a handler calls (see `workload.py`): they run under its place."""


def limits_of(seed: int) -> Limits:
    """Return the limits of a seed: of the type `item`, perhaps of each of its entities, and of durable commands."""
    chosen = {"item": _limits_of(Random(f"limits {seed}")), "journey": _limits_of(Random(f"limits of journeys {seed}"))}
    return {name: limits for name, limits in chosen.items() if limits}


def _limits_of(random: Random) -> tuple[Limit, ...]:
    if random.random() >= 0.5:
        return ()
    rate = Rate(random.choice((4, 10, 40)), burst=random.choice((1, 2, 5))) if random.random() < 0.7 else None
    places = random.choice((1, 2)) if rate is None or random.random() < 0.6 else None
    limits = [Limit(rate=rate, concurrency=places, scope="type")]
    if random.random() < 0.4:
        limits.append(Limit(rate=Rate(random.choice((3, 8)), burst=2), scope="entity"))
    return tuple(limits)


@dataclass(slots=True)
class _Bucket:
    """Starts that a rate allows: what is left of it, and when."""

    limit: Rate
    tokens: float
    at: float

    def give_back(self) -> None:
        self.tokens += 1

    def take(self, now: float) -> bool:
        self.tokens = min(self.limit.tokens, self.tokens + (now - self.at) * 1e6 / self.limit.tick)
        self.at = now
        self.tokens -= 1
        return self.tokens >= -_SLACK


@dataclass(slots=True)
class LimitWatch:
    """The starts that a run's limits have let through.

    Attributes:
        limits: Of each type that has any.
        keys: The shards.
        called: The fences of the starts that have called a handler. Another's tokens are given back.
    """

    limits: Limits
    keys: KeySpace
    called: set[int] = field(default_factory=set)
    _open: dict[bytes, tuple[str, list[_Bucket]]] = field(default_factory=dict)
    _seen: set[bytes] = field(default_factory=set)
    _before: dict[bytes, MailboxRecord] = field(default_factory=dict)
    _suspended: set[bytes] = field(default_factory=set)
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _offset: float | None = None

    def put(self, store: Store) -> None:
        """Switch the limits on without a request, so that the rest of the seed does not change."""
        fields: dict[bytes, bytes] = {}
        for entity_type, limits in self.limits.items():
            for limit in limits:
                text = rule_text(limit.rate, limit.concurrency, 1).encode()
                fields |= {f"{prefix}{limit.scope}:{entity_type}".encode(): text for prefix in ("", "d:")}
        for shard in self.keys.shards:
            store.data[shard.rules.encode()] = dict(fields)

    def look(self, store: Store, now: float) -> Iterator[tuple[str, str]]:
        """Yield what is wrong after a script: too many that run, or a start too many. `now` is true time."""
        offset = store.clock() - now
        if self._offset is not None and offset > self._offset + 0.001:  # the clock jumped ahead, and all buckets are full
            self._buckets.clear()
        self._offset = offset
        running: Counter[str] = Counter()
        self._give_back(
            {name: value for shard in self.keys.shards for name, value in (store.get(shard.active.encode(), dict) or {}).items()}
        )
        for shard in self.keys.shards:
            for name, value in (store.get(shard.active.encode(), dict) or {}).items():
                entity_type = name.partition(b":")[0].decode()
                if entity_type not in self.limits:
                    continue
                record = parse_record(value)
                if record.is_held:
                    running[entity_type] += _CALLED.search(name) is None
                    yield from self._started(entity_type, name, record, now)
                elif record.state in ("u", "U"):
                    self._suspended.add(name + record.message.encode())
                self._before[name] = record
        for entity_type, limits in self.limits.items():
            for limit in limits:
                if limit.concurrency is not None and running[entity_type] > limit.concurrency:
                    yield "", f"{running[entity_type]} of {entity_type} run at a time, the limit is {limit.concurrency}"

    def _started(self, entity_type: str, name: bytes, record: MailboxRecord, now: float) -> Iterator[tuple[str, str]]:
        if (fence := name + record.fence.encode()) in self._seen:
            return
        self._seen.add(fence)
        if self._goes_on(name, record):
            return
        taken: list[_Bucket] = []
        for limit in self.limits[entity_type]:
            if limit.rate is None:
                continue
            scope = entity_type if limit.scope == "type" else name.decode()
            taken.append(bucket := self._buckets.setdefault(scope, _Bucket(limit.rate, limit.rate.tokens, now)))
            if not bucket.take(now):
                yield name.decode(), f"a start more than {limit.rate} allows ({scope})"
        self._open[name] = record.fence, taken

    def _give_back(self, active: Mapping[bytes, bytes]) -> None:
        """Give the tokens of starts back that are over and have called no handler."""
        for name, (fence, taken) in list(self._open.items()):
            if name not in active or parse_record(active[name]).fence != fence:
                del self._open[name]
                for bucket in taken if int(fence) not in self.called else ():
                    bucket.give_back()

    def _goes_on(self, name: bytes, record: MailboxRecord) -> bool:
        """Return whether it was suspended since its last start: here, or what it waited for was there in the script that suspended it."""
        before, suspended = self._before.get(name), name + record.message.encode()
        if suspended in self._suspended:
            self._suspended.remove(suspended)
            return True
        return before is not None and before.is_held and before.message == record.message

    def left(self, store: Store) -> str:
        """Return a letter for each pass that is still out, each place that is taken, and each entity that waits, or did so until it was removed."""
        first = self.keys.shards[0]
        passes = [name for name in store.get(first.limits.encode(), dict) or () if name[:2] in (b"p\n", b"w\n")]
        places = [member for member in store.get(first.places.encode(), ZSet) or () if member[:2] == b"s\n"]
        return "g" * (len(passes) + len(places))
