"""`Refusal`: the commands of a chunk that were refused for now, and by which limit: their mailbox's own, or one of the namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from command_bus.spark.writing.send_queue import SendQueue
from command_bus.transport.ports.bulk import LoadItem
from command_bus.transport.submissions import Admission

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
