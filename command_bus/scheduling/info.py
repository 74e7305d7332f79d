"""The values that `bus.schedules` returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from command_bus.clock import time_of
from command_bus.scheduling.record import ScheduleRecord, firing_id
from command_bus.serialization.envelope import WireEnvelope

ScheduleState = Literal["active", "firing", "paused", "ended", "exported"]


class SyncReport(NamedTuple):
    """The changes of a `sync`: the names of schedules that were put, and of those that were removed."""

    put: tuple[str, ...]
    removed: tuple[str, ...]


class ImportReport(NamedTuple):
    """The result of `import_`: the names of schedules that were put, and of those that stay as they were."""

    put: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """One schedule.

    Attributes:
        name: Its name.
        state: `active`; `firing`: a firing is under way, or was refused and is tried again; `paused`; `ended`: no tick is to come;
            `exported`: it is taken along to another place, and nothing of it fires here.
        command: Wire name of its command.
        entity_type: Type of the command; None without an entity.
        entity_id: Id of the command.
        times: Its times, for people.
        missed: What happens to ticks that no worker fired in time.
        overlap: What happens to a tick whose predecessor is not settled.
        jitter: Seconds by which firings are spread.
        start_ms: No tick before this; None: from the beginning.
        end_ms: No tick comes after this; None: for ever.
        max_runs: Ticks that fire in all.
        next_at_ms: The next tick; None: there is none.
        last_at_ms: The last tick that fired; None: none did.
        last_id: Command id of the last firing; None: there was none.
        last_outcome: `waiting`, or how the last firing was settled; None if that is not known (any more). Only `get` reads it.
        fired: Firings in all, those by hand included.
        runs: Ticks that fired.
        late: Firings more than a second behind their time.
        left_out: Ticks that no worker was there for, or that were too old.
        skipped: Ticks that were left out because of `overlap`.
        paused_ms: Since when it is paused; None: it is not.
        reason: Why.
        revision: Number in the code that declares it; 0 if none does.
        by_hand: Whether it was put by hand since.
    """

    name: str
    state: ScheduleState
    command: str
    entity_type: str | None
    entity_id: str | None
    times: str
    missed: str
    overlap: str
    jitter: float
    start_ms: int | None
    end_ms: int | None
    max_runs: int | None
    next_at_ms: int | None
    last_at_ms: int | None
    last_id: str | None
    last_outcome: str | None
    fired: int
    runs: int
    late: int
    left_out: int
    skipped: int
    paused_ms: int | None
    reason: str
    revision: int
    by_hand: bool

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.paused_ms is not None

    @property
    def next_at(self) -> datetime | None:
        """The next tick, in UTC."""
        return None if self.next_at_ms is None else time_of(self.next_at_ms)

    @property
    def last_at(self) -> datetime | None:
        """The last tick that fired, in UTC."""
        return None if self.last_at_ms is None else time_of(self.last_at_ms)


def info_of(record: ScheduleRecord, envelope: WireEnvelope | None, last_outcome: str | None = None) -> ScheduleInfo:
    """Return the public form of a record; without an envelope its command cannot be read."""
    policy = record.policy
    following = record.pinned or record.next
    return ScheduleInfo(
        name=record.name,
        state=_state(record),
        command="?" if envelope is None else envelope.name,
        entity_type=None if envelope is None else envelope.entity_type,
        entity_id=None if envelope is None else envelope.entity_id,
        times=str(record.spec),
        missed=policy.missed,
        overlap=policy.overlap,
        jitter=policy.jitter,
        start_ms=policy.start_ms,
        end_ms=policy.end_ms,
        max_runs=policy.max_runs,
        next_at_ms=None if record.paused or record.exported else following,
        last_at_ms=record.last or None,
        last_id=record.last_id or None,
        last_outcome=last_outcome,
        fired=record.fired,
        runs=record.runs,
        late=record.late,
        left_out=record.missed,
        skipped=record.skipped,
        paused_ms=record.paused or None,
        reason=record.reason,
        revision=record.revision,
        by_hand=record.by_hand,
    )


def _state(record: ScheduleRecord) -> ScheduleState:
    if record.exported:
        return "exported"
    return "firing" if record.pinned else "paused" if record.paused else "ended" if record.next is None else "active"


Told = tuple[str, ...]
"""Events of one schedule, in order."""

PUT: Told = ("put",)
REMOVED: Told = ("removed",)
EXPORTED: Told = ("exported",)
IMPORTED: Told = ("imported",)


def fired(before: ScheduleRecord, after: ScheduleRecord) -> Told:
    """Return the event of a firing that has happened: `late` if it counts as that, else `fired`."""
    if after.late > before.late:
        return (f"late {after.last_at - before.pinned_due} {after.last_id}",)
    return (f"fired 0 {after.last_id}",)


def missed(before: ScheduleRecord, after: ScheduleRecord) -> Told:
    """Return the event of ticks that are left out because no worker fired them in time; none if there are none."""
    count = after.missed - before.missed
    return (f"missed {count}",) if count > 0 else ()


def skipped(pinned: ScheduleRecord) -> Told:
    """Return the event of a tick that is left out because of `overlap`."""
    return (f"skipped 0 {pinned.pinned_id}",)


def paused(reason: str) -> Told:
    """Return the event of a pause."""
    return (f"paused {' '.join(reason.split())}",)


def altered(before: ScheduleRecord, after: ScheduleRecord) -> Told:
    """Return the events of a change by an operator: a pause, its end, a firing by hand."""
    if after.paused and not before.paused:
        return paused(after.reason)
    if (before.paused or before.exported) and not (after.paused or after.exported):
        return ("resumed",)
    if len(after.triggers) > len(before.triggers):
        return (f"triggered 0 {firing_id(after.name, after.triggers[-1], manual=True)}",)
    return ()
