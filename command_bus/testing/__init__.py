"""Tools for tests of programs that use the bus (extra `testing`); the names are loaded when they are first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from command_bus.testing.bus import TestBus
    from command_bus.testing.certificate import crash_certificate
    from command_bus.testing.crashes import CRASH_POINTS, CrashPoint
    from command_bus.testing.records import Handled, Sent
    from command_bus.testing.verdict import Verdict

__all__ = ["CRASH_POINTS", "CrashPoint", "Handled", "Sent", "TestBus", "Verdict", "crash_certificate"]

_HOMES = {
    "CRASH_POINTS": "crashes",
    "CrashPoint": "crashes",
    "Handled": "records",
    "Sent": "records",
    "TestBus": "bus",
    "Verdict": "verdict",
    "crash_certificate": "certificate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
