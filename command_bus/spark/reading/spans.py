"""The parts of streams that tasks read: spans between two entry ids, split if a stream is long, combined if streams are short.

A span ends at an id that existed when it was planned, so a repeated task reads the same. Streams can be searched by time, not by
position. So a long one is split in the middle of its time, without the gaps, again and again, the longest piece first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from command_bus.stream_ids import ms_of, stream_id
from command_bus.transport.ports.kept_streams import KeptStreams

ROWS_PER_TASK = 250_000
"""Entries that one task should read, approximately: a second's work."""
_LAST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a stream.

    Attributes:
        name: That of the stream; of outcomes that of their dispatch.
        shard: Number of the shard that the stream is in.
        after: The id after which it begins; empty: it begins with the first.
        until: The id with which it ends.
        rows: The number of its entries, approximately.
    """

    name: str
    shard: int
    after: str
    until: str
    rows: int = 0


def id_before(entry: str) -> str:
    """Return the id before an id: reading after it begins with that id."""
    ms, number = stream_id(entry)
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{_LAST}" if ms else ""


def rows_per_task(total: int, partitions: int | None) -> int:
    """Return how many entries a task should read if at least `partitions` tasks are wanted."""
    return max(min(ROWS_PER_TASK, -(-total // (partitions or 1))), 1)


async def split_span(streams: KeptStreams, span: Span, first: str, pieces: int) -> list[Span]:
    """Return the span in `pieces` pieces, or fewer if there is nothing to split; `first` is the id of its first entry."""
    parts = [(span.after, first, span.until)]
    while len(parts) < pieces:
        index = max(range(len(parts)), key=lambda at: _duration(*parts[at]))
        after, start, until = parts[index]
        if not _duration(after, start, until):
            break
        middle = (ms_of(start) + ms_of(until)) // 2 + 1
        left = await streams.ends(span.name, span.shard, start, f"({middle}-0")
        right = await streams.ends(span.name, span.shard, f"{middle}-0", until)
        if left is None or right is None:  # trimmed since then
            break
        parts[index : index + 1] = [(after, start, left[1]), (left[1], right[0], until)]
    rows = -(-span.rows // len(parts))
    return [Span(span.name, span.shard, after, until, rows) for after, _, until in parts]


def _duration(_: str, start: str, until: str) -> int:
    return ms_of(until) - ms_of(start)


def pack_spans(spans: Sequence[Span], rows: int) -> list[tuple[Span, ...]]:
    """Return the spans, in order, grouped into tasks of about so many entries."""
    tasks: list[list[Span]] = []
    room = 0
    for span in spans:
        if not tasks or span.rows > room:
            tasks.append([])
            room = rows
        tasks[-1].append(span)
        room -= span.rows
    return [tuple(task) for task in tasks]
