"""Everything that can go wrong, as one small tree of typed facts. Import the errors from here: the modules below are their homes.

They are divided by whose fault they are: the caller's (`callers`), the server's (`servers`), the command's own outcome (`outcomes`), those
of a load (`loads`), and what stops an operator (`operators`). Each carries a stable `code` for logs and other languages, says with
`retryable` whether the same call may succeed later, keeps its values as attributes and survives pickling, because Spark and process pools
send errors between processes.
"""

from __future__ import annotations

from command_bus.errors.callers import (
    BadReport,
    BadStep,
    BusClosed,
    CallCycle,
    HandlerOver,
    IdempotencyConflict,
    InvalidCommand,
    InvalidSettings,
    MissingExtra,
    PayloadTooLarge,
    RegistrationError,
    ResultNotKept,
    StepMismatch,
    TooManyEntityTypes,
    UnknownCommand,
    UnknownDeadLetter,
    UnknownLimit,
    UnknownSchedule,
    UnknownWebhook,
    WrongEventLoop,
)
from command_bus.errors.loads import DispatchConflict, DispatchFenced, DispatchStalled, InvalidRows, NotReconciled
from command_bus.errors.operators import EntitiesStopped, EntityTypeInUse, IdleTimeout, WorkersLive
from command_bus.errors.outcomes import (
    BadResult,
    BadSignature,
    CommandCancelled,
    CommandExpired,
    CommandFailed,
    CommandInterrupted,
    CommandOutcomeError,
    CommandRejected,
    CommandTimeout,
    NoHandler,
    Reject,
)
from command_bus.errors.root import CommandBusError
from command_bus.errors.servers import (
    Draining,
    MayNotReplace,
    NewerState,
    QueueFull,
    TransportUnavailable,
    Unconfirmed,
    UniqueKeyTaken,
    UnsuitableServer,
)

__all__ = [
    "BadReport",
    "BadResult",
    "BadSignature",
    "BadStep",
    "BusClosed",
    "CallCycle",
    "CommandBusError",
    "CommandCancelled",
    "CommandExpired",
    "CommandFailed",
    "CommandInterrupted",
    "CommandOutcomeError",
    "CommandRejected",
    "CommandTimeout",
    "DispatchConflict",
    "DispatchFenced",
    "DispatchStalled",
    "Draining",
    "EntitiesStopped",
    "EntityTypeInUse",
    "HandlerOver",
    "IdempotencyConflict",
    "IdleTimeout",
    "InvalidCommand",
    "InvalidRows",
    "InvalidSettings",
    "MayNotReplace",
    "MissingExtra",
    "NewerState",
    "NoHandler",
    "NotReconciled",
    "PayloadTooLarge",
    "QueueFull",
    "RegistrationError",
    "Reject",
    "ResultNotKept",
    "StepMismatch",
    "TooManyEntityTypes",
    "TransportUnavailable",
    "Unconfirmed",
    "UniqueKeyTaken",
    "UnknownCommand",
    "UnknownDeadLetter",
    "UnknownLimit",
    "UnknownSchedule",
    "UnknownWebhook",
    "UnsuitableServer",
    "WorkersLive",
    "WrongEventLoop",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # by which logs, dead letters and pickles know them
