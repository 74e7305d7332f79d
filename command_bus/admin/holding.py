"""The end of a pause, as an operator names it."""

from __future__ import annotations

from datetime import datetime

from command_bus.clock import duration_fault, milliseconds_of
from command_bus.errors import InvalidSettings
from command_bus.session import Session


async def pause_end(session: Session, until: datetime | float | None) -> int | None:
    """Return when a pause ends, in ms by the server's clock; None: never by itself.

    Raises:
        InvalidSettings: It is neither a moment with a time zone nor a number of seconds, or past.
    """
    if until is None:
        return None
    now_ms = await session.transport.operator.entities.now_ms()
    if isinstance(until, datetime):
        at = milliseconds_of("until", until)
        if at <= now_ms:
            raise InvalidSettings(f"until: a moment to come, not {until.isoformat()}")
        return at
    fault = duration_fault(until)
    if fault is not None:
        raise InvalidSettings(f"until {fault}, or a datetime with a time zone")
    return now_ms + max(1, int(until * 1000))
