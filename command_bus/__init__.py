"""command_bus: commands and queries for Python, strictly in order per entity, on Redis Streams.

    class Deposit(Command[int], entity="account"):
        account_id: EntityId
        amount: int

    @handles(Deposit)
    async def deposit(command: Deposit) -> int: ...

    async with CommandBus() as bus, bus.worker():
        balance = await bus.call(Deposit(account_id="a-1", amount=5))

The names are loaded when they are first asked for: `command-bus --help`, or a program that only needs an error class, does not
wait for pydantic and the client of the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from command_bus.admin.audit import AuditEntry, AuditPage, TrendPoint
    from command_bus.admin.command_status import CommandStatus
    from command_bus.admin.commands import DelayedCommand
    from command_bus.admin.entity import EntityScope
    from command_bus.admin.events import CommandEvent, EventPage
    from command_bus.admin.history import HistoryEntry, HistoryPage
    from command_bus.admin.info import (
        AbortReport,
        DeadLetter,
        EntityDetails,
        EntityInfo,
        EntityPage,
        EntityTypeInfo,
        LetterPage,
        Stats,
        UniqueKeyInfo,
        UniqueKeyPage,
        WaitingCommand,
    )
    from command_bus.admin.limits import LimitInfo
    from command_bus.admin.records import CommandRecord, CommandTree, LogEntry, StepInfo
    from command_bus.admin.search import FoundEntities
    from command_bus.admin.selection import BulkStep, SelectedCommand, Selection
    from command_bus.admin.states import StateEntry
    from command_bus.admin.subscriptions import SubscriptionInfo
    from command_bus.admin.views import StandingEntity, Standstill
    from command_bus.bus import CommandBus
    from command_bus.errors import (
        BadReport,
        BadResult,
        BadSignature,
        BadState,
        BadStep,
        BusClosed,
        CallCycle,
        CommandBusError,
        CommandCancelled,
        CommandExpired,
        CommandFailed,
        CommandInterrupted,
        CommandRejected,
        CommandTimeout,
        DispatchConflict,
        DispatchFenced,
        DispatchStalled,
        Draining,
        EntitiesStopped,
        EntityBusy,
        EntityTypeInUse,
        ExportGap,
        HandlerCrashed,
        HandlerOver,
        IdempotencyConflict,
        IdleTimeout,
        InboxConflict,
        InvalidCommand,
        InvalidRows,
        InvalidSettings,
        MayNotReplace,
        MissingExtra,
        NewerState,
        NoHandler,
        NotReconciled,
        OutboxUnavailable,
        PayloadTooLarge,
        PublishedInPart,
        QueueFull,
        RegistrationError,
        Reject,
        ResultNotKept,
        StateConflict,
        StepMismatch,
        TooManyEntityTypes,
        TransportUnavailable,
        Unconfirmed,
        UniqueKeyTaken,
        UnknownCommand,
        UnknownDeadLetter,
        UnknownLimit,
        UnknownSchedule,
        UnknownService,
        UnknownSubscription,
        UnknownWebhook,
        UnsuitableServer,
        WorkersLive,
        WrongEventLoop,
        WrongTransaction,
    )
    from command_bus.handlers.registry import HandlerRegistry, handles, handles_many, include, subscribes
    from command_bus.messages.context import CommandContext, ProcessContext
    from command_bus.messages.durable import Durable, DurableContext
    from command_bus.messages.event import Published, RawEvent
    from command_bus.messages.history import History
    from command_bus.messages.limits import Limit, Rate
    from command_bus.messages.message import Command, EntityId, EntityOf, Event, Message, Query
    from command_bus.messages.outgoing import Envelope, Outbound, OutgoingMessage, RawEnvelope
    from command_bus.messages.policies import EntityPolicy, Lanes, PerEntity, lanes, per_entity
    from command_bus.messages.receipts import BatchOutcome, BatchResult, Receipt, SyncReceipt
    from command_bus.messages.reports import ProgressInfo
    from command_bus.messages.retry_policy import RetryPolicy
    from command_bus.messages.schedule_specs import Cron, Every, cron, every
    from command_bus.messages.snooze import GiveUp, Snooze
    from command_bus.messages.state import EntityState
    from command_bus.messages.unique import Unique
    from command_bus.messages.upcasting import upcasts
    from command_bus.middleware import Middleware, Proceed, Sending
    from command_bus.observer import Observer
    from command_bus.scheduling.info import ScheduleInfo
    from command_bus.serialization.announcements import CommandInfo, WorkerInfo, WorkerStatus
    from command_bus.serialization.protection import PayloadCipher
    from command_bus.serialization.story import StoryStep
    from command_bus.settings import BusSettings
    from command_bus.sync.bus import SyncCommandBus
    from command_bus.sync.parts import SyncEntityScope
    from command_bus.sync.thread import BlockingCallWarning
    from command_bus.transport.records import AwaitedInfo, HoldInfo, Recount, SuspensionInfo
    from command_bus.worker.worker import StopReport, Worker

__all__ = [
    "AbortReport",
    "AuditEntry",
    "AuditPage",
    "AwaitedInfo",
    "BadReport",
    "BadResult",
    "BadSignature",
    "BadState",
    "BadStep",
    "BatchOutcome",
    "BatchResult",
    "BlockingCallWarning",
    "BulkStep",
    "BusClosed",
    "BusSettings",
    "CallCycle",
    "Command",
    "CommandBus",
    "CommandBusError",
    "CommandCancelled",
    "CommandContext",
    "CommandEvent",
    "CommandExpired",
    "CommandFailed",
    "CommandInfo",
    "CommandInterrupted",
    "CommandRecord",
    "CommandRejected",
    "CommandStatus",
    "CommandTimeout",
    "CommandTree",
    "Cron",
    "DeadLetter",
    "DelayedCommand",
    "DispatchConflict",
    "DispatchFenced",
    "DispatchStalled",
    "Draining",
    "Durable",
    "DurableContext",
    "EntitiesStopped",
    "EntityBusy",
    "EntityDetails",
    "EntityId",
    "EntityInfo",
    "EntityOf",
    "EntityPage",
    "EntityPolicy",
    "EntityScope",
    "EntityState",
    "EntityTypeInUse",
    "EntityTypeInfo",
    "Envelope",
    "Event",
    "EventPage",
    "Every",
    "ExportGap",
    "FoundEntities",
    "GiveUp",
    "HandlerCrashed",
    "HandlerOver",
    "HandlerRegistry",
    "History",
    "HistoryEntry",
    "HistoryPage",
    "HoldInfo",
    "IdempotencyConflict",
    "IdleTimeout",
    "InboxConflict",
    "InvalidCommand",
    "InvalidRows",
    "InvalidSettings",
    "Lanes",
    "LetterPage",
    "Limit",
    "LimitInfo",
    "LogEntry",
    "MayNotReplace",
    "Message",
    "Middleware",
    "MissingExtra",
    "NewerState",
    "NoHandler",
    "NotReconciled",
    "Observer",
    "Outbound",
    "OutboxUnavailable",
    "OutgoingMessage",
    "PayloadCipher",
    "PayloadTooLarge",
    "PerEntity",
    "Proceed",
    "ProcessContext",
    "ProgressInfo",
    "Published",
    "PublishedInPart",
    "Query",
    "QueueFull",
    "Rate",
    "RawEnvelope",
    "RawEvent",
    "Receipt",
    "Recount",
    "RegistrationError",
    "Reject",
    "ResultNotKept",
    "RetryPolicy",
    "ScheduleInfo",
    "SelectedCommand",
    "Selection",
    "Sending",
    "Snooze",
    "StandingEntity",
    "Standstill",
    "StateConflict",
    "StateEntry",
    "Stats",
    "StepInfo",
    "StepMismatch",
    "StopReport",
    "StoryStep",
    "SubscriptionInfo",
    "SuspensionInfo",
    "SyncCommandBus",
    "SyncEntityScope",
    "SyncReceipt",
    "TooManyEntityTypes",
    "TransportUnavailable",
    "TrendPoint",
    "Unconfirmed",
    "Unique",
    "UniqueKeyInfo",
    "UniqueKeyPage",
    "UniqueKeyTaken",
    "UnknownCommand",
    "UnknownDeadLetter",
    "UnknownLimit",
    "UnknownSchedule",
    "UnknownService",
    "UnknownSubscription",
    "UnknownWebhook",
    "UnsuitableServer",
    "WaitingCommand",
    "Worker",
    "WorkerInfo",
    "WorkerStatus",
    "WorkersLive",
    "WrongEventLoop",
    "WrongTransaction",
    "cron",
    "every",
    "handles",
    "handles_many",
    "include",
    "lanes",
    "per_entity",
    "subscribes",
    "upcasts",
]

# Where each name lives, as in the imports above (a test compares the two); what is not here is an error.
_HOMES = {
    "sync.parts": "SyncEntityScope",
    "bus": "CommandBus",
    "sync.thread": "BlockingCallWarning",
    "messages.context": "CommandContext ProcessContext",
    "messages.durable": "Durable DurableContext",
    "admin.search": "FoundEntities",
    "admin.audit": "AuditEntry AuditPage TrendPoint",
    "admin.states": "StateEntry",
    "admin.subscriptions": "SubscriptionInfo",
    "admin.views": "StandingEntity Standstill",
    "admin.command_status": "CommandStatus",
    "admin.commands": "DelayedCommand",
    "admin.records": "CommandRecord CommandTree LogEntry StepInfo",
    "admin.selection": "BulkStep SelectedCommand Selection",
    "admin.entity": "EntityScope",
    "admin.events": "CommandEvent EventPage",
    "admin.history": "HistoryEntry HistoryPage",
    "admin.info": "AbortReport DeadLetter EntityDetails EntityInfo EntityPage EntityTypeInfo LetterPage Stats UniqueKeyInfo"
    " UniqueKeyPage WaitingCommand",
    "transport.records": "AwaitedInfo HoldInfo Recount SuspensionInfo",
    "serialization.announcements": "CommandInfo WorkerInfo WorkerStatus",
    "admin.limits": "LimitInfo",
    "messages.history": "History",
    "messages.limits": "Limit Rate",
    "messages.message": "Command EntityId EntityOf Event Message Query",
    "messages.event": "Published RawEvent",
    "middleware": "Middleware Proceed Sending",
    "observer": "Observer",
    "messages.outgoing": "Envelope Outbound OutgoingMessage RawEnvelope",
    "messages.policies": "EntityPolicy Lanes PerEntity lanes per_entity",
    "messages.retry_policy": "RetryPolicy",
    "messages.receipts": "BatchOutcome BatchResult Receipt SyncReceipt",
    "messages.reports": "ProgressInfo",
    "messages.snooze": "GiveUp Snooze",
    "messages.state": "EntityState",
    "messages.unique": "Unique",
    "messages.upcasting": "upcasts",
    "handlers.registry": "HandlerRegistry handles handles_many include subscribes",
    "scheduling.info": "ScheduleInfo",
    "messages.schedule_specs": "Cron Every cron every",
    "serialization.protection": "PayloadCipher",
    "serialization.story": "StoryStep",
    "settings": "BusSettings",
    "sync.bus": "SyncCommandBus",
    "worker.worker": "StopReport Worker",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value  # asked for once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("command-bus")
    except PackageNotFoundError:  # run from a source folder or a zip
        return "0+unknown"
