"""An export reads pages of a bounded size, whatever the size of the entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow")

from command_bus.export import reading
from command_bus.export.cursors import BEGINNING, Cursor
from command_bus.export.reading import StreamReader
from command_bus.stream_ids import StreamId, stream_id
from command_bus.transport.ports.kept_streams import KeptStream, StreamPage

SMALL, LARGE = b"-" * 200, b"-" * (8 << 20)


class Entries:
    """A stream with entries of given values, which remembers what was asked."""

    def __init__(self, values: Sequence[bytes], field: bytes = b"r") -> None:
        self.field = field
        self.values, self.asked, self.given = values, list[int](), list[int]()

    async def page(self, name: str, shard: int, after: str, until: str, count: int) -> StreamPage:
        begin = stream_id(after).ms if after else 0
        values = self.values[begin : begin + count]
        self.asked.append(count)
        self.given.append(sum(map(len, values)))
        return [b"%d-0" % (begin + at + 1) for at in range(len(values))], [[self.field, value] for value in values]

    async def streams(self, wanted: object) -> list[KeptStream | None]:
        return [KeptStream(len(self.values), len(self.values), "1-0", f"{len(self.values)}-0")]


@pytest.mark.parametrize(
    "values", [[LARGE] * 40, [SMALL] * 40 + [LARGE] * 200, [SMALL, LARGE] * 20], ids=["large", "grows", "mixed"]
)
def test_pages_follow_the_size_of_the_entries(monkeypatch: pytest.MonkeyPatch, values: list[bytes]) -> None:
    monkeypatch.setattr(reading, "page_batch", lambda *_: None)
    entries = Entries(values)
    cursor, reader = (
        Cursor(BEGINNING, 0, "0"),
        StreamReader(cast("Any", entries), "audit", "audit", 0, lambda batch: batch, 10**6),
    )
    while cursor.last < (end := StreamId(len(values), 0)):
        cursor = asyncio.run(reader.read(cursor, end)).cursor
    assert sum(entries.given) == sum(map(len, values)), "each entry once"
    assert entries.asked[0] <= 10
    assert all(
        following <= 1 or given < len(LARGE) for given, following in zip(entries.given, entries.asked[1:], strict=False)
    ), "a large entry is a page"
    assert all(following <= 4 * asked for asked, following in zip(entries.asked, entries.asked[1:], strict=False))


def test_small_entries_are_read_by_the_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "page_batch", lambda *_: None)
    entries = Entries([SMALL] * 20_000)
    reader = StreamReader(cast("Any", entries), "audit", "audit", 0, lambda batch: batch, 10**6)
    read = asyncio.run(reader.read(Cursor(BEGINNING, 0, "0"), StreamId(20_000, 0)))
    assert (read.cursor.added, read.lost) == (20_000, 0)
    assert len(entries.asked) < 26


def test_an_entry_without_a_byte_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client may have written it."""
    monkeypatch.setattr(reading, "page_batch", lambda *_: None)
    reader = StreamReader(cast("Any", Entries([b""] * 3, b"")), "audit", "audit", 0, lambda batch: batch, 10)
    assert asyncio.run(reader.read(Cursor(BEGINNING, 0, "0"), StreamId(3, 0))).cursor.added == 3
