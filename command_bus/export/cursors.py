"""`Cursor`: the place up to which a stream is exported, and what is known of entries that were deleted before they were read.

A stream is deleted from its old end. So nothing was lost as long as the entry at the cursor is there, and if it is not, the number of the
entries that there ever were tells how many are missing. A history in which nothing is kept any more ends with its stream, and the next one counts
from 0: what was in the former one is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from command_bus.stream_ids import StreamId, stream_id
from command_bus.transport.ports.kept_streams import KeptStream

BEGINNING: Final = StreamId(0, 0)
"""Before the first entry of every stream."""
_LAST: Final = 2**64 - 1


class Cursor(NamedTuple):
    """The place up to which a stream is exported.

    Attributes:
        last: Id of the last entry; `BEGINNING` if there is none.
        added: Entries that there had been up to it; None if that is not known.
        lineage: That of the server then.
        number: That of the next file, from 1.
    """

    last: StreamId
    added: int | None
    lineage: str
    number: int = 1


def before_ms(ms: int) -> StreamId:
    """Return the last id before a time."""
    return StreamId(ms - 1, _LAST) if ms > 0 else BEGINNING


def id_before(entry: StreamId) -> StreamId:
    """Return the id before an id."""
    return StreamId(entry.ms, entry.number - 1) if entry.number else before_ms(entry.ms)


def passed(cursor: Cursor, stream: KeptStream, ids: Sequence[StreamId], last: StreamId) -> tuple[Cursor, int | None]:
    """Return the cursor behind a read, and how many entries were deleted before they were read; None: perhaps some.

    Args:
        cursor: The place where the read began.
        stream: The state of the stream behind the read.
        ids: The entries that were read, which were all that there were up to `last`.
        last: The id with which the read ended.
    """
    newest = stream_id(stream.last)
    first = stream_id(stream.first) if stream.first else StreamId(newest.ms, newest.number + 1)
    is_kept = id_before(first) <= cursor.last  # all that is behind the cursor
    if stream.added is None:
        is_known = is_kept or (cursor.number == 1 and not ids)  # an export begins with what there is
        return cursor._replace(last=last if is_kept else max(last, id_before(first)), added=None), 0 if is_known else None
    if last >= newest:
        count: int | None = stream.added
    elif is_kept:
        count = None if cursor.added is None else cursor.added + len(ids)
    else:
        last = max(last, id_before(first))
        count = stream.trimmed + sum(each >= first for each in ids)
    lost = 0 if is_kept or count is None or cursor.added is None else max(count - cursor.added - len(ids), 0)
    if not is_kept and stream.trimmed < (cursor.added or 0):  # what was read is gone, and less than that: it is another stream
        return cursor._replace(last=last, added=count), None
    return cursor._replace(last=last, added=count), lost
