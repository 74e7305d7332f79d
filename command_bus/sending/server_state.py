"""`ServerState`: whether the server of a bus is there, as the bus's own requests found out."""

from __future__ import annotations

from command_bus.session import Session


class ServerState:
    """The state of the server: there or away. Nothing is asked for it: a request that failed started a probe, and probes go on until one succeeds.

    Args:
        session: Of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def is_available(self) -> bool:
        """Whether no server of the bus is known to be away. False while the bus is not open."""
        return self._session.is_open and self._session.transport.availability.is_available

    @property
    def away_for(self) -> float:
        """Seconds since a server was found to be away, the longest of several; 0 if none is."""
        return self._session.transport.availability.away_for if self._session.is_open else 0.0
