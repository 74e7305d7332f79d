"""Figures over time, a minute apart. Reached as `bus.trends`.

The server counts since the namespace was made and keeps no past. Who looks (a dashboard that is open or served) writes the figures of each
minute; several that do so write them once. Minutes in which none looked are gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from command_bus.admin.info import Stats
from command_bus.errors import InvalidSettings
from command_bus.serialization.limits import Limits, Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.stored_fields import stored_fields
from command_bus.session import Session

_KEPT = 2 * 24 * 60
_MINUTE_MS = 60_000
_LIMITS = Limits(max_bytes=16 * 1024)


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """The figures of a minute: counters since the namespace was made, and what was there at that moment.

    Attributes:
        at_ms: The minute, by the server's clock.
        accepted: As in `Stats`, as all that follow.
        settled: Counter.
        completed: Counter.
        rejected: Counter.
        dead_lettered: Counter.
        retried: Counter.
        depth: At that moment.
        in_flight: At that moment.
        ready: At that moment.
        parked: At that moment.
        dead_letters: At that moment.
        oldest_age: At that moment.
        workers: Live ones.
    """

    at_ms: int
    accepted: int = 0
    settled: int = 0
    completed: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    retried: int = 0
    depth: int = 0
    in_flight: int = 0
    ready: int = 0
    parked: int = 0
    dead_letters: int = 0
    oldest_age: float = 0.0
    workers: int = 0

    @classmethod
    def of(cls, stats: Stats, at_ms: int) -> TrendPoint:
        """Return the point of figures that were read at a time."""
        values = {each.name: getattr(stats, each.name) for each in fields(cls) if each.name not in ("at_ms", "workers")}
        return cls(at_ms=at_ms, workers=len(stats.workers), **values)


class Trends:
    """The figures of a namespace over time.

    Args:
        session: Of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def keep(self, stats: Stats) -> bool:
        """Write figures as those of the running minute; False if it has some. Two days are kept, about.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        operator = self._session.transport.operator
        minute = await operator.entities.now_ms() // _MINUTE_MS * _MINUTE_MS
        point = TrendPoint.of(stats, minute)
        data = pack({name: getattr(point, name) for name in TrendPoint.__slots__}, _LIMITS)
        return await operator.journals.append("trends", data, kept=_KEPT, once_ms=minute) is not None

    async def list(self, *, minutes: int = 180) -> list[TrendPoint]:
        """Return the points of the last minutes that have one, oldest first.

        Args:
            minutes: At most so many points.

        Raises:
            InvalidSettings: Below 1, or more than are kept.
            TransportUnavailable: The server cannot be reached.
        """
        if not 1 <= minutes <= _KEPT:
            raise InvalidSettings(f"minutes={minutes}: 1 to {_KEPT}")
        found = await self._session.transport.operator.journals.newest("trends", "", minutes)
        points = [_point(data) for _, data in reversed(found)]
        return [point for point in points if point is not None]


def _point(data: bytes) -> TrendPoint | None:
    """Return a point; None if it cannot be read. Fields of a later release are ignored."""
    try:
        return TrendPoint(**stored_fields(TrendPoint, unpack(data, _LIMITS)))
    except (Undecodable, TypeError, ValueError) as error:
        pass_over("trends", data, error)
        return None
