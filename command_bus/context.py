"""What a handler may know of its delivery, and what the bus must know of the handler that is running.

A `CommandContext` is built only for handlers that ask for it. `current_command` is set around every handler, so that a `call`
from inside it can be refused when it would wait for itself, and so that what it dispatches carries on its correlation.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from command_bus.clock import mono

__all__ = ["CommandContext", "Running", "current_command"]


@dataclass(slots=True, eq=False)
class CommandContext:
    """One delivery of one command, for the handler that asks for it with a parameter annotated `CommandContext`.

    Every value has a default, so that a unit test can call the handler as a plain function:
    `await deposit(Deposit(…), CommandContext(command_id="c-1"))`.

    Attributes:
        command_id: The id under which the command was accepted; the same at every attempt, so it serves as an idempotency key.
        name: The wire name of the message.
        entity_type: The entity's type, or None for a message that runs freely.
        entity_id: The entity's canonical id, or None.
        attempt: 1 for the first start; interrupted starts count.
        fence: Grows with every start for this entity: `UPDATE … SET fence = :fence WHERE fence <= :fence` refuses the effects of
            a handler that has lost its lease.
        deadline: The `time.monotonic()` value of this machine after which the caller no longer waits, or None.
        headers: What the sender attached. Read-only by convention.
        correlation_id: Shared by everything that one first command led to.
        causation_id: The id of the command whose handler sent this one, or None.
        accepted_ms: When the server accepted the command, in milliseconds since the epoch.
        worker: The name of the worker that runs it.
    """

    command_id: str = ""
    name: str = ""
    entity_type: str | None = None
    entity_id: str | None = None
    attempt: int = 1
    fence: int = 0
    deadline: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    correlation_id: str = ""
    causation_id: str | None = None
    accepted_ms: int = 0
    worker: str = ""
    _cancel_reason: str | None = field(default=None, init=False, repr=False)

    @property
    def entity(self) -> str | None:
        """The entity as `"account:a-17"`, or None for a message that runs freely."""
        return None if self.entity_type is None else f"{self.entity_type}:{self.entity_id}"

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer wanted: the lease is lost, the attempt timed out or the worker stops.

        Safe to read from any thread. A synchronous handler cannot be interrupted, so a long one asks now and then and returns.
        """
        return self._cancel_reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why the delivery was cancelled, or None."""
        return self._cancel_reason

    def cancel(self, reason: str) -> None:
        """Tell the handler to stop. For the worker that runs it; the first reason stays."""
        if self._cancel_reason is None:
            self._cancel_reason = reason

    def remaining(self) -> float | None:
        """Seconds until the caller no longer waits, 0.0 once it does not; None if it set no deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - mono())


@dataclass(slots=True, eq=False)
class Running:
    """The command whose handler runs in the current task or thread.

    Attributes:
        mailbox: The mailbox that it holds.
        command_id: Its id, the causation id of what it dispatches.
        correlation_id: Passed on to what it dispatches.
        name: Its wire name, for messages.
        attempt: Which start of it this is; for logs, as the next.
        worker: Who runs it.
    """

    mailbox: str
    command_id: str
    correlation_id: str
    name: str
    attempt: int = 1
    worker: str = ""


current_command: ContextVar[Running | None] = ContextVar("command_bus_current_command", default=None)
"""The command whose handler is running here, or None outside handlers."""
