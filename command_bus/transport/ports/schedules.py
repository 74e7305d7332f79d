"""The protocol of a transport for schedules. Their records are opaque bytes here, written by compare-and-set only. See `transport.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

FireAnswer = Literal["+", "=", "k", "u", "d", "e", "t", "n", "w", "?"]
"""What came of a firing: `+` accepted, `=` this number or a later one was fired before, `k` its command id is known, `u` the number cannot be
compared; and why it was refused: `d` drained, `e` the entity is full, `t` the shard is full, `n` too many entities have work,
`w` the mailbox takes nothing. `?`: too few replicas confirmed it, so a failover may take it: it is fired again under its number."""


REFUSALS = {
    "d": "its entity is being drained",
    "e": "its entity is full",
    "t": "the bus is full",
    "n": "as many entities as may be have work",
    "w": "its mailbox takes nothing",
    "?": "too few replicas confirmed it",
}
"""The answers that refuse a firing, for people."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """A change of a schedule's record.

    Attributes:
        name: What the schedule is called.
        before: The record that is expected; empty: there is none.
        after: The new one; empty: none.
        due: When a worker is to look at it, in ms; None: never. -1 leaves that as it is.
        told: Events that are written with the change: each a kind, and behind a space its detail, without line breaks.
    """

    name: str
    before: bytes
    after: bytes
    due: int | None
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Firing:
    """A firing on its way into its mailbox.

    Attributes:
        schedule: Name of the schedule.
        incarnation: Tells the schedule from earlier ones of its name.
        seq: Number of the firing; each is accepted once.
        mailbox: Name of the command's mailbox.
        command_id: Id of the command.
        envelope: Opaque bytes.
        digest: As for a `Submission`.
        max_depth: As for a `Submission`.
        armed: Whether the number counts although there is nothing to compare it with.
        late: Whether it counts as late.
        flow: As for a `Submission`.
    """

    schedule: str
    incarnation: str
    seq: int
    mailbox: str
    command_id: str
    envelope: bytes
    digest: bytes
    max_depth: int
    armed: bool = False
    late: bool = False
    flow: str = ""


class ScheduleStore(Protocol):
    """Keeps the records of schedules, and fires."""

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the records of schedules."""
        ...

    async def change(self, changes: Sequence[RecordChange]) -> list[bool]:
        """Change records; for each whether it is now what was asked for. One that was changed meanwhile is left alone."""
        ...

    async def fire(self, firings: Sequence[Firing]) -> list[FireAnswer]:
        """Put firings into their mailboxes, at their ends. Repeated, each is still accepted once."""
        ...

    async def bar(self, schedule: str, mailbox: str, incarnation: str, seq: int) -> bool | None:
        """Let no firing of a schedule up to a number into a mailbox any more; return False if that number was fired already.

        Return None if it was, and too few replicas know of it yet: a failover may take it.
        """
        ...

    async def forget(self, schedule: str) -> None:
        """Forget the numbers of a schedule that is gone: none of its firings is accepted any more."""
        ...

    def pages(self, shard: int) -> AsyncIterator[list[tuple[str, bytes]]]:
        """Yield the schedules of a shard with their records, page by page, perhaps one twice."""
        ...

    async def mark(self, mailbox: str, command_id: str) -> bytes | None:
        """Return the mark of a firing, or None (see `marks.py`)."""
        ...

    async def due_at(self, names: Sequence[str]) -> list[int | None]:
        """Return when workers look at schedules, in ms."""
        ...


class DueSchedules(Protocol):
    """Fires the schedules that are due, for a transport's worker side."""

    async def fire_due(self, names: Sequence[str]) -> tuple[int, Sequence[str]]:
        """Fire schedules that are due; return how many were dealt with here, and those to try again a second later."""
        ...

    async def look_over(self, page: Sequence[tuple[str, bytes]]) -> None:
        """Check a page of schedules: set back what clocks that jumped have put off, and give lost ones their time again."""
        ...
