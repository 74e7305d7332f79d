"""Data for JSON, the same from the command line (`--json`) and from the gateway; docs/cli.md lists the keys.

    durations   seconds, under names that end in `_seconds`
    times       ISO 8601 in UTC, under `at`, `since` and names that end in `_at`; null where the time is not known

Values from senders and applications (payloads, headers, replies, schemas, policies) are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

from command_bus.serialization.json_forms import json_form, key_form

_DURATIONS = frozenset(
    (
        "age",
        "delay",
        "free_in",
        "held_for",
        "jitter",
        "lease",
        "lease_age",
        "longest",
        "longest_running",
        "lost_for",
        "oldest_age",
        "per",
        "running_for",
        "schedule_overdue",
        "silent_for",
        "timeout",
    )
)
_VALUES = frozenset(("reply", "result"))  # of applications, which may be bytes
_TIME = "_ms"
_ARE_TIMES = ("at", "since")  # names that need no `_at`


def utc_time(ms: int) -> datetime | None:
    """Return a time that was stored in ms; None if it is before 1970 or after 9999, because clients may write any number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC) if ms >= 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def to_jsonable(value: Any) -> Any:
    """Return a value as data for JSON: dataclasses as objects with the keys above, without bytes."""
    if is_dataclass(value) and not isinstance(value, type):
        return _object([(each.name, getattr(value, each.name)) for each in fields(value)])
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)):
        return _object(zip(names, value, strict=True))
    if isinstance(value, Mapping):
        return {key_form(name): to_jsonable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(each) for each in value]
    return json_form(value)


def _object(pairs: Any) -> dict[str, Any]:
    return dict(_member(name, value) for name, value in pairs if name in _VALUES or not isinstance(value, bytes))


def _member(name: str, value: Any) -> tuple[str, Any]:
    if name in _DURATIONS:
        return f"{name}_seconds", value
    if name.endswith(_TIME):
        plainer = name.removesuffix(_TIME)
        known = plainer.endswith("_at") or plainer in _ARE_TIMES
        return plainer if known else f"{plainer}_at", _moment(value)
    return name, to_jsonable(value)


def _moment(ms: int | None) -> str | None:
    at = utc_time(ms) if ms else None
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


def trace_id_of(headers: Mapping[str, object] | None) -> str:
    """Return the trace id in a command's headers; empty if there is none."""
    found = _TRACEPARENT.fullmatch(str((headers or {}).get("traceparent", "")))
    return "" if found is None or not int(found[1], 16) else found[1]
