"""`Channels`: pub/sub of the bus's own server, and counters beside it. What is published reaches those who listen at that moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


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
