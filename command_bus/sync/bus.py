"""`SyncCommandBus`: the bus for blocking code: scripts, web views, notebooks, threads, forked processes.

It runs a `CommandBus` on an event loop in a daemon thread of its own, started at first use. Threads may share it: their dispatches
leave together. After a fork the child starts a loop and connections of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from command_bus.admin.info import Stats
from command_bus.bus import BusArguments, CommandBus
from command_bus.messages.history import HistoryChoice
from command_bus.messages.message import Message
from command_bus.messages.options import CallOptions, DispatchOptions
from command_bus.messages.outgoing import Envelope, RawEnvelope
from command_bus.messages.policies import Priority
from command_bus.messages.receipts import BatchResult, SyncReceipt
from command_bus.messages.reports import OnProgress
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.unique import Unique
from command_bus.sync.parts import (
    SyncAudit,
    SyncCommands,
    SyncDeadLetters,
    SyncEntities,
    SyncEntityScope,
    SyncEvents,
    SyncFairness,
    SyncFleet,
    SyncHistory,
    SyncLimits,
    SyncSchedules,
    SyncServerState,
    SyncTrends,
    SyncViews,
)
from command_bus.sync.thread import ThreadedBus, warn_of_event_loop

R = TypeVar("R")


class SyncCommandBus:
    """A `CommandBus` for blocking code, without workers; the arguments are the same.

        with SyncCommandBus("redis://localhost") as bus:
            balance = bus.call(GetBalance(account_id="a-1"))

    Args:
        url: Of the server; without one `COMMAND_BUS_URL` or `REDIS_URL`, else the embedded development server.
        **arguments: See `CommandBus`.

    Attributes:
        settings: What holds.
        dead_letters: What was given up: list, inspect, replay, discard, purge it.
        entities: All entities, for operators: list, pause, resume, drain, purge them; `entities.of("account")` is one type.
        fairness: The shares of tenants: weights, and who waits.
        fleet: Who works here, and the commands that the workers announce.
        server: Whether the server is there, as the bus's own requests found out.
        events: What happens to commands of watched entity types: `for event in bus.events()`.
        commands: Single commands that wait: list and reschedule delayed ones.
        schedules: Commands that come at times: put, list, pause, trigger, remove their schedules.
        views: What stands still, and entities by a part of their ids.
        audit: What operators did, and why.
        trends: Figures of the last days.

    Raises:
        InvalidSettings: A setting is out of range.
    """

    def __init__(self, url: str | None = None, **arguments: Unpack[BusArguments]) -> None:
        warn_of_event_loop()
        self._plan = CommandBus(url, **arguments)  # is never opened; it says now what is wrong with the settings
        self.settings = self._plan.settings
        self._bus = ThreadedBus(lambda: CommandBus(url, **arguments))
        self.dead_letters = SyncDeadLetters(self._bus, lambda bus: bus.dead_letters)
        self.entities = SyncEntities(self._bus, lambda bus: bus.entities)
        self.fairness = SyncFairness(self._bus, lambda bus: bus.fairness)
        self.fleet = SyncFleet(self._bus, lambda bus: bus.fleet)
        self.events = SyncEvents(self._bus, lambda bus: bus.events)
        self.server = SyncServerState(self._bus, lambda bus: bus.server)
        self.commands = SyncCommands(self._bus, lambda bus: bus.commands)
        self.schedules = SyncSchedules(self._bus, lambda bus: bus.schedules)
        self.limits = SyncLimits(self._bus, lambda bus: bus.limits)
        self.views = SyncViews(self._bus, lambda bus: bus.views)
        self.audit = SyncAudit(self._bus, lambda bus: bus.audit)
        self.trends = SyncTrends(self._bus, lambda bus: bus.trends)
        self.history = SyncHistory(self._bus, lambda bus: bus.history)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """See `CommandBus.open`: connect now rather than at the first use."""
        self._bus.open()

    def close(self) -> None:
        """See `CommandBus.close`. Other threads that wait for something get `BusClosed`."""
        self._bus.close()

    def __repr__(self) -> str:
        return f"<SyncCommandBus {self.settings.namespace!r} {self._bus.state}>"

    @property
    def url(self) -> str:
        """See `CommandBus.url`."""
        return self._plan.url

    def dispatch(
        self,
        command: Message[R],
        *,
        command_id: str | UUID | None = None,
        delay: float = 0.0,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
        keep_result: bool = False,
        priority: Priority | None = None,
        retry: RetryPolicy | None = None,
        attempt_timeout: float | None = None,
        unique: Unique | None = None,
        history: HistoryChoice | None = None,
    ) -> SyncReceipt[R]:
        """See `CommandBus.dispatch`."""
        options = DispatchOptions(
            command_id=command_id, delay=delay, at=at, headers=headers, expires=expires, keep_result=keep_result,
            retry=retry, attempt_timeout=attempt_timeout, unique=unique, priority=priority, history=history,
        )  # fmt: skip
        return self._bus.receive(lambda bus: bus.dispatch(command, **options))

    def dispatch_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        *,
        version: int = 1,
        command_id: str | UUID | None = None,
        delay: float = 0.0,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
        keep_result: bool = False,
        priority: Priority | None = None,
        retry: RetryPolicy | None = None,
        attempt_timeout: float | None = None,
        unique: Unique | None = None,
        history: HistoryChoice | None = None,
    ) -> SyncReceipt[Any]:
        """See `CommandBus.dispatch_raw`."""
        options = DispatchOptions(
            command_id=command_id, delay=delay, at=at, headers=headers, expires=expires, keep_result=keep_result,
            retry=retry, attempt_timeout=attempt_timeout, unique=unique, priority=priority, history=history,
        )  # fmt: skip
        return self._bus.receive(lambda bus: bus.dispatch_raw(entity_type, entity_id, name, payload, version=version, **options))

    def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any] | RawEnvelope]) -> BatchResult:
        """See `CommandBus.dispatch_batch`. The iterable is consumed in the bus's own thread."""
        return self._bus.do(lambda bus: bus.dispatch_batch(commands))

    def call(
        self,
        command: Message[R],
        *,
        timeout: float | None = None,
        command_id: str | UUID | None = None,
        headers: Mapping[str, str] | None = None,
        priority: Priority | None = None,
        retry: RetryPolicy | None = None,
        attempt_timeout: float | None = None,
        history: HistoryChoice | None = None,
        on_progress: OnProgress | None = None,
    ) -> R:
        """See `CommandBus.call`. `on_progress` is a plain function, which is called in the thread that calls."""
        options = CallOptions(
            timeout=timeout,
            command_id=command_id,
            headers=headers,
            priority=priority,
            retry=retry,
            attempt_timeout=attempt_timeout,
            history=history,
        )
        return self._bus.call(lambda bus, hears: bus.call(command, **options, on_progress=hears), on_progress)

    def call_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        *,
        version: int = 1,
        timeout: float | None = None,
        command_id: str | UUID | None = None,
        headers: Mapping[str, str] | None = None,
        priority: Priority | None = None,
        retry: RetryPolicy | None = None,
        attempt_timeout: float | None = None,
        history: HistoryChoice | None = None,
    ) -> Any:
        """See `CommandBus.call_raw`."""
        options = CallOptions(
            timeout=timeout,
            command_id=command_id,
            headers=headers,
            priority=priority,
            retry=retry,
            attempt_timeout=attempt_timeout,
            history=history,
        )
        return self._bus.do(lambda bus: bus.call_raw(entity_type, entity_id, name, payload, version=version, **options))

    @overload
    def result(self, command_id: str | UUID, command_type: type[Message[R]], *, timeout: float = ...) -> R: ...
    @overload
    def result(self, command_id: str | UUID, command_type: None = ..., *, timeout: float = ...) -> Any: ...
    def result(
        self,
        command_id: str | UUID,
        command_type: type[Message[Any]] | None = None,
        *,
        timeout: float = 0.0,
    ) -> Any:
        """See `CommandBus.result`."""
        return self._bus.do(lambda bus: bus.result(command_id, command_type, timeout=timeout))

    def cancel(self, command_id: str | UUID, *, running: bool = False, reason: str = "", wait: float = 10.0) -> bool:
        """See `CommandBus.cancel`."""
        return self._bus.do(lambda bus: bus.cancel(command_id, running=running, reason=reason, wait=wait))

    def entity(self, entity_type: str, entity_id: str | int) -> SyncEntityScope:
        """See `CommandBus.entity`."""
        return SyncEntityScope(self._bus, entity_type, entity_id)

    def stats(self) -> Stats:
        """See `CommandBus.stats`."""
        return self._bus.do(lambda bus: bus.stats())

    def ping(self) -> float:
        """See `CommandBus.ping`."""
        return self._bus.do(lambda bus: bus.ping())

    def wait_idle(self, timeout: float | None = None) -> None:
        """See `CommandBus.wait_idle`."""
        self._bus.do(lambda bus: bus.wait_idle(timeout))
