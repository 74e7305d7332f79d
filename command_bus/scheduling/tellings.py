"""The events that the steps of schedules report, without I/O. The script that writes a record writes its events with it.

An event is a line: its kind, a space, and a detail. The detail of `fired`, `late`, `skipped` and `triggered` is a number and the command id of the
firing: for `late` the milliseconds behind its time, else 0. That of `missed` is the number of ticks, that of `paused` the reason.
"""

from __future__ import annotations

from command_bus.scheduling.record import ScheduleRecord, firing_id

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
