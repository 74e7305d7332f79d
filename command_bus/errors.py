"""Everything that can go wrong, as one small tree of typed facts.

They are divided by whose fault they are: the caller's, the command's own outcome, the server's, those of a load, and what stops an operator.
Each carries a stable `code` for logs and other languages, says with `retryable` whether the same call may succeed later, keeps its values as
attributes and survives pickling, because Spark and process pools send errors between processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar


@dataclass(eq=False, repr=False)
class CommandBusError(Exception):
    """The root: `except CommandBusError` catches all that this library raises on purpose.

    Attributes:
        code: A stable identifier in snake case.
        retryable: Whether the same call may succeed later without a change.
        message: What happened and what to do about it.
    """

    message: str = ""
    code = "command_bus_error"
    retryable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__init__(self.message)


class InvalidCommand(CommandBusError, ValueError):
    """The command cannot be sent or read: a field, the entity id or the envelope is not what its model or limits allow."""

    code = "invalid_command"


@dataclass(eq=False, repr=False)
class PayloadTooLarge(InvalidCommand):
    """The encoded command is larger than `max_payload`; nothing was sent."""

    code = "payload_too_large"

    _: KW_ONLY
    size: int = 0
    limit: int = 0


class InvalidSettings(CommandBusError, ValueError):
    """A setting, option or policy is out of range, or contradicts what the namespace was created with."""

    code = "invalid_settings"


@dataclass(eq=False, repr=False)
class TooManyEntityTypes(InvalidSettings):
    """The namespace has as many entity types as `max_entity_types` lets it have, and this one is new. Nothing was sent.

    Types are few and fixed: of an order there is the type `order` and the id `o-7`. Many types are ids that were sent as types.

    Attributes:
        limit: How many there may be.
    """

    code = "too_many_entity_types"

    _: KW_ONLY
    limit: int = 0


class RegistrationError(CommandBusError, TypeError):
    """A message class or handler is declared wrongly: found when it is defined, not when the first command arrives."""

    code = "registration_error"


class MissingExtra(CommandBusError, ImportError):
    """An optional part is used whose packages are not installed; the message names the extra to install."""

    code = "missing_extra"


class BusClosed(CommandBusError):
    """The bus is closed, or was never opened: use `async with CommandBus(…) as bus`."""

    code = "bus_closed"


class WrongEventLoop(CommandBusError, RuntimeError):
    """The bus is open, but in another event loop, another thread's or that of the process before a fork: open one here."""

    code = "wrong_event_loop"


@dataclass(eq=False, repr=False)
class IdempotencyConflict(CommandBusError):
    """The command id was used before with another payload; choose a new id or send the same command."""

    code = "idempotency_conflict"

    _: KW_ONLY
    command_id: str = ""


@dataclass(eq=False, repr=False)
class InboxConflict(CommandBusError):
    """The inbox knows the command id with other fields: the effect of those is there, and that of these is not.

    Of a command that was replayed edited, after its effect had been committed. It parks its entity: cancel the command, or replay it under an id
    of its own.
    """

    code = "inbox_conflict"

    _: KW_ONLY
    command_id: str = ""


class WrongTransaction(CommandBusError, RuntimeError):
    """A session or connection is not in the state that its use needs: in a transaction already, say. The message says what to change."""

    code = "wrong_transaction"


class OutboxUnavailable(CommandBusError, RuntimeError):
    """The outbox of a database cannot be used: the database cannot be asked, has no table, or nothing numbers its rows; the message says which."""

    code = "outbox_unavailable"


class CallCycle(CommandBusError):
    """A handler calls an entity that waits for it, its own say: neither would go on. The message has the path.

    Or what it sends is the end of a chain of more than `max_hops` commands, of which none was delayed.

    It is not retried, and all whose calls are in the circle get it.
    """

    code = "call_cycle"


class BadStep(CommandBusError):
    """A durable handler did something that cannot be stored, or what is stored does not fit its code any more. It is not retried."""

    code = "bad_step"


class BadReport(CommandBusError, ValueError):
    """A handler reports a progress or an entry of the log that cannot be stored."""

    code = "bad_report"


class HandlerCrashed(CommandBusError, RuntimeError):
    """The process in which a handler ran has ended: by a signal, by itself, or with what is no exception of a handler. The attempt has failed."""

    code = "handler_crashed"


class HandlerOver(CommandBusError, RuntimeError):
    """Something that only a running handler may do was asked for after its end, or the loss of its lease: nothing was done."""

    code = "handler_over"


class BadState(CommandBusError):
    """The state of an entity cannot be stored or read: a value is not what its class allows, it is too large, or of a later version."""

    code = "bad_state"


class StateConflict(CommandBusError):
    """The state of the entity is not the expected one: it was changed since. Read it again."""

    code = "state_conflict"


