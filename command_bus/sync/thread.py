"""A `CommandBus` on the event loop of a thread of its own, for blocking callers: what they want is run there, and they wait for it.

`BusThread` is one open bus. `ThreadedBus` is for processes that may fork: it opens a `BusThread` at the first use in each process.
Async iterators are read by a task there, a page ahead of the caller at most, so that he crosses from thread to thread once per page.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

from command_bus.bus import CommandBus
from command_bus.errors import BusClosed
from command_bus.messages.receipts import Receipt, SyncReceipt, kept_blocking
from command_bus.messages.reports import OnProgress, checked_listener
from command_bus.transport.ports.transport import Transport

R = TypeVar("R")
T = TypeVar("T")
_PAGE = 100
_FAREWELL = 1.0  # seconds in which those who wait learn how it ended, once the bus is closed

_OWN_LOOP = "SyncCommandBus is used inside its own event loop: use CommandBus there"


class BlockingCallWarning(UserWarning):
    """`SyncCommandBus` is used where an event loop runs, which is blocked while it waits: use `CommandBus` there."""


_warned = False


def warn_of_event_loop() -> None:
    """Warn, once per process, where an event loop runs: a blocking bus blocks the loop while it waits."""
    global _warned  # noqa: PLW0603 - it is the process's
    if _warned:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    _warned = True
    text = "SyncCommandBus blocks the event loop that runs here for as long as it waits: use `async with CommandBus(…) as bus` instead"
    warnings.warn(text, BlockingCallWarning, stacklevel=4)


class ThreadedBus:
    """The bus of this process, opened at its first use; a forked child has one of its own.

    Args:
        make: Makes a bus.
    """

    def __init__(self, make: Callable[[], CommandBus]) -> None:
        self._make = make
        self.renew_lock()
        _buses.add(self)
        self._running: BusThread | None = None
        self._closed = False

    @property
    def state(self) -> str:
        """For people."""
        return "closed" if self._closed else "not open" if self._running is None else "open"

    def open(self) -> BusThread:
        """Return the running bus.

        Raises:
            BusClosed: It was closed.
            CommandBusError: It cannot be opened.
        """
        warn_of_event_loop()
        running = self._running
        if running is not None and running.pid == os.getpid() and running.bus.is_open:
            return running
        with self._lock:
            if self._closed:
                raise BusClosed("the bus is closed")
            if self._running is None or self._running.pid != os.getpid():
                self._running = BusThread(self._make())
            elif not self._running.bus.is_open:  # a test has ended, for which it was connected to another server
                self._running.wait(self._running.bus.open())
            return self._running

    def renew_lock(self) -> None:
        """Renew the lock in a forked child: another thread of the parent may have held it."""
        self._lock = threading.Lock()

    def do(self, work: Callable[[CommandBus], Coroutine[Any, Any, R]]) -> R:
        """Run it with the bus, on the bus's loop, and give its result."""
        running = self.open()
        return running.wait(work(running.bus))

    def call(self, work: Callable[[CommandBus, OnProgress | None], Coroutine[Any, Any, R]], on_progress: OnProgress | None) -> R:
        """Run a call; its progress is told in the caller's thread."""
        running = self.open()
        if on_progress is None:
            return running.wait(work(running.bus, None))
        checked_listener(on_progress, plain=True)
        return running.wait_telling(partial(work, running.bus), on_progress)

    def receive(self, work: Callable[[CommandBus], Coroutine[Any, Any, Receipt[R]]]) -> SyncReceipt[R]:
        """Run a dispatch; its receipt asks for the result from where the caller is."""
        receipt = self.do(work)
        if type(receipt) is Receipt:
            return SyncReceipt(*receipt)
        return kept_blocking(receipt, lambda _, timeout: self.do(lambda _: receipt.result(timeout=timeout)))

    def each(self, items: Callable[[CommandBus], AsyncIterator[R]]) -> Generator[R]:
        """Yield what an async iterator of the bus gives, one by one."""
        running = self.open()
        return running.each(items(running.bus))

    def close(self) -> None:
        """Close the bus, if it is this process's. Idempotent."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            running.close()


_buses: WeakSet[ThreadedBus] = WeakSet()


def _renew_locks() -> None:
    for bus in list(_buses):
        bus.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class BusThread:
    """An open bus on the event loop of a daemon thread of its own; closed at exit. Not for use after a fork: compare `pid`.

    Args:
        bus: It is opened.

    Attributes:
        transport: The parts of the open bus; what they do is for `wait`.

    Raises:
        CommandBusError: It cannot be opened.
    """

    def __init__(self, bus: CommandBus) -> None:
        self.bus = bus
        self.pid = os.getpid()
        self._ending = False
        self._submitting = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="command_bus.sync", daemon=True)
        self._thread.start()
        try:
            self.transport = self.wait(self._open())
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Run it on the bus's loop and give its result; a caller that is interrupted cancels it.

        Raises:
            BusClosed: The bus is closed, or was while it ran.
        """
        return self._result(self._submit(work))

    def wait_telling(self, work: Callable[[Callable[[T], object]], Coroutine[Any, Any, R]], tell: Callable[[T], object]) -> R:
        """Run it as `wait` does; what it tells meanwhile is told here, in the caller's thread."""
        told = SimpleQueue[T | concurrent.futures.Future[R]]()
        future = self._submit(work(told.put))
        future.add_done_callback(told.put)
        try:
            while (each := told.get()) is not future:
                tell(cast("T", each))
        except BaseException:
            future.cancel()
            raise
        return self._result(future)

    def _result(self, future: concurrent.futures.Future[R]) -> R:
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if not self._ending:
                raise
            raise BusClosed("the bus was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def each(self, items: AsyncIterator[R]) -> Generator[R]:
        """Yield what the iterator gives, one by one. Closing the generator, or leaving it to the garbage collector, closes the iterator."""
        pages = _Pages(items)
        try:
            while page := self.wait(pages.take()):
                yield from page
        finally:
            self._leave(pages)

    def close(self) -> None:
        """Close the bus and end the thread; who still waits for something gets `BusClosed`. Idempotent."""
        atexit.unregister(self.close)
        if self.pid != os.getpid():
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError(_OWN_LOOP)
        with self._submitting:
            first, self._ending = not self._ending, True
        if first:
            try:
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
        self._thread.join()

    def _submit(self, work: Coroutine[Any, Any, R]) -> concurrent.futures.Future[R]:
        """Submit work, unless the thread is ending: it would never be answered."""
        try:
            if threading.current_thread() is self._thread:
                raise RuntimeError(_OWN_LOOP)
            if self.pid != os.getpid():
                raise RuntimeError("this was begun before a fork, and its bus stayed in the parent: begin it again in the child")
            with self._submitting:
                if self._ending:
                    raise BusClosed("the bus is closed")
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    async def _open(self) -> Transport:
        await self.bus.open()
        return self.bus.transport

    async def _end(self) -> None:
        try:
            await self.bus.close()
        finally:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            if rest:
                await asyncio.wait(rest, timeout=_FAREWELL)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    def _leave(self, pages: _Pages[Any]) -> None:
        """End the iteration. The garbage collector may do so in any thread, also in that of the bus, and in a forked child."""
        if self.pid != os.getpid():
            return
        if threading.current_thread() is self._thread:
            pages.stop()
            return
        with contextlib.suppress(BusClosed):
            self.wait(pages.end())


class _Pages(Generic[R]):
    """Reads an async iterator, a page ahead at most; lives on the loop of a bus."""

    def __init__(self, items: AsyncIterator[R]) -> None:
        self._items = items
        self._page: list[R] = []
        self._reading: asyncio.Task[None] | None = None
        self._come, self._room = asyncio.Event(), asyncio.Event()

    async def take(self) -> list[R]:
        """Return the items that have come, once there are some; nothing after the last. What the iterator raised is raised after its last item."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="command_bus.pages")
        if not self._page:
            await self._come.wait()
        page, self._page = self._page, []
        if not page:
            await self._reading
        self._room.set()
        if not self._reading.done():
            self._come.clear()
        return page

    def stop(self) -> None:
        """Read no further."""
        if self._reading is not None:
            self._reading.cancel()

    async def end(self) -> None:
        """Read no further; the iterator is closed when this returns."""
        self.stop()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async with _closing(self._items) as items:
                async for item in items:
                    self._page.append(item)
                    self._come.set()
                    if len(self._page) >= _PAGE:
                        self._room.clear()
                        await self._room.wait()
        finally:
            self._come.set()


@contextlib.asynccontextmanager
async def _closing(items: AsyncIterator[R]) -> AsyncGenerator[AsyncIterator[R]]:
    """Close it at the end, if it can be: a generator suspended at a `yield` would wait for the garbage collector."""
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
