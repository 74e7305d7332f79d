"""`ScheduleMoves`: takes schedules along to another place, with how far they have come.

What is exported to be moved is marked as exported: from then on nothing of it fires where it was, also beside workers that live. So no tick fires
in both places. The ticks since then are due in the new place, by the rule `missed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from command_bus.errors import InvalidSettings, TransportUnavailable
from command_bus.scheduling.firing import ScheduleFiring
from command_bus.scheduling.info import EXPORTED, IMPORTED, ImportReport
from command_bus.scheduling.predecessors import ExportedSchedule, imported, line_of, read_line
from command_bus.scheduling.record import ScheduleRecord
from command_bus.scheduling.templates import BadTemplate, ForeignTemplate
from command_bus.session import Session

_TRIES = 100


@dataclass(eq=False)
class ScheduleMoves:
    """Exports and imports the schedules of a namespace, as `Schedules` does.

    Attributes:
        session: Connections and settings of the bus.
        firing: Changes records.
    """

    session: Session
    firing: ScheduleFiring

    async def export(self, name: str, *, stop: bool) -> str | None:
        """Return the line of a schedule; None: it is gone. See `Schedules.export`."""
        record = await self._exported(name, stop=stop)
        return None if record is None else line_of(record, self.session.settings.namespace)

    async def _exported(self, name: str, *, stop: bool) -> ScheduleRecord | None:
        """Return a schedule in which no firing is under way, marked as exported if it is to stop; None: it is gone."""
        for _ in range(_TRIES):
            record, raw = await self.firing.settled(name)
            if record is None or record.exported or not stop:
                return record
            now_ms = await self.session.transport.operator.entities.now_ms()
            if await self.firing.change(replace(record, exported=now_ms), raw, EXPORTED):
                return record
        raise contended(name)

    async def import_(self, lines: Iterable[str], *, replacing: bool) -> ImportReport:
        found = [read_line(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        records = [self._ours(each) for each in found]
        put: list[str] = []
        kept: list[str] = []
        for record in records:
            (put if await self._import(record, replacing=replacing) else kept).append(record.name)
        return ImportReport(tuple(put), tuple(kept))

    def _ours(self, exported: ExportedSchedule) -> ScheduleRecord:
        """Return an exported schedule with a command that is signed and encrypted for this namespace.

        Raises:
            InvalidSettings: Its command cannot be read here, or is not signed as it ought to be.
        """
        record = exported.record
        try:
            return replace(record, template=self.firing.templates.moved(record, exported.namespace))
        except (BadTemplate, ForeignTemplate) as error:
            raise InvalidSettings(f"schedule {record.name!r}: {error.message}") from None

    async def _import(self, line: ScheduleRecord, *, replacing: bool) -> bool:
        """Put an exported schedule; return whether something has changed."""
        for _ in range(_TRIES):
            record, raw = await self.firing.settled(line.name)
            after = imported(record, line, replacing=replacing)
            if after is None:
                return False
            if await self.firing.change(after, raw, IMPORTED):
                await self.firing.arm(after)
                return True
        raise contended(line.name)


def contended(name: str) -> TransportUnavailable:
    """Return the error of a schedule that others change all the time."""
    return TransportUnavailable(f"the schedule {name!r} changes all the time: try again", outcome_unknown=False)
