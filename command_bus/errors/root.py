"""The root of all errors."""

from __future__ import annotations

from typing import ClassVar


class CommandBusError(Exception):
    """The root: `except CommandBusError` catches all that this library raises on purpose.

    Attributes:
        code: A stable identifier in snake case.
        retryable: Whether the same call may succeed later without a change.
        message: What happened and what to do about it.
    """

    code: str = "command_bus_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message
