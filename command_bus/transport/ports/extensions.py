"""`Channels`: pub/sub of the bus's own server, and counters beside it. What is published reaches those who listen at that moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from command_bus.clock import mono


class Subscriptions(Protocol):
    """The channels that one part of a program listens to, over one connection that is there while there is a channel."""

    async def add(self, channel: str) -> None:
        """Listen to a channel too, and return once the server agreed, or after some seconds without an answer: then it is tried on.

        One that ends with `*` stands for all channels that begin so.
        """
        ...

    async def remove(self, channel: str) -> None:
        """Listen to it no more. With the last one the connection is closed."""
        ...

    async def close(self) -> None:
        """Remove all."""
        ...


class Channels(Protocol):
    """Sends messages to those who listen, and keeps counters that expire."""

    async def publish(self, messages: Sequence[tuple[str, bytes]], counters: Mapping[str, int], ttl: float) -> None:
        """Add to counters, then publish messages with their channels. A counter ends `ttl` seconds after it was last added to.

        Raises:
            CommandBusError: It could not be done, or perhaps in part.
        """
        ...

    async def take(self, counter: str) -> bool | None:
        """Take one from a counter. Return whether there was one to take; None if there is no such counter.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        ...

    def subscriptions(self, receive: Callable[[str, bytes], None], missed: Callable[[], None]) -> Subscriptions:
        """Return subscriptions without a channel yet.

        Args:
            receive: Called with the channel, as it was added, and each message.
            missed: Called when a cut connection is there again: messages may have been missed.
        """
        ...


def _ignore(server: str, what: object) -> None:
    """Take note of nothing."""


class Availability:
    """The servers that are away.

    Attributes:
        on_away: Receives that a server cannot be reached, and why, in the event loop of the bus. It must not raise. May be set at any time.
        on_back: Receives that it answers again, and for how many seconds it was away.
    """

    def __init__(self) -> None:
        self.on_away: Callable[[str, str], None] = _ignore
        self.on_back: Callable[[str, float], None] = _ignore
        self._away: dict[object, float] = {}  # monotonic time since when

    @property
    def is_available(self) -> bool:
        """Whether no server is away."""
        return not self._away

    @property
    def away_for(self) -> float:
        """Seconds for which a server is away, the longest of several; 0 if none is."""
        return mono() - min(self._away.values()) if self._away else 0.0

    def away(self, place: object, server: str, reason: str) -> None:
        """Note that the server at a place cannot be reached."""
        self._away[place] = mono()
        self.on_away(server, reason)

    def back(self, place: object, server: str) -> None:
        """Note that the server at a place, which was away, answers."""
        self.on_back(server, mono() - self._away.pop(place))


class Notes(Protocol):
    """Keeps records by book and name."""

    async def read(self, book: str, name: str) -> bytes | None:
        """Return a record; None if there is none."""
        ...

    async def all(self, book: str) -> dict[str, bytes]:
        """Return all records of a book by their names: it must be a small one."""
        ...

    async def change(self, book: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Write a record, if it is what is expected, None for none; return whether it is now what was asked for."""
        ...

    async def now_ms(self) -> int:
        """Return the server's time, by which leases in records are judged."""
        ...
