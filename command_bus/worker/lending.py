"""`Lending`: the slot of a running handler, free for others while the handler waits for the bus.

Without it, handlers that call other entities could fill all slots of a worker, and then wait for commands that only this worker
would run.
"""

from __future__ import annotations

import asyncio
import contextlib

from command_bus.transport.slots import Slots
from command_bus.worker.threads import HandlerThreads

_LEND_LATER = 1.0
"""Seconds after which a handler that kept its slot tries again to lend it."""


class Lending:
    """Lends one handler's slot from when it begins to wait until it waits for nothing: `async with lending: …` around each wait.

    A handler may wait for several things at a time, and from another event loop than its worker's, as one in a thread does.

    Args:
        slots: Those of the worker.
        threads: Lend one as well, for a handler that runs in a thread.
        beyond: Whether to lend the slot although `slots` allows no more.
        loop: The worker's event loop.
    """

    __slots__ = ("_beyond", "_ended", "_is_lent", "_loop", "_slots", "_threads", "_turn", "_waits")

    def __init__(self, slots: Slots, threads: HandlerThreads | None, *, beyond: bool, loop: asyncio.AbstractEventLoop) -> None:
        self._slots = slots
        self._threads = threads
        self._beyond = beyond
        self._loop = loop
        self._waits = 0
        self._is_lent = False
        self._turn: asyncio.Future[None] | None = None
        self._ended = False

    async def __aenter__(self) -> None:
        if asyncio.get_running_loop() is self._loop:
            self._begin()
            return
        with contextlib.suppress(RuntimeError):  # the worker's loop is closed: the handler has outlived it
            self._loop.call_soon_threadsafe(self._begin)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Take the slot back. A handler that is cancelled, by its timeout say, does not wait for one: it is to end."""
        if self._ended:
            return
        finish = self._finish(at_once=kind is not None and issubclass(kind, asyncio.CancelledError))
        if asyncio.get_running_loop() is self._loop:
            await finish
            return
        try:
            future = asyncio.run_coroutine_threadsafe(finish, self._loop)
        except RuntimeError:  # as above
            finish.close()
            return
        await asyncio.wrap_future(future)

    def end(self) -> None:
        """End it with the handler: what its tasks or its thread still wait for concerns its slot no more."""
        self._ended = True
        if self._turn is not None and not self._slots.withdraw(self._turn):
            self._is_back()
        if self._is_lent:
            self._slots.take_back_now()
            self._is_back()

    def _begin(self) -> None:
        self._waits += 1
        if self._ended or self._waits > 1:
            return
        if self._turn is not None:  # another task of the handler was about to go on
            if self._slots.withdraw(self._turn):
                self._turn = None
                return
            self._is_back()
        self._lend(beyond=self._beyond)

    def _lend(self, *, beyond: bool) -> None:
        self._is_lent = self._slots.lend(beyond=beyond)
        if not self._is_lent:
            self._loop.call_later(_LEND_LATER, self._lend_later)
        elif self._threads is not None:
            self._threads.lend()

    def _lend_later(self) -> None:
        """Lend the slot of a handler that still waits, if that is possible by now, or if no other handler can go on."""
        if self._waits and not self._is_lent and not self._ended:
            self._lend(beyond=self._slots.admits_caller())

    async def _finish(self, *, at_once: bool) -> None:
        self._waits -= 1
        if self._ended or self._waits or not self._is_lent:
            return
        if at_once:
            self._slots.take_back_now()
            self._is_back()
            return
        turn = self._turn = self._slots.take_back()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled() and self._turn is turn:
                self._slots.take_back_now()
            raise
        finally:
            if self._turn is turn:  # else it was withdrawn, and the slot is still lent
                self._is_back()

    def _is_back(self) -> None:
        self._turn, self._is_lent = None, False
        if self._threads is not None:
            self._threads.take_back()
