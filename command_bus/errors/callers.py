"""Errors of a caller: what was sent, set or declared, or asked for, is wrong."""

from __future__ import annotations

from command_bus.errors.root import CommandBusError


class InvalidCommand(CommandBusError, ValueError):
    """The command cannot be sent or read: a field, the entity id or the envelope is not what its model or limits allow."""

    code = "invalid_command"


class PayloadTooLarge(InvalidCommand):
    """The encoded command is larger than `max_payload`; nothing was sent."""

    code = "payload_too_large"

    def __init__(self, message: str = "", *, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class InvalidSettings(CommandBusError, ValueError):
    """A setting, option or policy is out of range, or contradicts what the namespace was created with."""

    code = "invalid_settings"


class TooManyEntityTypes(InvalidSettings):
    """The namespace has as many entity types as `max_entity_types` lets it have, and this one is new. Nothing was sent.

    Types are few and fixed: of an order there is the type `order` and the id `o-7`. Many types are ids that were sent as types.

    Attributes:
        limit: How many there may be.
    """

    code = "too_many_entity_types"

    def __init__(self, message: str = "", *, limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit


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


class IdempotencyConflict(CommandBusError):
    """The command id was used before with another payload; choose a new id or send the same command."""

    code = "idempotency_conflict"

    def __init__(self, message: str = "", *, command_id: str = "") -> None:
        super().__init__(message)
        self.command_id = command_id


class CallCycle(CommandBusError):
    """A handler calls an entity that waits for it, its own say: neither would go on. The message has the path.

    It is not retried, and all whose calls are in the circle get it.
    """

    code = "call_cycle"


class BadStep(CommandBusError):
    """A durable handler did something that cannot be stored, or what is stored does not fit its code any more. It is not retried."""

    code = "bad_step"


class BadReport(CommandBusError, ValueError):
    """A handler reports a progress or an entry of the log that cannot be stored."""

    code = "bad_report"


class HandlerOver(CommandBusError, RuntimeError):
    """Something that only a running handler may do was asked for after its end, or the loss of its lease: nothing was done."""

    code = "handler_over"


class StepMismatch(BadStep):
    """A durable handler does something else under a name that is stored: another command, or a step with other arguments."""

    code = "step_mismatch"


class ResultNotKept(CommandBusError, LookupError):
    """A receipt was asked for a result that is not kept: dispatch with `keep_result=True`."""

    code = "result_not_kept"


class UnknownCommand(CommandBusError, LookupError):
    """No command with this id is known: it was never accepted, or its window is over."""

    code = "unknown_command"


class UnknownDeadLetter(CommandBusError, LookupError):
    """No dead letter with this id: it was replayed, discarded or purged before."""

    code = "unknown_dead_letter"


class UnknownLimit(CommandBusError, LookupError):
    """There is no limit of this name: neither does code declare it, nor did an operator put it."""

    code = "unknown_limit"


class UnknownSchedule(CommandBusError, LookupError):
    """There is no schedule of this name: it was never put, or was removed.

    Attributes:
        name: Its name.
    """

    code = "unknown_schedule"

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class UnknownWebhook(CommandBusError, LookupError):
    """There is no webhook of this name: it was never put, or was removed.

    Attributes:
        name: Its name.
    """

    code = "unknown_webhook"

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name
