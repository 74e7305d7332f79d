"""What tasks read of the streams of outcomes: spans between two entry ids, cut where one is long, put together where they are short.

A span ends at an id that was there when it was planned, so a task that is run again reads the same. Streams know no positions, only
times; so a long one is cut in the middle of its time, gaps left out, again and again, the longest piece first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from command_bus.transport.bulk import BulkOutcomes

__all__ = ["ROWS_PER_TASK", "Span", "before", "cut", "ms_of", "pack_spans", "rows_per_task"]

ROWS_PER_TASK = 250_000
"""Outcomes that one task should read, about: a second's work."""
_LAST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a stream.

    Attributes:
        dispatch_id: Whose outcomes,
        shard: and in which shard.
        after: The id behind which it begins; empty: with the first.
        until: The id with which it ends.
        rows: How many it holds, roughly.
    """

    dispatch_id: str
    shard: int
    after: str
    until: str
    rows: int = 0


def ms_of(entry: str) -> int:
    """The time in an entry's id."""
    return int(entry.partition("-")[0])


def before(entry: str) -> str:
    """The id before an id: reading behind it begins with that one."""
    ms, _, number = entry.partition("-")
    if int(number or 0):
        return f"{ms}-{int(number) - 1}"
    return f"{int(ms) - 1}-{_LAST}" if int(ms) else ""


def rows_per_task(total: int, partitions: int | None) -> int:
    """How many outcomes a task should read, if at least so many tasks are wanted."""
    return max(min(ROWS_PER_TASK, -(-total // (partitions or 1))), 1)


async def cut(outcomes: BulkOutcomes, span: Span, first: str, pieces: int) -> list[Span]:
    """The span in so many pieces, fewer where there is nothing to cut; `first` is the id of its first outcome."""
    parts = [(span.after, first, span.until)]
    while len(parts) < pieces:
        index = max(range(len(parts)), key=lambda at: _duration(*parts[at]))
        after, start, until = parts[index]
        if not _duration(after, start, until):
            break
        middle = (ms_of(start) + ms_of(until)) // 2 + 1
        left = await outcomes.ends(span.dispatch_id, span.shard, start, f"({middle}-0")
        right = await outcomes.ends(span.dispatch_id, span.shard, f"{middle}-0", until)
        if left is None or right is None:  # trimmed just now
            break
        parts[index : index + 1] = [(after, start, left[1]), (left[1], right[0], until)]
    rows = -(-span.rows // len(parts))
    return [Span(span.dispatch_id, span.shard, after, until, rows) for after, _, until in parts]


def _duration(_: str, start: str, until: str) -> int:
    return ms_of(until) - ms_of(start)


def pack_spans(spans: Sequence[Span], rows: int) -> list[tuple[Span, ...]]:
    """Spans put together, in order, into tasks of about so many outcomes."""
    tasks: list[list[Span]] = []
    room = 0
    for span in spans:
        if not tasks or span.rows > room:
            tasks.append([])
            room = rows
        tasks[-1].append(span)
        room -= span.rows
    return [tuple(task) for task in tasks]