class EntityBusy(CommandBusError):
    """A command of the entity runs or is suspended, and its handler has read the state: pause the entity, or send a command."""

    code = "entity_busy"
    retryable = True


class StepMismatch(BadStep):
    """A durable handler does something else under a name that is stored: another command, or a step with other arguments."""

    code = "step_mismatch"


class ResultNotKept(CommandBusError, LookupError):
    """A receipt was asked for a result that is not kept: dispatch with `keep_result=True`."""

    code = "result_not_kept"


class UnknownCommand(CommandBusError, LookupError):
    """No command with this id is known: it was never accepted, or its window is over."""

    code = "unknown_command"


class UnknownService(CommandBusError, LookupError):
    """No service of this name is configured; the message has those that are."""

    code = "unknown_service"


class UnknownDeadLetter(CommandBusError, LookupError):
    """No dead letter with this id: it was replayed, discarded or purged before."""

    code = "unknown_dead_letter"


class UnknownLimit(CommandBusError, LookupError):
    """There is no limit of this name: neither does code declare it, nor did an operator put it."""

    code = "unknown_limit"


@dataclass(eq=False, repr=False)
class UnknownSchedule(CommandBusError, LookupError):
    """There is no schedule of this name: it was never put, or was removed.

    Attributes:
        name: Its name.
    """

    code = "unknown_schedule"

    _: KW_ONLY
    name: str = ""


@dataclass(eq=False, repr=False)
class PublishedInPart(CommandBusError):
    """Some subscriptions have an event, others refused it, because a line is full or drained, say. Publish it again with its id: none gets it twice.

    Attributes:
        event_id: Its id.
        subscriptions: Names of those that have it.
        refused: The error of each that has not.
    """

    code = "published_in_part"
    retryable = True

    _: KW_ONLY
    event_id: str = ""
    subscriptions: tuple[str, ...] = ()
    refused: Mapping[str, CommandBusError] = field(default_factory=dict[str, CommandBusError])


@dataclass(eq=False, repr=False)
class UnknownSubscription(CommandBusError, LookupError):
    """There is no subscription of this name: it was never put, or was removed.

    Attributes:
        name: Its name.
    """

    code = "unknown_subscription"

    _: KW_ONLY
    name: str = ""


@dataclass(eq=False, repr=False)
class UnknownWebhook(CommandBusError, LookupError):
    """There is no webhook of this name: it was never put, or was removed.

    Attributes:
        name: Its name.
    """

    code = "unknown_webhook"

    _: KW_ONLY
    name: str = ""


@dataclass(eq=False, repr=False)
class TransportUnavailable(CommandBusError):
    """The server could not be reached in time.

    Attributes:
        outcome_unknown: True if the request may have been applied; sending the same command id again is safe.
    """

    code = "transport_unavailable"
    retryable = True

    _: KW_ONLY
    outcome_unknown: bool = False


class Unconfirmed(CommandBusError):
    """The server has the command, but fewer replicas than required confirmed it in time."""

    code = "unconfirmed"
    retryable = True


@dataclass(eq=False, repr=False)
class UnsuitableServer(CommandBusError):
    """The server may lose or corrupt queued work (too old, evicts keys, read-only …); the message says what to change.

    Attributes:
        outcome_unknown: True if the request may have been applied, in part or whole: the server answered with an error that is not known.
            Sending the same command id again is safe.
    """

    code = "unsuitable_server"

    _: KW_ONLY
    outcome_unknown: bool = False


@dataclass(eq=False, repr=False)
class QueueFull(CommandBusError):
    """A depth limit (of the entity, the whole namespace, or the server's memory) refuses the command; it was not accepted.

    Attributes:
        retry_after: Seconds after which a new try is sensible.
        limit: What refused it: `"entity"`, `"total"`, `"entities"` (`max_entities`), `"memory"`, `"drain"` (see `Draining`), or `"predecessor"`
            when an earlier command of the same entity in the same batch was refused and this one must not overtake it.
    """

    code = "queue_full"
    retryable = True

    _: KW_ONLY
    retry_after: float = 1.0
    limit: str = "entity"


@dataclass(eq=False, repr=False)
class Draining(QueueFull):
    """An operator drains the entity, its type or the whole bus: nothing new is accepted until it is resumed."""

    code = "draining"

    _: KW_ONLY
    limit: str = "drain"


@dataclass(eq=False, repr=False)
class UniqueKeyTaken(CommandBusError):
    """A call was not accepted: another command holds its unique key, and its reply goes to another caller.

    Attributes:
        other: The id of that command.
    """

    code = "unique_key_taken"
    retryable = True

    _: KW_ONLY
    other: str = ""


