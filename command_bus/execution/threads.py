"""One call of a synchronous handler in a thread: it cannot be stopped once it runs, but it can be kept from starting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["NeverStartedError", "ThreadJob"]


class NeverStartedError(BaseException):
    """Internal: the call was abandoned while it waited for a thread."""


class ThreadJob:
    """A call that may wait for its thread.

    Args:
        call: What to run.
        announce: Whether `begun` is to be set when it starts; costs a wake-up of the event loop.
    """

    __slots__ = ("_abandoned", "_announce", "_call", "_lock", "_loop", "_started", "begun")

    def __init__(self, call: Callable[[], Any], *, announce: bool) -> None:
        self._call = call
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._started = False
        self._abandoned = False
        self.begun: asyncio.Future[None] = self._loop.create_future()

    def run(self) -> tuple[Any, BaseException | None]:
        """In the thread: what the call gives, or what it raises, as values: a future cannot carry a StopIteration."""
        with self._lock:
            if self._abandoned:
                return None, NeverStartedError()
            self._started = True
        if self._announce:
            self._loop.call_soon_threadsafe(self._begin)
        try:
            return self._call(), None
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            return None, error

    def abandon(self) -> bool:
        """Keep it from starting; False if it has started."""
        with self._lock:
            self._abandoned = not self._started
            return self._abandoned

    def _begin(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
