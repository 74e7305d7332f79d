"""Errors of dispatches of many rows, as Spark makes them."""

from __future__ import annotations

from command_bus.errors.root import CommandBusError
from command_bus.errors.servers import QueueFull


class DispatchFenced(CommandBusError):
    """The dispatch (or this version of it) is not open: never opened, superseded, or forgotten. Nothing was added."""

    code = "dispatch_fenced"


class DispatchConflict(CommandBusError):
    """The dispatch id belongs to another writer; choose an id of its own."""

    code = "dispatch_conflict"


class DispatchStalled(QueueFull):
    """A limit refused the rest of a partition for longer than `max_wait`; what was accepted stays, and a re-run goes on from there.

    Attributes:
        accepted: Rows of this partition that are in their mailboxes.
        waited: Seconds that were waited in all.
    """

    code = "dispatch_stalled"

    def __init__(
        self, message: str = "", *, accepted: int = 0, waited: float = 0.0, retry_after: float = 1.0, limit: str = "total"
    ) -> None:
        super().__init__(message, retry_after=retry_after, limit=limit)
        self.accepted = accepted
        self.waited = waited


class InvalidRows(CommandBusError):
    """Rows that are no commands, where they are not allowed (`on_invalid="raise"`), or more of them than `max_rejects`.

    Attributes:
        count: How many were met, at least.
    """

    code = "invalid_rows"

    def __init__(self, message: str = "", *, count: int = 0) -> None:
        super().__init__(message)
        self.count = count


class NotReconciled(CommandBusError):
    """A reconciliation found commands that are missing, took effect twice or out of order.

    Attributes:
        counts: As `Reconciliation.counts`.
    """

    code = "not_reconciled"

    def __init__(self, message: str = "", *, counts: dict[str, int] | None = None) -> None:
        super().__init__(message)
        self.counts = counts or {}
