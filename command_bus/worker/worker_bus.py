"""The bus that a worker works for, as the worker sees it: a `CommandBus`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import HandlerBus
from command_bus.middleware import Middleware
from command_bus.sending.children import Children
from command_bus.session import Session
from command_bus.settings import BusSettings
from command_bus.transport.schedule_interfaces import DueSchedules
from command_bus.worker.executor import RunOutbox


class WorkerSchedules(Protocol):
    """The part of a bus's schedules that a worker needs."""

    @property
    def firing(self) -> DueSchedules:
        """Fires what is due."""
        raise NotImplementedError

    async def sync(self, registry: HandlerRegistry) -> Any:
        """See `Schedules.sync`."""
        raise NotImplementedError


class WorkerSender(Protocol):
    """The part of a bus's sender that a worker needs."""

    def outbox(self, command_id: str) -> RunOutbox:
        """Return what keeps the commands that one run of a handler sends."""
        raise NotImplementedError

    def children(self, command_id: str, mailbox: str) -> Children:
        """Return what makes the commands that one run of a durable handler calls."""
        raise NotImplementedError


class WorkerBus(HandlerBus, Protocol):
    """The bus of a worker: a `CommandBus`."""

    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    session: Session
    settings: BusSettings

    @property
    def sender(self) -> WorkerSender:
        """What handlers send follow-ups by."""
        raise NotImplementedError

    @property
    def schedules(self) -> WorkerSchedules:
        """The schedules that its workers fire."""
        raise NotImplementedError

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """The middleware around its handlers."""
        raise NotImplementedError

    async def stats(self) -> Any:
        """See `CommandBus.stats`."""
        raise NotImplementedError
