"""command_bus: commands and queries for Python, strictly in order per entity, on Redis Streams.

    class Deposit(Command[int], entity="account"):
        account_id: EntityId
        amount: int

    @handles(Deposit)
    async def deposit(command: Deposit) -> int: ...

    async with CommandBus() as bus, bus.worker():
        balance = await bus.call(Deposit(account_id="a-1", amount=5))
"""

from command_bus.bus import CommandBus
from command_bus.context import CommandContext
from command_bus.errors import (
    BadResult,
    BusClosed,
    CallCycle,
    CommandBusError,
    CommandCancelled,
    CommandExpired,
    CommandFailed,
    CommandInterrupted,
    CommandRejected,
    CommandTimeout,
    EntitiesStopped,
    IdempotencyConflict,
    IdleTimeout,
    InvalidCommand,
    InvalidSettings,
    MissingExtra,
    NoHandler,
    PayloadTooLarge,
    QueueFull,
    RegistrationError,
    Reject,
    TransportUnavailable,
    Unconfirmed,
    UnknownCommand,
    UnknownDeadLetter,
    UnsuitableServer,
)
from command_bus.messages import Command, EntityId, Message, Query
from command_bus.middleware import Middleware
from command_bus.outbound import Envelope
from command_bus.policies import EntityPolicy, Lanes, PerEntity, RetryPolicy, lanes, per_entity
from command_bus.receipts import BatchOutcome, BatchResult, DeadLetter, Receipt, Stats, WorkerInfo
from command_bus.registry import HandlerRegistry, handles
from command_bus.settings import BusSettings
from command_bus.sync import SyncCommandBus
from command_bus.worker import StopReport, Worker

__all__ = [
    "BadResult",
    "BatchOutcome",
    "BatchResult",
    "BusClosed",
    "BusSettings",
    "CallCycle",
    "Command",
    "CommandBus",
    "CommandBusError",
    "CommandCancelled",
    "CommandContext",
    "CommandExpired",
    "CommandFailed",
    "CommandInterrupted",
    "CommandRejected",
    "CommandTimeout",
    "DeadLetter",
    "EntitiesStopped",
    "EntityId",
    "EntityPolicy",
    "Envelope",
    "HandlerRegistry",
    "IdempotencyConflict",
    "IdleTimeout",
    "InvalidCommand",
    "InvalidSettings",
    "Lanes",
    "Message",
    "Middleware",
    "MissingExtra",
    "NoHandler",
    "PayloadTooLarge",
    "PerEntity",
    "Query",
    "QueueFull",
    "Receipt",
    "RegistrationError",
    "Reject",
    "RetryPolicy",
    "Stats",
    "StopReport",
    "SyncCommandBus",
    "TransportUnavailable",
    "Unconfirmed",
    "UnknownCommand",
    "UnknownDeadLetter",
    "UnsuitableServer",
    "Worker",
    "WorkerInfo",
    "handles",
    "lanes",
    "per_entity",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("command-bus")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
