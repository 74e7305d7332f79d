"""`SyncCommandBus`: the bus for blocking code: scripts, web views, threads, forked processes.

It runs a `CommandBus` on an event loop in a daemon thread of its own, started at first use. Threads may share it: their dispatches
leave together. After a fork the child starts a loop and connections of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar
from uuid import UUID

from command_bus.bus import CommandBus
from command_bus.errors import BusClosed
from command_bus.messages import Message
from command_bus.outbound import Envelope
from command_bus.receipts import BatchResult, Receipt, Stats

__all__ = ["BusThread", "SyncCommandBus"]

R = TypeVar("R")


class SyncCommandBus:
    """As `CommandBus`, blocking; the arguments are the same.

    with SyncCommandBus("redis://localhost") as bus:
        balance = bus.call(GetBalance(account_id="a-1"))
    """

    def __init__(self, url: str | None = None, **arguments: Any) -> None:
        self._arguments: dict[str, Any] = {"url": url, **arguments}
        CommandBus(**self._arguments)  # says now what is wrong with the settings
        self._lock = threading.Lock()
        self._running: BusThread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self._bus()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def dispatch(
        self,
        command: Message[Any],
        *,
        command_id: str | UUID | None = None,
        delay: float = 0.0,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> Receipt:
        """See `CommandBus.dispatch`."""
        running = self._bus()
        return running.wait(running.bus.dispatch(command, command_id=command_id, delay=delay, headers=headers, expires=expires))

    def dispatch_raw(
        self, entity_type: str | None, entity_id: str | int | None, name: str, payload: Mapping[str, Any], **options: Any
    ) -> Receipt:
        """See `CommandBus.dispatch_raw`."""
        running = self._bus()
        return running.wait(running.bus.dispatch_raw(entity_type, entity_id, name, payload, **options))

    def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any]]) -> BatchResult:
        """See `CommandBus.dispatch_batch`. The iterable is consumed in the bus's own thread."""
        running = self._bus()
        return running.wait(running.bus.dispatch_batch(commands))

    def call(
        self,
        command: Message[R],
        *,
        timeout: float | None = None,
        command_id: str | UUID | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> R:
        """See `CommandBus.call`."""
        running = self._bus()
        return running.wait(running.bus.call(command, timeout=timeout, command_id=command_id, headers=headers))

    def result(self, command_id: str | UUID, command_type: type[Message[Any]] | None = None, *, timeout: float = 0.0) -> Any:
        """See `CommandBus.result`."""
        running = self._bus()
        return running.wait(running.bus.result(command_id, command_type, timeout=timeout))

    def cancel(self, command_id: str | UUID) -> bool:
        """See `CommandBus.cancel`."""
        running = self._bus()
        return running.wait(running.bus.cancel(command_id))

    def stats(self) -> Stats:
        """See `CommandBus.stats`."""
        running = self._bus()
        return running.wait(running.bus.stats())

    def ping(self) -> float:
        """See `CommandBus.ping`."""
        running = self._bus()
        return running.wait(running.bus.ping())

    def wait_idle(self, timeout: float | None = None) -> None:
        """See `CommandBus.wait_idle`."""
        running = self._bus()
        running.wait(running.bus.wait_idle(timeout))

    def close(self) -> None:
        """Let accepted dispatches leave, close the connections, end the thread. Idempotent."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None and running.pid == os.getpid():
            running.close()

    def _bus(self) -> BusThread:
        with self._lock:
            if self._closed:
                raise BusClosed("the bus is closed")
            if self._running is None or self._running.pid != os.getpid():
                self._running = BusThread(CommandBus(**self._arguments))
            return self._running


class BusThread:
    """An open bus on the event loop of a daemon thread of its own; closed at exit. Not for use after a fork: compare `pid`."""

    def __init__(self, bus: CommandBus) -> None:
        self.bus = bus
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="command_bus.sync", daemon=True)
        self._thread.start()
        try:
            self.wait(bus.open())
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Run it on the bus's loop and give its result."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("SyncCommandBus is used inside its own event loop: use CommandBus there")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Close the bus and end the thread. Idempotent."""
        atexit.unregister(self.close)
        if self._loop.is_closed() or self.pid != os.getpid():
            return
        try:
            self.wait(self.bus.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
