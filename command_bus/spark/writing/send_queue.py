"""`SendQueue`: the commands of one shard that wait to be sent; those of a full mailbox are blocked without holding up the others.

Order is per mailbox, so no other commands need to wait for a full one. Blocked commands stay ahead of all later commands of their
mailbox, which are queued behind them until none is left. `Refusal` says which limit refused commands: their mailbox's own, or one of the
namespace. This module neither sends nor waits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Literal

from command_bus.transport.ports.bulk import LoadItem
from command_bus.transport.submissions import Admission

MAX_CHUNK_BYTES = 1024 * 1024
_SIZE_OF_ITEM = 400  # bytes of a command in this process, beside its envelope


class SendQueue:
    """Commands to send next, and blocked commands by mailbox.

    Attributes:
        blocked: Commands whose mailbox takes none now, by mailbox, in order.
        blocked_bytes: The memory that these take, approximately.
    """

    __slots__ = ("_at", "_items", "blocked", "blocked_bytes")

    def __init__(self) -> None:
        self.blocked: dict[str, deque[LoadItem]] = {}
        self.blocked_bytes = 0
        self._items: list[LoadItem] = []
        self._at = 0

    def __len__(self) -> int:
        """Return the number of commands that are not blocked."""
        return len(self._items) - self._at

    @property
    def blocked_rows(self) -> int:
        """Number of blocked commands."""
        return sum(map(len, self.blocked.values()))

    def extend(self, items: Iterable[LoadItem]) -> None:
        """Append commands."""
        if self._at:
            del self._items[: self._at]
            self._at = 0
        self._items.extend(items)

    def take(self, count: int) -> list[LoadItem]:
        """Take the next commands, as many as fit one request; those of blocked mailboxes are blocked on the way."""
        if not self.blocked:
            first = fitting_prefix(self._items[self._at : self._at + count])
            self._at += len(first)
            return first
        chunk: list[LoadItem] = []
        size = 0
        while self._at < len(self._items) and len(chunk) < count:
            item = self._items[self._at]
            waiting = self.blocked.get(item[0])
            if waiting is not None:
                waiting.append(item)
                self.blocked_bytes += _size(item)
            else:
                size += len(item[3])
                if size > MAX_CHUNK_BYTES and chunk:
                    break
                chunk.append(item)
            self._at += 1
        return chunk

    def put_back(self, items: Sequence[LoadItem]) -> None:
        """Put commands that were taken from the front back there."""
        self._at -= len(items)
        self._items[self._at : self._at + len(items)] = items

    def take_blocked(self, count: int) -> list[LoadItem]:
        """Take the first commands of blocked mailboxes, as many as fit one request; the next call begins with other mailboxes."""
        share = max(count // max(len(self.blocked), 1), 1)
        chunk: list[LoadItem] = []
        for mailbox in list(islice(self.blocked, count)):
            waiting = self.blocked.pop(mailbox)
            chunk += [waiting.popleft() for _ in range(min(share, len(waiting)))]
            self.blocked[mailbox] = waiting
        self.blocked_bytes -= sum(map(_size, chunk))
        fitting = fitting_prefix(chunk)
        self.block(chunk[len(fitting) :])
        return fitting

    def block(self, items: Sequence[LoadItem]) -> None:
        """Block commands, ahead of all others of their mailboxes."""
        for item in reversed(items):
            self.blocked.setdefault(item[0], deque()).appendleft(item)
            self.blocked_bytes += _size(item)

    def unblock(self) -> None:
        """Unblock the mailboxes that have no blocked commands left."""
        for mailbox in [mailbox for mailbox, waiting in self.blocked.items() if not waiting]:
            del self.blocked[mailbox]


def fitting_prefix(items: list[LoadItem]) -> list[LoadItem]:
    """Return as many of the first commands as fit one request, at least one."""
    if sum(map(len, map(itemgetter(3), items))) <= MAX_CHUNK_BYTES:
        return items
    size = 0
    for index, item in enumerate(items):
        size += len(item[3])
        if size > MAX_CHUNK_BYTES and index:
            return items[:index]
    return items


def _size(item: LoadItem) -> int:
    return len(item[3]) + _SIZE_OF_ITEM


LIMITS = {
    Admission.ENTITY_FULL: "entity", Admission.TOTAL_FULL: "total", Admission.TOO_MANY_ENTITIES: "entities",
    Admission.PREDECESSOR_REFUSED: "predecessor", Admission.DRAINING: "drain",
}  # fmt: skip
MAILBOX_LIMITS = frozenset({"entity", "drain"})
"""Limits that may hold for one mailbox only: others are tried."""


@dataclass(slots=True)
class Refusal:
    """The commands of a chunk that were refused, in order.

    Attributes:
        own: Commands that their own mailbox refuses.
        common: Commands that a limit of the namespace refuses.
        limit: The name of the limit; a limit of the namespace comes first.
        retry_after: Seconds after which a retry makes sense.
    """

    own: list[LoadItem] = field(default_factory=list["LoadItem"])
    common: list[LoadItem] = field(default_factory=list["LoadItem"])
    limit: str = ""
    retry_after: float = 0.0

    @classmethod
    def of(cls, chunk: Sequence[LoadItem], admissions: Sequence[Admission], retry_after: float) -> Refusal:
        """Return the commands to send again."""
        by_mailbox: dict[str, str] = {}
        refusal = cls(retry_after=retry_after)
        for item, admission in zip(chunk, admissions, strict=True):
            if admission in LIMITS:
                limit = by_mailbox.setdefault(item[0], LIMITS[admission])  # those behind the first are refused because it was
                (refusal.own if limit in MAILBOX_LIMITS else refusal.common).append(item)
        limits = [*by_mailbox.values()]
        refusal.limit = next((limit for limit in limits if limit not in MAILBOX_LIMITS), limits[0] if limits else "")
        return refusal

    @property
    def rows(self) -> int:
        """Number of refused commands."""
        return len(self.own) + len(self.common)

    def description(self, queues: Iterable[SendQueue]) -> str:
        """Return the limit and its mailboxes: `total limit`, or `entity limit: waiting for truck:t1 and 2 others, 700 rows stand aside`."""
        if self.limit not in MAILBOX_LIMITS:
            return f"{self.limit} limit"
        queues = [*queues]
        names = [name for queue in queues for name in queue.blocked] or [item[0] for item in self.own[:1]]
        others = f" and {len(names) - 1:,} others" if len(names) > 1 else ""
        rows = sum(queue.blocked_rows for queue in queues)
        return f"{self.limit} limit: waiting for {names[0][:200] if names else '?'}{others}, {rows:,} rows stand aside"


_PER_MAILBOX = 16
"""After each sixteenth of the depth limit that a partition has put into a mailbox, the server checks the limit: it is exceeded by no more."""


class DepthChecks:
    """The number of commands that a partition has sent to each mailbox.

    Args:
        max_depth: Limit of a mailbox.
    """

    def __init__(self, max_depth: int) -> None:
        self._every = max(max_depth // _PER_MAILBOX, 1)
        self._sent: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of mailboxes."""
        return len(self._sent)

    def due(self, chunk: list[LoadItem]) -> tuple[set[str], list[str]]:
        """Return the mailboxes of a chunk that may be full, and of these the new ones."""
        sent, every = self._sent, self._every
        to_check: set[str] = set()
        new: list[str] = []
        for mailbox, more in Counter(map(itemgetter(0), chunk)).items():
            count = sent.get(mailbox, 0)
            if -(-count // every) * every < count + more:  # reaches the next multiple of it
                to_check.add(mailbox)
                if mailbox not in sent:
                    new.append(mailbox)
            sent[mailbox] = count + more
        return to_check, new

    def check_next_time(self, items: Iterable[LoadItem]) -> None:
        """Have the server check these mailboxes with the next chunk."""
        for item in items:
            self._sent[item[0]] = 0


StallAction = Literal["wait", "warn", "give up"]

WARN_AFTER = 8.0  # and the time until a watching driver reads it: less than ten seconds together
WARN_EVERY = 30.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


@dataclass(slots=True)
class StallTimer:
    """Decides by the times that it is given; reads no clock.

    Attributes:
        max_wait: Seconds without progress after which the task gives up.
        since: Time of the first refusal since the last progress; None after progress.
        pause: Seconds to wait before the next try.
        warned: Time of the last warning; None if there was none since the last progress.
    """

    max_wait: float
    since: float | None = None
    pause: float = _SHORTEST_PAUSE
    warned: float | None = None

    def progressed(self) -> None:
        """Record that commands were accepted."""
        self.since = self.warned = None
        self.pause = _SHORTEST_PAUSE

    def refused(self, now: float) -> StallAction:
        """Record that nothing was accepted, and return what to do. The caller then waits for `next_pause`, which doubles each time."""
        if self.since is None:
            self.since = now
        if now - self.since > self.max_wait:
            return "give up"
        due = self.since + WARN_AFTER if self.warned is None else self.warned + WARN_EVERY
        if now < due:
            return "wait"
        self.warned = now
        return "warn"

    def next_pause(self, at_most: float) -> float:
        """Return the seconds to wait now."""
        pause = min(self.pause, at_most)
        self.pause = min(self.pause * 2, _LONGEST_PAUSE)
        return pause

    def remaining(self, now: float) -> float:
        """Return the seconds until the task gives up."""
        return max(self.max_wait - (now - (self.since or now)), 0.0)
