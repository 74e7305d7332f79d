"""The audit log: what operators did, and why. Reached as `bus.audit`.

The dashboard writes it; a program of your own may, too. It is kept on the server beside the commands, and holds the newest entries only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from command_bus.admin.info import Stats
from command_bus.clock import time_of
from command_bus.errors import InvalidSettings
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.stored_fields import stored_fields
from command_bus.serialization.tallies import Tallies
from command_bus.session import OnSession
from command_bus.stream_ids import ms_of

_KEPT = 10_000
_LOOKED_AT = 500
_LONGEST = 2_000
_LIMITS = PayloadLimits(max_bytes=64 * 1024)
_FIELDS = 7


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that an operator did, or tried to do.

    Attributes:
        id: Begins with the time, so that ids sort by it.
        at_ms: When, by the server's clock.
        who: The person.
        act: What, as `pause`, `replay`.
        target: To what, for people: `account:a-17`.
        why: The reason that they gave.
        outcome: What came of it; empty for an entry that announces an act.
        ref: For an outcome, the id of the entry that announced the act; else empty.
        details: More of it: counts, filters, numbers that were put.
    """

    id: str
    at_ms: int
    who: str
    act: str
    target: str
    why: str
    outcome: str
    ref: str
    details: str

    @property
    def at(self) -> str:
        """When, in UTC, for people; in ms if no calendar has it."""
        try:
            return time_of(self.at_ms).isoformat(sep=" ", timespec="seconds")
        except OverflowError:
            return f"{self.at_ms:,} ms"


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A part of the log.

    Attributes:
        entries: Newest first.
        cursor: The place where older ones begin; None if there are none.
    """

    entries: tuple[AuditEntry, ...]
    cursor: str | None

    def acts(self, ended: Collection[str] = ()) -> tuple[AuditEntry, ...]:
        """Return each act once: what announced one is left out if its outcome is here, or on a page before.

        Args:
            ended: What `unannounced` returned for the last page before.
        """
        known = self._ended(ended)
        return tuple(each for each in self.entries if each.id not in known)

    def unannounced(self, ended: Collection[str] = ()) -> frozenset[str]:
        """Return the ids of announcements that come on a later page, and whose outcome is here or on a page before."""
        return self._ended(ended).difference(each.id for each in self.entries)

    def _ended(self, before: Collection[str]) -> frozenset[str]:
        return frozenset(each.ref for each in self.entries if each.ref).union(before)


class Audit(OnSession):
    """The log of a namespace.

    Args:
        session: Connections and settings of the bus.
    """

    async def write(
        self, who: str, act: str, target: str, why: str, *, outcome: str = "", ref: str = "", details: str = ""
    ) -> str:
        """Write an entry and return its id. Ten thousand are kept, about. Long texts are cut.

        Args:
            who: The person.
            act: What they do.
            target: To what.
            why: Their reason.
            outcome: What came of it; empty before it is done.
            ref: The id of the entry that announced it.
            details: Counts and filters.

        Raises:
            TransportUnavailable: The server cannot be reached; the entry may be there.
        """
        texts = [text[:_LONGEST] for text in (who, act, target, why, outcome, ref, details)]
        data = pack([text.encode(errors="replace").decode() for text in texts], _LIMITS)
        entry = await self._operator.history.append("audit", data, kept=_KEPT)
        return entry or ""

    async def about(self, names: Collection[str], *, limit: int = 20) -> tuple[AuditEntry, ...]:
        """Return acts on something, newest first, each once, of the newest five hundred entries.

        Args:
            names: Ids of commands and letters, and entities as `account:a-17`, one of which the target or the details of an act name.
            limit: At most so many.

        Raises:
            InvalidSettings: The limit is below 1.
            TransportUnavailable: The server cannot be reached.
        """
        if limit < 1:
            raise InvalidSettings("limit: at least 1")
        named = re.compile("|".join(rf"(?<![^\s(]){re.escape(each)}(?![^\s),])" for each in names if each) or r"(?!)")
        found = (await self.page(limit=_LOOKED_AT)).acts()
        return tuple(each for each in found if named.search(each.target) or named.search(each.details))[:limit]

    async def page(self, *, limit: int = 100, cursor: str | None = None) -> AuditPage:
        """Return entries, newest first.

        Args:
            limit: At most so many.
            cursor: As the page before gave it; None: the first page.

        Raises:
            InvalidSettings: The limit is below 1, or it is no cursor.
            TransportUnavailable: The server cannot be reached.
        """
        if limit < 1:
            raise InvalidSettings("limit: at least 1")
        if cursor is not None and not cursor.replace("-", "", 1).isdecimal():
            raise InvalidSettings(f"cursor={cursor!r}: not the cursor of a page of the audit log")
        found = await self._operator.history.newest("audit", cursor or "", limit + 1)
        entries = tuple(audit_entry(entry, data) for entry, data in found[:limit])
        return AuditPage(entries, entries[-1].id if len(found) > limit else None)


def audit_entry(entry: str, data: bytes) -> AuditEntry:
    """Return an entry; one that cannot be read is shown as such: any client may have written it."""
    try:
        values = unpack(data, _LIMITS)
    except Undecodable:
        values = None
    texts = [str(value) for value in values[:_FIELDS]] if isinstance(values, list) else []
    who, act, target, why, outcome, ref, details = [*texts, *[""] * (_FIELDS - len(texts))]
    return AuditEntry(entry, ms_of(entry), who, act or "unreadable", target, why, outcome, ref, details)


_TRENDS_KEPT = 2 * 24 * 60
_MINUTE_MS, _TALLIED_MS = 60_000, 300_000
_TREND_LIMITS = PayloadLimits(max_bytes=256 * 1024)


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
        tallies: Of each fifth minute, what became of the live workers' runs since they started, packed (see `Tallies`).
        runs: How many these were. It shrinks where a worker has left.
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
    tallies: bytes = b""
    runs: int = 0

    @classmethod
    def of(cls, stats: Stats, at_ms: int) -> TrendPoint:
        """Return the point of figures that were read at a time."""
        values = {each.name: getattr(stats, each.name) for each in fields(cls) if hasattr(stats, each.name)}
        tallies = Tallies() if at_ms % _TALLIED_MS else Tallies.sum(each.tallies for each in stats.workers)
        own: dict[str, Any] = {"workers": len(stats.workers), "tallies": tallies.pack(), "runs": tallies.runs}
        return cls(at_ms=at_ms, **{**values, **own})


class Trends(OnSession):
    """The figures of a namespace over time.

    Args:
        session: Connections and settings of the bus.
    """

    async def keep(self, stats: Stats) -> bool:
        """Write figures as those of the running minute; False if it has some. Two days are kept, about.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        minute = await self._operator.entities.now_ms() // _MINUTE_MS * _MINUTE_MS
        point = TrendPoint.of(stats, minute)
        data = pack({name: getattr(point, name) for name in TrendPoint.__slots__}, _TREND_LIMITS)
        return await self._operator.history.append("trends", data, kept=_TRENDS_KEPT, once_ms=minute) is not None

    async def list(self, *, minutes: int = 180) -> list[TrendPoint]:
        """Return the points of the last minutes that have one, oldest first.

        Args:
            minutes: At most so many points.

        Raises:
            InvalidSettings: Below 1, or more than are kept.
            TransportUnavailable: The server cannot be reached.
        """
        if not 1 <= minutes <= _TRENDS_KEPT:
            raise InvalidSettings(f"minutes={minutes}: 1 to {_TRENDS_KEPT}")
        found = await self._operator.history.newest("trends", "", minutes)
        points = [_point(data) for _, data in reversed(found)]
        return [point for point in points if point is not None]


@lru_cache(_TRENDS_KEPT)
def _point(data: bytes) -> TrendPoint | None:
    """Return a point; None if it cannot be read. Fields of a later release are ignored."""
    try:
        return TrendPoint(**stored_fields(TrendPoint, unpack(data, _TREND_LIMITS)))
    except (Undecodable, TypeError, ValueError) as error:
        pass_over("trends", data, error)
        return None
