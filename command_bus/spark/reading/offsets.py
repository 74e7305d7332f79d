"""The offsets of a stream of outcomes: their text in Spark's checkpoints, and how a limit is shared out.

Spark's offset is `{dispatch: {shard: offset of the stream}}`. A stream's offset is written `id/count`: the entry that was read last, and
the number of outcomes up to it since its stream began. The count says how much is left to read without reading it, and whether
outcomes were trimmed unread. It is left out while it is unknown: from a starting time on, until the end was reached once; and always
before Redis 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from command_bus.errors import InvalidSettings
from command_bus.stream_ids import stream_id
from command_bus.transport.ports.kept_streams import KeptStream

BEGINNING = "0-0"
"""Before the first entry of every stream."""

StreamKey = tuple[str, int]
"""Dispatch and shard of a stream."""

Offset = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A position in a stream: all before it was read.

    Attributes:
        entry: The id that was read last; `BEGINNING` if none was.
        count: Outcomes up to it; None if unknown.
    """

    entry: str
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> StreamOffset:
        """Return the offset that a checkpoint holds.

        Raises:
            InvalidSettings: The text is no offset.
        """
        entry, slash, count = text.partition("/")
        if not entry.replace("-", "", 1).isdecimal() or (slash and not count.isdecimal()):
            raise InvalidSettings(
                f"the checkpoint's offset {text!r} was not written by this library: start with a fresh checkpointLocation"
            )
        return cls(entry, int(count) if slash else None)

    def __str__(self) -> str:
        return self.entry if self.count is None else f"{self.entry}/{self.count}"

    def left(self, stream: KeptStream) -> int:
        """Return the number of outcomes left to read, or an upper bound of it if it is not known exactly."""
        if stream_id(self.entry) >= stream_id(stream.last):
            return 0
        if not self._counts_in(stream):
            return max(stream.length, 1)
        return max(min(_known(stream.added) - _known(self.count), stream.length), 1)

    def lost(self, stream: KeptStream) -> int:
        """Return the number of outcomes that were trimmed before they were read, as far as known."""
        return max(stream.trimmed - _known(self.count), 0) if self._counts_in(stream) else 0

    def passed(self, stream: KeptStream, entry: str, count: int) -> StreamOffset:
        """Return the offset after so many more outcomes."""
        behind = _known(self.count) + self.lost(stream) + count if self._counts_in(stream) else None
        return StreamOffset(entry, behind)

    def _counts_in(self, stream: KeptStream) -> bool:
        """Return whether its count belongs to this stream: an idle stream expires, and the next one counts from 0.

        If all that was read is trimmed, at least as many as were read must have been trimmed.
        """
        if self.count is None or stream.added is None:
            return False
        return stream.trimmed >= self.count or (bool(stream.first) and stream_id(stream.first) <= stream_id(self.entry))


def _known(count: int | None) -> int:
    return count or 0


def parse_offset(offset: Offset) -> dict[StreamKey, StreamOffset]:
    """Return the offsets of the streams in an offset of Spark's."""
    return {(name, int(shard)): StreamOffset.parse(text) for name, shards in offset.items() for shard, text in shards.items()}


def format_offset(offsets: dict[StreamKey, StreamOffset]) -> Offset:
    """Return Spark's offset for the offsets of streams. Equal ones are written the same, as Spark compares texts."""
    offset: Offset = {}
    for (name, shard), stream_offset in sorted(offsets.items()):
        offset.setdefault(name, {})[str(shard)] = str(stream_offset)
    return offset


def fair_shares(wanted: Sequence[int], budget: int) -> list[int]:
    """Divide a budget: all get the same, but none more than it wants; so a small stream does not starve beside a large one."""
    given = [0] * len(wanted)
    left = len(wanted)
    for index in sorted(range(len(wanted)), key=lambda at: wanted[at]):
        given[index] = min(wanted[index], -(-budget // left))
        budget -= given[index]
        left -= 1
    return given
