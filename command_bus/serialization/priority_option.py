"""The option `p` of an envelope: the priority of its command. Nothing travels for the normal one."""

from __future__ import annotations

from typing import Any, Final

PRIORITY: Final = "p"


def is_priority(value: Any) -> bool:
    """Return whether a value is a priority that travels."""
    return value in ("high", "low")
