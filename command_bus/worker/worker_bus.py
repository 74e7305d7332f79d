"""The bus that a worker works for, as the worker sees it: a `CommandBus`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from types import FrameType
from typing import Any, Protocol

from command_bus.clock import mono
from command_bus.errors import CommandBusError, InvalidSettings, QueueFull
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import HandlerBus
from command_bus.messages.handling_policy import HandlingPolicy
from command_bus.messages.message import Event, Message, MessageSpec, Query, is_internal
from command_bus.messages.unique import Unique
from command_bus.middleware import Middleware
from command_bus.sending.sender import Sender
from command_bus.serialization.json_schemas import fields_schema, reply_schema
from command_bus.session import Session
from command_bus.settings import BusSettings
from command_bus.tasks import end_tasks
from command_bus.transport.ports.schedules import DueSchedules
from command_bus.worker.limits import declare_limits


class WorkerSchedules(Protocol):
    """The part of a bus's `Schedules` that a worker needs."""

    @property
    def firing(self) -> DueSchedules:
        """Fires what is due."""
        raise NotImplementedError

    async def sync(self, registry: HandlerRegistry) -> Any:
        raise NotImplementedError


class WorkerBus(HandlerBus, Protocol):
    """The bus of a worker: a `CommandBus`."""

    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    session: Session
    settings: BusSettings

    @property
    def sender(self) -> Sender:
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
        raise NotImplementedError


def describe_commands(registry: HandlerRegistry, settings: BusSettings) -> dict[str, bytes]:
    """Return the JSON descriptions of a worker's commands by wire name: enough to send them without their classes."""
    described = {name: describe_message(kind, settings) for name, kind in announced_kinds(registry).items()}
    return {name: record for name, record in described.items() if record is not None}


def announced_kinds(registry: HandlerRegistry) -> dict[str, type[Message[Any]]]:
    """Return the classes that a worker announces, by wire name: of the commands that it handles, and of all events."""
    handled = [each for each in registry if not is_internal(each.spec.name) and each.declared is None]
    events = [kind for kind in registry.messages() if issubclass(kind, Event)]
    return {each.spec.name: each.message_type for each in handled} | {kind.spec().name: kind for kind in events}


def describe_message(kind: type[Message[Any]], settings: BusSettings) -> bytes | None:
    """Return the JSON description of a command; None if JSON Schema lacks the type of a field: its class is needed then."""
    spec = kind.spec()
    schema = fields_schema(kind)
    if schema is None:
        return None
    policy = settings.handling(spec)
    facts: dict[str, Any] = {"entity": spec.entity, "key": spec.key, "delivery": policy.delivery, "schema": schema}
    if spec.version > 1:
        facts["version"] = spec.version
    if spec.others:
        facts["also"] = spec.others
    if spec.across_shards:
        facts["across_shards"] = True
    if spec.durable:
        facts["durable"] = True
    facts |= describe_command(kind, spec, policy)
    return json.dumps(facts, sort_keys=True, default=str).encode()


def describe_command(kind: type[Message[Any]], spec: MessageSpec, policy: HandlingPolicy) -> dict[str, Any]:
    """Return kind, policies and the schema of the reply."""
    retry = policy.retry
    return {
        "kind": "event" if issubclass(kind, Event) else "query" if issubclass(kind, Query) else "command",
        "reply": reply_schema(spec.reply),
        "policy": {
            "attempts": retry.attempts,
            "delay": retry.delay,
            "delays": retry.delays,
            "backoff": "function" if callable(retry.backoff) else retry.backoff,
            "factor": retry.factor,
            "max_delay": retry.max_delay,
            "on_poison": spec.on_poison,
            "attempt_timeout": policy.attempt_timeout,
            "unique": None if spec.unique is None else _unique(spec.unique, spec.name),
            "priority": spec.priority,
            "fair_by": spec.fair_by,
        },
    }


def _unique(unique: Unique, name: str) -> dict[str, Any]:
    facts = asdict(unique)
    until = unique.until or ("settled" if unique.wins == "first" else "started")
    return {**facts, "key": unique.key or name, "until": until}


_log = logging.getLogger("command_bus.worker")
_EVERY = 60.0
"""Seconds between two looks for lost subscriptions."""
_PAUSE = 1.0
"""Seconds between two tries."""


