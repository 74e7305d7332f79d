"""`StreamReader`: reads what one file of an export gets, in pages of about a MiB."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from command_bus.export.columns import gc_paused
from command_bus.export.cursors import BEGINNING, Cursor, passed
from command_bus.export.pages import page_batch
from command_bus.export.views import View
from command_bus.stream_ids import StreamId, stream_id
from command_bus.transport.ports.kept_streams import KeptStream, KeptStreams

_PAGE_BYTES: Final = 1 << 20
_FILE_BYTES: Final = 64 << 20
# It is not known how large the next entries are: each may be as large as a payload.
_FIRST_PAGE: Final = 10
_GROWTH: Final = 4
_LONGEST_PAGE: Final = 1_000


class FileRead(NamedTuple):
    """The rows of a file.

    Attributes:
        batches: Those that no other file has.
        cursor: The place to go on.
        lost: Entries that were deleted meanwhile; None: perhaps some.
    """

    batches: list[Any]
    cursor: Cursor
    lost: int | None


class StreamReader:
    """Reads a stream of a shard.

    Args:
        kept: Reads pages.
        view: The columns.
        name: That of the stream.
        shard: The number of the shard.
        fresh: Leaves out rows that a file has.
        rows: Most entries of a file.
    """

    def __init__(self, kept: KeptStreams, view: View, name: str, shard: int, fresh: Callable[[Any], Any], rows: int) -> None:
        self.name, self.shard = name, shard
        self._kept, self._fresh, self._rows = kept, fresh, rows
        self._view: View = view
        self._page = _FIRST_PAGE

    async def lineage(self) -> str:
        """Return the lineage of the server. Asked before what it is about, a server that changes meanwhile is seen at the next look."""
        return await self._kept.lineage(self.shard)

    async def look(self) -> KeptStream | None:
        """Return the state of the stream; None if there is none."""
        [stream] = await self._kept.streams([(self.name, self.shard)])
        if stream is not None and self._view == "deadLetters":
            return replace(stream, first="0-1")  # a letter that is not there any more was settled
        return stream

    async def read(self, cursor: Cursor, until: StreamId) -> FileRead:
        """Read up to `until`, or as much as a file gets."""
        last, size = cursor.last, 0
        batches, ids = list[Any](), list[StreamId]()
        while last < until and len(ids) < self._rows and size < _FILE_BYTES:
            after = str(last) if last > BEGINNING else ""
            with gc_paused():
                page = await self._kept.page(self.name, self.shard, after, str(until), min(self._page, self._rows - len(ids)))
                if not page[0]:
                    last = until  # deleted meanwhile
                    break
                sizes = [sum(map(len, flat)) for flat in page[1]]
                batches.append(await asyncio.to_thread(self._batch, page))
            ids += map(stream_id, page[0])
            last, size = ids[-1], size + sum(sizes)
            self._page = min(_PAGE_BYTES // max(*sizes, 1) + 1, self._page * _GROWTH, _LONGEST_PAGE)
        stream = await self.look()
        following, lost = (cursor._replace(last=last), 0) if stream is None else passed(cursor, stream, ids, last)
        return FileRead(batches, following, lost)

    def _batch(self, page: Any) -> Any:
        return self._fresh(page_batch(self._view, self.name, self.shard, page))
