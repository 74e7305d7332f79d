"""Priorities on their way: checked, and as the option of an envelope."""

from __future__ import annotations

from typing import Any

from command_bus.errors import InvalidCommand
from command_bus.messages.policies import PRIORITIES, Priority

__all__ = ["checked_priority", "options_of"]


def options_of(priority: Priority) -> dict[str, Any] | None:
    """Return the options of an envelope; None if it has none."""
    return None if priority == "normal" else {"p": priority}


def checked_priority(priority: Priority) -> Priority:
    """Return a priority that is one.

    Raises:
        InvalidCommand: It is none.
    """
    if priority not in PRIORITIES:
        raise InvalidCommand(f"priority={priority!r}: 'high', 'normal' or 'low'")
    return priority