class Declarations:
    """The declarations of one worker, written when it starts, and again if the server has forgotten it.

    Args:
        bus: Connects the worker to its server.
        settings: What the worker is set to.
        registry: Its handlers.
        stop: Stops the worker.
    """

    def __init__(
        self, bus: WorkerBus, settings: BusSettings, registry: HandlerRegistry, stop: Callable[[], Awaitable[object]]
    ) -> None:
        self._bus = bus
        self._stop = stop
        self._settings = settings
        self._registry = registry
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def write(self) -> None:
        """Write what is not there yet, or in an older revision.

        Raises:
            CommandBusError: As `Worker.start`.
        """
        self._loop = asyncio.get_running_loop()
        await self._describe()
        await self._bus.schedules.sync(self._registry)
        await self._bus.sender.subscriptions.declare(self._registry)
        if self._registry.subscriptions() and self._looking is None:
            self._looking = self._loop.create_task(self._look(), name="command_bus.subscriptions")
        await declare_limits(self._bus.session, self._settings, self._registry)

    def write_again(self) -> None:
        """Begin to write all of it again: the server has lost its data, or the namespace was deleted. Any thread may call this."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write_again(), name="command_bus.declarations")

    async def stop(self) -> None:
        """End what `write_again` and `write` have begun."""
        await end_tasks([each for each in (self._task, self._looking) if each is not None])

    async def _look(self) -> None:
        """Put subscriptions that the server has lost the records of."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                await self._bus.sender.subscriptions.declare(self._registry, only_missing=True)
            except CommandBusError as error:
                _log.warning("cannot look for lost subscriptions, trying again: %s", error)

    async def _write_again(self) -> None:
        _log.warning("the server has forgotten this worker: it lost its data, or the namespace was deleted. Declares all again")
        while True:
            try:
                await self._agree()
                return await self.write()
            except CommandBusError as error:
                _log.warning("cannot declare schedules and limits again yet: %s", error)
                await asyncio.sleep(_PAUSE)

    async def _agree(self) -> None:
        """Agree again on what all clients agree on. Where that is something else than this worker was opened with, it stops."""
        try:
            await self._bus.session.transport.agreements.open()
        except InvalidSettings as error:
            _log.error("this worker stops: %s", error)
            await self._stop()

    async def _describe(self) -> None:
        """Publish the commands' schemas for clients without the classes. If the server is out of memory, log it and go on."""
        try:
            await self._bus.session.transport.announcements.describe(describe_commands(self._registry, self._settings))
        except QueueFull as error:
            _log.warning("what commands look like could not be published, only Spark writers by wire name miss it: %s", error)


_DEBOUNCE = 0.05
_HANG_UP: int | None = getattr(signal, "SIGHUP", None)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask for an orderly end. SIGHUP is one, unless the process was told to ignore it, as `nohup` does."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if _HANG_UP is not None and signal.getsignal(_HANG_UP) is not signal.SIG_IGN:
        numbers.append(signal.Signals(_HANG_UP))
    return numbers


def is_hang_up(number: int) -> bool:
    """Return whether a signal is SIGHUP, which never ends a process at once: a terminal that closes sends it twice, systemd behind SIGTERM."""
    return number == _HANG_UP


def on_signals(asked: asyncio.Event) -> Callable[[], None]:
    """Let the stop signals ask for an orderly end, a second one end at once; return what ends that.

    With the last worker that asked for it, the handlers before are restored.
    """
    return _process.add(asyncio.get_running_loop(), asked)


class _ProcessSignals:
    """The handlers of this process. A signal is one for the whole process, so the workers share them.

    Not `loop.add_signal_handler`: it would wait for the loop, which a handler may be blocking.
    """

    def __init__(self) -> None:
        self._asked: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._before: dict[int, Any] = {}
        self._first = 0.0

    def add(self, loop: asyncio.AbstractEventLoop, asked: asyncio.Event) -> Callable[[], None]:
        """Ask this worker as well."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None  # the program stops its workers itself
        if not self._asked:
            self._first = 0.0
        self._asked[asked] = loop
        for number in stop_signals():
            before = signal.getsignal(number)
            if before != self._received:  # bound methods are equal, not identical
                self._before[number] = before or signal.SIG_DFL
                signal.signal(number, self._received)
        return lambda: self._remove(asked)

    def _remove(self, asked: asyncio.Event) -> None:
        self._asked.pop(asked, None)
        if self._asked:
            return
        before, self._before = self._before, {}
        for number, handler in before.items():
            if signal.getsignal(number) == self._received:  # else somebody has taken it over since
                signal.signal(number, handler)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self._first and mono() - self._first > _DEBOUNCE and not is_hang_up(number):
            os._exit(128 + number)
        self._first = self._first or mono()
        for asked, loop in self._asked.items():
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(asked.set)


_process = _ProcessSignals()


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Do something until it ends, or a signal asks for the end: a program that was started in the background ignores SIGINT otherwise."""
    asked, task = asyncio.Event(), asyncio.ensure_future(work)
    waiting, undo = asyncio.ensure_future(asked.wait()), on_signals(asked)
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        undo()
        await end_tasks([task, waiting])
