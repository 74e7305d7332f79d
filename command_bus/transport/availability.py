"""`Availability`: which servers of a bus are away, as its own requests found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from command_bus.clock import mono


class AvailabilityListener(Protocol):
    """Receives that a server cannot be reached, and that it can be reached again, in the event loop of the bus. It must not raise."""

    def server_away(self, server: str, reason: str) -> None:
        """Receive that a server cannot be reached."""
        ...

    def server_back(self, server: str, seconds: float) -> None:
        """Receive that it answers again, and for how long it was away."""
        ...


class Availability:
    """The servers that are away.

    Attributes:
        listener: Receives each change; may be set at any time.
    """

    def __init__(self) -> None:
        self.listener: AvailabilityListener | None = None
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
        self._tell(lambda listener: listener.server_away(server, reason))

    def back(self, place: object, server: str) -> None:
        """Note that the server at a place, which was away, answers."""
        seconds = mono() - self._away.pop(place)
        self._tell(lambda listener: listener.server_back(server, seconds))

    def _tell(self, what: Callable[[AvailabilityListener], None]) -> None:
        if self.listener is not None:
            what(self.listener)
