"""Limits in a run: some seeds have a rate, places, or both. What must hold on the server after each script, and at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from command_bus.messages.limits import Limit, Rate, rule_text
from command_bus.testing.simulated.store import Store, ZSet
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.mailbox_record import parse_record

__all__ = ["LimitWatch", "limits_of"]

_SLACK = 1.0
"""Tokens: a start that was asked for takes its token when leave is given, and follows by the time of a request, which may be slow here."""
_CALLED = re.compile(rb"\.\d+x$")
"""Entities that a handler calls (see `workload.py`): they run under its place."""


def limits_of(seed: int) -> tuple[Limit, ...]:
    """Return the limits of a seed: of the type `item`, and perhaps of each of its entities."""
    random = Random(f"limits {seed}")
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

    def take(self, now: float) -> bool:
        self.tokens = min(self.limit.tokens, self.tokens + (now - self.at) * 1e6 / self.limit.tick)
        self.at = now
        self.tokens -= 1
        return self.tokens >= -_SLACK


@dataclass(slots=True)
class LimitWatch:
    """What a run's limits have let start.

    Attributes:
        limits: Of the type `item`.
        keys: The shards.
    """

    limits: tuple[Limit, ...]
    keys: KeySpace
    _seen: set[bytes] = field(default_factory=set)
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _offset: float | None = None

    def put(self, store: Store) -> None:
        """Switch the limits on without a request, so that the rest of the seed does not change."""
        fields: dict[bytes, bytes] = {}
        for limit in self.limits:
            text = rule_text(limit.rate, limit.concurrency, 1).encode()
            fields |= {f"{prefix}{limit.scope}:item".encode(): text for prefix in ("", "d:")}
        for shard in self.keys.shards:
            store.data[shard.rules.encode()] = dict(fields)

    def look(self, store: Store, now: float) -> Iterator[tuple[str, str]]:
        """Yield what is wrong after a script: too many that run, or a start too many. `now` is true time."""
        offset = store.clock() - now
        if self._offset is not None and offset > self._offset + 0.001:  # the clock jumped ahead, and all buckets are full
            self._buckets.clear()
        self._offset = offset
        running = 0
        for shard in self.keys.shards:
            for name, value in (store.get(shard.active.encode(), dict) or {}).items():
                record = parse_record(value)
                if not record.is_held or not name.startswith(b"item"):  # the limits are those of one type
                    continue
                running += _CALLED.search(name) is None
                if (fence := name + record.fence.encode()) not in self._seen:
                    self._seen.add(fence)
                    yield from self._started(name.decode(), now)
        for limit in self.limits:
            if limit.concurrency is not None and running > limit.concurrency:
                yield "", f"{running} run at a time, the limit is {limit.concurrency}"

    def _started(self, name: str, now: float) -> Iterator[tuple[str, str]]:
        for limit in self.limits:
            if limit.rate is None:
                continue
            scope = "type" if limit.scope == "type" else name
            bucket = self._buckets.setdefault(scope, _Bucket(limit.rate, limit.rate.tokens, now))
            if not bucket.take(now):
                yield name, f"a start more than {limit.rate} allows ({scope})"

    def left(self, store: Store) -> str:
        """Return a letter for each pass that is still out, and each place that is taken."""
        first = self.keys.shards[0]
        passes = [name for name in store.get(first.limits.encode(), dict) or () if name[:2] == b"p\n"]
        places = [member for member in store.get(first.places.encode(), ZSet) or () if member[:2] == b"s\n"]
        return "g" * (len(passes) + len(places))
