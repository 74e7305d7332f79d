"""Schedules as lines of text: what `export` writes and `import_` reads.

A line is a JSON object with everything that is stored of one schedule: times, rules, the stored command, and how far it has come. The command is
the envelope as it is stored, so what is encrypted stays so.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from command_bus.errors import InvalidSettings
from command_bus.messages.schedule_declarations import checked_name
from command_bus.messages.schedule_specs import cron, every
from command_bus.scheduling.record import STATE, ScheduleRecord
from command_bus.serialization.json_forms import read_json
from command_bus.serialization.stored_fields import stored_fields

_FORMAT = 1
_RULES = ("missed", "catch_up", "overlap", "jitter", "start_ms", "end_ms", "max_runs", "immediately")


class ExportedSchedule(NamedTuple):
    """A line that was read.

    Attributes:
        namespace: The place where it was exported.
        record: The schedule.
    """

    namespace: str
    record: ScheduleRecord


def line_of(record: ScheduleRecord, namespace: str) -> str:
    """Return the line of a schedule in which no firing is under way."""
    packed = {
        "format": _FORMAT,
        "namespace": namespace,
        "name": record.name,
        "times": record.spec.pack(),
        "rules": dict(zip(_RULES, record.rules, strict=True)),
        "state": replace(record, exported=0).state,
        "template": b64encode(record.template).decode(),
    }
    return json.dumps(packed, ensure_ascii=False)


def read_line(number: int, line: str) -> ExportedSchedule:
    """Read a line.

    Raises:
        InvalidSettings: It is no line of a schedule, or is of a later release. The message names its number and what is wrong.
        MissingExtra: It has a cron pattern, and the extra `schedules` is not installed.
    """
    try:
        found = read_json(line)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise InvalidSettings(f"is not of format {_FORMAT}: export it with this release")
        return ExportedSchedule(_text(found, "namespace"), _record(found))
    except InvalidSettings as error:
        raise InvalidSettings(f"line {number}: {error.message}") from None
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InvalidSettings(f"line {number}: is no exported schedule ({type(error).__name__}: {error})") from None


def _record(found: Mapping[str, Any]) -> ScheduleRecord:
    state, rules = found["state"], found["rules"]
    values = stored_fields(ScheduleRecord, state, STATE)
    if unknown := set(state) - set(values):
        raise InvalidSettings(f"state: {', '.join(sorted(unknown))}: is no part of it")
    kind, *rest = found["times"]
    spec = every(rest[0] / 1000) if kind == "e" else cron(*rest)
    name = checked_name(found["name"])
    draft = ScheduleRecord.of_rules(
        name, b64decode(_text(found, "template"), validate=True), spec, [rules[each] for each in _RULES], values
    )
    if draft.pinned or draft.exported:
        raise InvalidSettings("state: a firing is under way")
    return draft


def _text(found: Mapping[str, Any], name: str) -> str:
    if not isinstance(found.get(name), str):
        raise InvalidSettings(f"{name}: a text, not {found.get(name)!r}")
    return str(found[name])


def imported(now: ScheduleRecord | None, line: ScheduleRecord, *, replacing: bool) -> ScheduleRecord | None:
    """Return what a stored schedule becomes by an import; None: it stays as it is.

    Args:
        now: As it is stored, without a firing under way; None: there is none of this name.
        line: As it was exported.
        replacing: Whether another schedule of this name is replaced.
    """
    if now is None:
        return line
    if now.incarnation == line.incarnation:
        return replace(now, exported=0) if now.exported and now.seq == line.seq else None
    return _continued(line, now) if replacing else None


def _continued(line: ScheduleRecord, other: ScheduleRecord) -> ScheduleRecord:
    """Return an exported schedule in the place of another of its name: what that has fired is not fired again, and counts."""
    after = replace(line, fired=line.fired + other.fired, runs=line.runs + other.runs)
    most = line.policy.max_runs
    if most is not None and after.runs >= most:
        return replace(after, next=None)
    if line.next is None or other.last < line.next:
        return after
    after = replace(after, last=other.last, last_id=other.last_id, floor=max(line.floor, other.last), chain=0, catching_up=False)
    return replace(after, next=after.after(other.last))
