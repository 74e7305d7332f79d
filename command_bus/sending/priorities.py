"""Options of an envelope that a class can give: its priority, which is checked here, and its history."""

from __future__ import annotations

from typing import Any

from command_bus.errors import InvalidCommand
from command_bus.messages.history import History
from command_bus.messages.policies import PRIORITIES, Priority
from command_bus.serialization.history_option import HISTORY, history_option
from command_bus.spelling import shown


def options_of(priority: Priority, history: History | None = None) -> dict[str, Any] | None:
    """Return the options of an envelope; None if it has none."""
    options: dict[str, Any] = {} if priority == "normal" else {"p": priority}
    if history is not None:
        options[HISTORY] = history_option(history)
    return options or None


def checked_priority(priority: Priority) -> Priority:
    """Return a priority that is one.

    Raises:
        InvalidCommand: It is none.
    """
    if priority not in PRIORITIES:
        raise InvalidCommand(f"priority={shown(priority)}: 'high', 'normal' or 'low'")
    return priority
