"""The audit log: what operators did, and why. Reached as `bus.audit`.

The dashboard writes it; a program of your own may, too. It is kept on the server beside the commands, and holds the newest entries only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from command_bus.clock import time_of
from command_bus.errors import InvalidSettings
from command_bus.serialization.limits import Limits, Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.session import Session

_KEPT = 10_000
_LONGEST = 2_000
_LIMITS = Limits(max_bytes=64 * 1024)
_FIELDS = 7


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that an operator did, or tried to do.

    Attributes:
        id: Of the entry; it begins with the time.
        at_ms: When, by the server's clock.
        who: The person.
        act: What, as `pause`, `replay`.
        target: To what, for people: `account:a-17`.
        why: The reason that they gave.
        outcome: What came of it; empty for an entry that announces an act.
        ref: Of an outcome the id of the entry that announced the act, else empty.
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
        cursor: Where older ones begin; None if there are none.
    """

    entries: tuple[AuditEntry, ...]
    cursor: str | None

    def acts(self, ended: Collection[str] = ()) -> tuple[AuditEntry, ...]:
        """Return each act once: what announced one is left out if its outcome is here, or on a page before.

        Args:
            ended: Of the pages before, what `unannounced` returned of the last of them.
        """
        known = {each.ref for each in self.entries if each.ref}.union(ended)
        return tuple(each for each in self.entries if each.id not in known)

    def unannounced(self, ended: Collection[str] = ()) -> frozenset[str]:
        """Return the ids of announcements that come on a later page, and whose outcome is here or on a page before."""
        known = {each.ref for each in self.entries if each.ref}.union(ended)
        return frozenset(known.difference(each.id for each in self.entries))


class Audit:
    """The log of a namespace.

    Args:
        session: Of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

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
        entry = await self._session.transport.operator.journals.append("audit", data, kept=_KEPT)
        return entry or ""

    async def page(self, *, limit: int = 100, cursor: str | None = None) -> AuditPage:
        """Return entries, newest first.

        Args:
            limit: At most so many.
            cursor: Of the page before.

        Raises:
            InvalidSettings: The limit is below 1, or it is no cursor.
            TransportUnavailable: The server cannot be reached.
        """
        if limit < 1:
            raise InvalidSettings("limit: at least 1")
        if cursor is not None and not cursor.replace("-", "", 1).isdecimal():
            raise InvalidSettings(f"cursor={cursor!r}: not the cursor of a page of the audit log")
        found = await self._session.transport.operator.journals.newest("audit", cursor or "", limit + 1)
        entries = tuple(_entry(entry, data) for entry, data in found[:limit])
        return AuditPage(entries, entries[-1].id if len(found) > limit else None)


def _entry(entry: str, data: bytes) -> AuditEntry:
    """Return an entry; one that cannot be read is shown as such: any client may have written it."""
    try:
        values = unpack(data, _LIMITS)
    except Undecodable:
        values = None
    texts = [str(value) for value in values[:_FIELDS]] if isinstance(values, list) else []
    who, act, target, why, outcome, ref, details = [*texts, *[""] * (_FIELDS - len(texts))]
    return AuditEntry(entry, int(entry.partition("-")[0]), who, act or "unreadable", target, why, outcome, ref, details)
