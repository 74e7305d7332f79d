"""Outcomes of commands that did not complete, as their handlers raise them and their callers receive them."""

from __future__ import annotations

from typing import Any

from command_bus.errors.root import CommandBusError


class Reject(CommandBusError):
    """Raised *by a handler* to refuse a command for business reasons: settled, never retried; the caller gets `CommandRejected`.

    Args:
        message: For the caller.
        code: A stable business code such as `"insufficient_funds"`.
        details: Plain data for the caller (what MessagePack can carry).
    """

    def __init__(self, message: str = "", *, code: str = "rejected", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details or {}


class CommandOutcomeError(CommandBusError):
    """An answer to a caller whose command did not complete.

    Attributes:
        command_id: Which command; empty if it is not known.
    """

    def __init__(self, message: str = "", *, command_id: str = "") -> None:
        super().__init__(message)
        self.command_id = command_id


class CommandRejected(CommandOutcomeError):
    """The handler refused the command with `Reject`; `code` is the handler's business code, `details` its data."""

    code = "rejected"

    def __init__(
        self, message: str = "", *, code: str = "rejected", details: dict[str, Any] | None = None, command_id: str = ""
    ) -> None:
        super().__init__(message, command_id=command_id)
        self.code = code
        self.details = details or {}


class CommandFailed(CommandOutcomeError):
    """The handler failed and its retries are used up; the command is in the dead letters.

    Attributes:
        error_type: The exception's qualified name in the worker.
        error_message: Its text.
        attempts: How many times the command was started.
    """

    code = "failed"

    def __init__(
        self, message: str = "", *, error_type: str = "", error_message: str = "", attempts: int = 0, command_id: str = ""
    ) -> None:
        super().__init__(message, command_id=command_id)
        self.error_type = error_type
        self.error_message = error_message
        self.attempts = attempts


class CommandInterrupted(CommandOutcomeError):
    """An `at_most_once` command was started and its worker was lost or stopped: it may have run not at all, partly or fully."""

    code = "interrupted"


class CommandExpired(CommandOutcomeError):
    """The command was not started before its deadline passed; it did not run."""

    code = "expired"


class CommandCancelled(CommandOutcomeError):
    """The command was cancelled, purged or discarded before it ran to an end.

    With the code `begun` it had started, and may have run partly or fully; a durable command has undone what it did, and keeps the code
    `cancelled`. Or, with the code `superseded`, a later one with its unique key took its place.
    """

    code = "cancelled"

    def __init__(self, message: str = "", *, code: str = "cancelled", command_id: str = "") -> None:
        super().__init__(message, command_id=command_id)
        self.code = code


class NoHandler(CommandOutcomeError):
    """No worker of this namespace handles the command (after `unknown_grace`); it is in the dead letters and can be replayed."""

    code = "no_handler"


class BadResult(CommandOutcomeError):
    """The command completed, but its result cannot be sent or is not of the reply type."""

    code = "bad_result"


class BadSignature(CommandOutcomeError):
    """The worker refused the command: it is not signed, or not as its signature says; check `signing_keys` on both sides."""

    code = "bad_signature"


class CommandTimeout(CommandOutcomeError, TimeoutError):
    """No outcome within the timeout: it is unknown. `await bus.result(error.command_id)` reads it later.

    The other attributes say where the command was when the time was over. They have their defaults if the server could not be asked.

    Attributes:
        state: `no_worker`, `no_handler` (workers live, but none handles it), `delayed`, `paused`, `parked`, `retrying` (it waits for its next
            attempt), `snoozed` (its handler has put it off), `suspended` (durable: waits without a worker), `behind` (another
            command of its entity is before it), `busy` (all slots of the workers that handle it are taken), `waiting` (for a worker),
            `running`, `settled` (just now), `unknown` (the server does not know it any more); empty if not known.
        position: Its place in its entity's line, 1 is the head; None if not known.
        running_for: Seconds for which the head of that line has run; None if it does not run.
        attempt: How often the head was started.
        worker: Who runs the head, or None.
        retry_in: Seconds until the head is tried again; None if it waits for no retry.
        workers: Live workers of the namespace; None if not known.
        handlers: How many of them handle the command; None if not known.
    """

    code = "timeout"
    retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        command_id: str = "",
        state: str = "",
        position: int | None = None,
        running_for: float | None = None,
        attempt: int = 0,
        worker: str | None = None,
        retry_in: float | None = None,
        workers: int | None = None,
        handlers: int | None = None,
    ) -> None:
        super().__init__(message, command_id=command_id)
        self.state = state
        self.position = position
        self.running_for = running_for
        self.attempt = attempt
        self.worker = worker
        self.retry_in = retry_in
        self.workers = workers
        self.handlers = handlers
