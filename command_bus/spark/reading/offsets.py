"""How far a stream of outcomes was read: positions, their text in Spark's checkpoints, and how a limit is shared out.

An offset is `{dispatch: {shard: position}}`; a position is written `id/count`: the entry that was read last, and how many there were
up to it, since its stream began. The count tells what is still to read without plan it, and whether outcomes were trimmed unread.
It is left out while it is not known: from a starting time on, until the end was reached once; always before Redis 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from command_bus.errors import InvalidSettings
from command_bus.transport.bulk import OutcomeStream

__all__ = ["BEGINNING", "Offset", "StreamKey", "StreamOffset", "fair_shares", "format_offset", "parse_offset"]

BEGINNING = "0-0"
"""Before the first entry of every stream."""

StreamKey = tuple[str, int]
"""Dispatch and shard."""

Offset = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in a stream.

    Attributes:
        entry: The id that was read last; `BEGINNING` if none was.
        count: BulkOutcomes up to it; None if that is unknown.
    """

    entry: str
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> StreamOffset:
        """The position of a checkpoint.

        Raises:
            InvalidSettings: It is none.
        """
        entry, slash, count = text.partition("/")
        if not entry.replace("-", "", 1).isdecimal() or (slash and not count.isdecimal()):
            raise InvalidSettings(
                f"the checkpoint's position {text!r} is none of this library: start with a fresh checkpointLocation"
            )
        return cls(entry, int(count) if slash else None)

    def __str__(self) -> str:
        return self.entry if self.count is None else f"{self.entry}/{self.count}"

    def left(self, stream: OutcomeStream) -> int:
        """How many outcomes are behind it in its stream: at most, if that is not known exactly."""
        if _order(self.entry) >= _order(stream.last):
            return 0
        if not self._counts_in(stream):
            return max(stream.length, 1)
        return max(min(_known(stream.added) - _known(self.count), stream.length), 1)

    def lost(self, stream: OutcomeStream) -> int:
        """How many outcomes behind it were trimmed before they were read, as far as that is known."""
        return max(stream.trimmed - _known(self.count), 0) if self._counts_in(stream) else 0

    def passed(self, stream: OutcomeStream, entry: str, count: int) -> StreamOffset:
        """The position after so many more outcomes."""
        behind = _known(self.count) + self.lost(stream) + count if self._counts_in(stream) else None
        return StreamOffset(entry, behind)

    def _counts_in(self, stream: OutcomeStream) -> bool:
        """Whether its count is one of this stream: a stream that nobody added to for long ends, and the next counts from 0.

        If all that was read is trimmed, as many as were read must have been.
        """
        if self.count is None or stream.added is None:
            return False
        return stream.trimmed >= self.count or (bool(stream.first) and _order(stream.first) <= _order(self.entry))


def _order(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number or 0)


def _known(count: int | None) -> int:
    return count or 0


def parse_offset(offset: Offset) -> dict[StreamKey, StreamOffset]:
    """The positions that an offset holds."""
    return {(name, int(shard)): StreamOffset.parse(text) for name, shards in offset.items() for shard, text in shards.items()}


def format_offset(positions: dict[StreamKey, StreamOffset]) -> Offset:
    """The offset of positions: the same ones are always written the same, as Spark compares texts."""
    offset: Offset = {}
    for (name, shard), position in sorted(positions.items()):
        offset.setdefault(name, {})[str(shard)] = str(position)
    return offset


def fair_shares(wanted: Sequence[int], budget: int) -> list[int]:
    """How much each gets of a budget: the same for all, but nobody more than he wants; so none starves beside a large one."""
    given = [0] * len(wanted)
    left = len(wanted)
    for index in sorted(range(len(wanted)), key=lambda at: wanted[at]):
        given[index] = min(wanted[index], -(-budget // left))
        budget -= given[index]
        left -= 1
    return given
