"""`StreamId`: the id of a stream's entry, which is the server's time of its writing and a number within that millisecond."""

from __future__ import annotations

from typing import NamedTuple


class StreamId(NamedTuple):
    """An id, in the order of the entries.

    Attributes:
        ms: The server's time, in ms.
        number: Place within the millisecond.
    """

    ms: int
    number: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"


def stream_id(entry: str | bytes) -> StreamId:
    """Return an id as its numbers; one without a second number has 0.

    Raises:
        ValueError: It is no id.
    """
    ms, _, number = (entry if isinstance(entry, str) else entry.decode(errors="replace")).partition("-")
    return StreamId(int(ms), int(number or 0))


def ms_of(entry: str | bytes) -> int:
    """Return the time in an id; of the message id of a command it is the time of its acceptance."""
    return stream_id(entry).ms
