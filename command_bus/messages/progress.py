"""The progress of a command, as its handler reports it, and who wants to hear of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from command_bus.errors import InvalidCommand


@dataclass(frozen=True, slots=True)
class ProgressInfo:
    """The progress of a command.

    Attributes:
        share: Of its work, from 0 to 1, as its handler says; None if it says nothing (any more).
        note: What it does.
        at_ms: When it said so, by the server's clock, about.
        outcome: Once the command is settled: as `CommandStatus.outcome`. Empty before.
    """

    share: float | None = None
    note: str = ""
    at_ms: int | None = None
    outcome: str = ""


OnProgress = Callable[[ProgressInfo], object]
"""Hears of a call's progress. What it returns is awaited, if it can be; of a `SyncCommandBus` it is a plain function."""


def checked_listener(listener: object, *, plain: bool = False) -> None:
    """Check what is to hear of a call's progress.

    Args:
        listener: What was given.
        plain: Whether nothing is there to await it.

    Raises:
        InvalidCommand: It cannot be called, or not from here.
    """
    if not callable(listener):
        raise InvalidCommand(f"on_progress takes a function of one ProgressInfo, not {type(listener).__name__}")
    if plain and (inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None))):  # noqa: B004
        raise InvalidCommand("on_progress is a coroutine function, which a SyncCommandBus cannot await: give a plain function")
