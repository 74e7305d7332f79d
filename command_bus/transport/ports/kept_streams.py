"""The seam for streams that the server keeps for a time: outcomes of dispatches, ends of commands, events, the audit log, dead letters.

Each is read from its old end, by ids that only grow. What is deleted is deleted from there, but for letters and ends that an operator replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class KeptStream:
    """The state of one stream of a shard.

    Attributes:
        length: Entries that are kept.
        added: Entries that there ever were; None if the server does not count them (Redis before 7).
        first: Id of the oldest that is kept, or an empty text.
        last: Id of the newest that there ever was. What is behind it comes later.
        left_ms: How long it is kept yet, if nothing is added.
    """

    length: int
    added: int | None
    first: str
    last: str
    left_ms: int = 0

    @property
    def trimmed(self) -> int:
        """How many are kept no more, as far as that is known."""
        return 0 if self.added is None else max(self.added - self.length, 0)


StreamPage = tuple[list[bytes], list[list[bytes]]]
"""Entry ids, and the names and values of each entry in turn. Two lists, because there are millions."""


class KeptStreams(Protocol):
    """Reads streams, each known by a name and its shard: of outcomes the name is that of the dispatch."""

    async def streams(self, wanted: Sequence[tuple[str, int]]) -> list[KeptStream | None]:
        """Return the state of streams; None for one that does not exist (yet, or any more)."""
        ...

    async def ends(self, name: str, shard: int, low: str, high: str) -> tuple[str, str] | None:
        """Return the first and last id of a range, whose bounds are written as for XRANGE; None if it is empty."""
        ...

    async def page(self, name: str, shard: int, after: str, until: str, count: int) -> StreamPage:
        """Return entries behind `after` (empty: from the first on) up to and with `until`, oldest first."""
        ...

    async def skip(self, name: str, shard: int, after: str, until: str, count: int) -> tuple[str, int]:
        """Return the id that a read of `count` entries would end with, and their number. Without any: `after` and 0."""
        ...

    async def lineage(self, shard: int) -> str:
        """Return a short text that changes when the shard's server has restarted, or another one has taken its place.

        Entries may be gone then that were read before, and new ones may have ids below theirs.
        """
        ...