class MayNotReplace(CommandBusError):
    """This user of the server may not take commands out of line, as a unique key needs whose latest command wins; nothing was changed."""

    code = "may_not_replace"


class NewerState(CommandBusError):
    """An entity is in a state that only a later release of this library knows. It was left as it is; that release can change it."""

    code = "newer_state"


class DispatchFenced(CommandBusError):
    """The dispatch (or this version of it) is not open: never opened, superseded, or forgotten. Nothing was added."""

    code = "dispatch_fenced"


class DispatchConflict(CommandBusError):
    """The dispatch id belongs to another writer; choose an id of its own."""

    code = "dispatch_conflict"


@dataclass(eq=False, repr=False)
class DispatchStalled(QueueFull):
    """A limit refused the rest of a partition for longer than `max_wait`; what was accepted stays, and a re-run goes on from there.

    Attributes:
        accepted: Rows of this partition that are in their mailboxes.
        waited: Seconds that were waited in all.
    """

    code = "dispatch_stalled"

    _: KW_ONLY
    accepted: int = 0
    waited: float = 0.0
    limit: str = "total"


@dataclass(eq=False, repr=False)
class InvalidRows(CommandBusError):
    """Rows that are no commands, where they are not allowed (`on_invalid="raise"`), or more of them than `max_rejects`.

    Attributes:
        count: How many were met, at least.
    """

    code = "invalid_rows"

    _: KW_ONLY
    count: int = 0


class ExportGap(CommandBusError):
    """Entries were deleted before they were exported. What there was is exported, and the next run goes on behind it.

    Attributes:
        lost: How many.
    """

    code = "export_gap"

    def __init__(self, message: str = "", *, lost: int = 0) -> None:
        super().__init__(message)
        self.lost = lost


class NotReconciled(CommandBusError):
    """A reconciliation found commands that are missing, took effect twice or out of order.

    Attributes:
        counts: As `Reconciliation.counts`.
    """

    code = "not_reconciled"

    def __init__(self, message: str = "", *, counts: dict[str, int] | None = None) -> None:
        super().__init__(message)
        self.counts = counts or {}


@dataclass(eq=False, repr=False)
class EntitiesStopped(CommandBusError):
    """`wait_idle` cannot end by itself: entities are paused or parked.

    Attributes:
        entities: Their names, at most a hundred.
    """

    code = "entities_stopped"

    _: KW_ONLY
    entities: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class EntityTypeInUse(CommandBusError):
    """The record of an entity type cannot be taken back: something of it is stored; the message says what."""

    code = "entity_type_in_use"

    _: KW_ONLY
    entity_type: str = ""


@dataclass(eq=False, repr=False)
class WorkersLive(CommandBusError):
    """A namespace is not deleted as long as workers of it live.

    Attributes:
        workers: Their names.
    """

    code = "workers_live"
    retryable = True

    _: KW_ONLY
    workers: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class IdleTimeout(CommandBusError, TimeoutError):
    """`wait_idle` waited its time and there is still work; `depth` says how many commands."""

    code = "idle_timeout"
    retryable = True

    _: KW_ONLY
    depth: int = 0


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


@dataclass(eq=False, repr=False)
class CommandOutcomeError(CommandBusError):
    """An answer to a caller whose command did not complete.

    Attributes:
        command_id: The id of the command; empty if it is not known.
    """

    _: KW_ONLY
    command_id: str = ""


class CommandRejected(CommandOutcomeError):
    """The handler refused the command with `Reject`; `code` is the handler's business code, `details` its data."""

    code = "rejected"

    def __init__(
        self, message: str = "", *, code: str = "rejected", details: dict[str, Any] | None = None, command_id: str = ""
    ) -> None:
        super().__init__(message, command_id=command_id)
        self.code = code
        self.details = details or {}


@dataclass(eq=False, repr=False)
class CommandFailed(CommandOutcomeError):
    """The handler failed and its retries are used up; the command is in the dead letters.

    Attributes:
        error_type: The exception's qualified name in the worker.
        error_message: Its text.
        attempts: How many times the command was started.
    """

    code = "failed"

    _: KW_ONLY
    error_type: str = ""
    error_message: str = ""
    attempts: int = 0


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


@dataclass(eq=False, repr=False)
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
        attempt: The number of times the head was started.
        worker: Who runs the head, or None.
        retry_in: Seconds until the head is tried again; None if it waits for no retry.
        workers: Live workers of the namespace; None if not known.
        handlers: How many of them handle the command; None if not known.
    """

    code = "timeout"
    retryable = True

    _: KW_ONLY
    state: str = ""
    position: int | None = None
    running_for: float | None = None
    attempt: int = 0
    worker: str | None = None
    retry_in: float | None = None
    workers: int | None = None
    handlers: int | None = None
