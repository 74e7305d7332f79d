"""`HealthServer`: `/healthz`, `/readyz` and `/metrics` of a worker.

    async with bus.worker() as worker, HealthServer(worker, port=8080): ...

It answers from a thread with an event loop of its own. A worker whose loop is stuck could not answer at all, so that nobody would know
whether it is stuck or only slow; the thread knows, because the loop owes it a sign of life, and can say where it is stuck.

- `/healthz` fails where the worker's event loop has not run for `stuck_after` seconds, and for no other reason: restarting a worker
  does not bring a server back.
- `/readyz` fails unless the worker consumes: it is started and not stopping, reads work, and the server answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from command_bus.bus import CommandBus
from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.telemetry.pages import Page, PageServer, text_page
from command_bus.worker.worker import Worker

__all__ = ["READ_WITHIN", "Exposing", "HealthServer", "unreadiness"]

T = TypeVar("T")

READ_WITHIN = 6.0
"""Seconds: a worker asks for work every two, so one that was silent for longer does not consume."""

_ANSWER_WITHIN = 1.0  # seconds for the server's answer to a probe
_BEAT = 0.25  # seconds between signs of life


@runtime_checkable
class Exposing(Protocol):
    """An observer that has metrics to show."""

    content_type: str

    async def refresh(self, bus: CommandBus) -> None:
        """Ask the server for what only it knows; in the bus's event loop."""
        ...

    def exposition(self) -> bytes:
        """The metrics as text; in any thread."""
        ...


async def unreadiness(worker: Worker) -> str | None:
    """Why a worker does not consume, or None if it does; asked in its event loop."""
    if worker.stopping():
        return "stopping"
    if worker.silent_for > READ_WITHIN:
        return "not started yet" if not worker.started else "it cannot read work: see its log"
    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            await worker.bus.session.transport.ping()
    except (CommandBusError, TimeoutError):
        return "the server does not answer"
    return None


class HealthServer:
    """Answers probes and scrapers for one worker, from a thread of its own.

    Args:
        worker: Made by `bus.worker()`, started or not yet. `/metrics` shows what its bus's `observer` has.
        host: Address to listen on; the default is every IPv4 address, because probes come from outside a container.
        port: 0 takes any free one; see the attribute.
        stuck_after: Seconds without a turn of the event loop after which the worker counts as stuck.

    Attributes:
        port: The one it listens on, once it is started.
    """

    def __init__(self, worker: Worker, *, host: str = "0.0.0.0", port: int = 0, stuck_after: float = 10.0) -> None:  # noqa: S104 - as the docstring says
        self.port = port
        self._worker = worker
        self._stuck_after = stuck_after
        self._pages = PageServer(self._page, host=host, port=port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._thread: threading.Thread | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self._owed_since: float | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; call it in the event loop that runs the worker.

        Raises:
            InvalidSettings: The port is taken, or not ours to take.
        """
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        begun: asyncio.Future[int] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(self._loop, begun), name="command_bus.health", daemon=True)
        self._thread.start()
        self.port = await begun

    async def stop(self) -> None:
        """Listen no more; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._own is not None and self._done is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it never listened
                self._own.call_soon_threadsafe(self._done.set)
        await asyncio.get_running_loop().run_in_executor(None, thread.join, 5.0)

    # In the thread.

    def _run(self, loop: asyncio.AbstractEventLoop, begun: asyncio.Future[int]) -> None:
        asyncio.run(self._answer_until_stopped(loop, begun))

    async def _answer_until_stopped(self, loop: asyncio.AbstractEventLoop, begun: asyncio.Future[int]) -> None:
        self._own, self._done = asyncio.get_running_loop(), asyncio.Event()
        try:
            port = await self._pages.start()
        except Exception as error:  # noqa: BLE001 - whoever starts us must learn of it
            loop.call_soon_threadsafe(begun.set_exception, error)
            return
        loop.call_soon_threadsafe(begun.set_result, port)
        watch = asyncio.create_task(self._watch(loop), name="command_bus.heartbeat")
        await self._done.wait()
        self._pages.stop()
        watch.cancel()

    async def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the worker's loop for a sign of life, again and again."""
        while not loop.is_closed():
            if self._owed_since is None:
                self._owed_since = mono()
                with contextlib.suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(self._beaten)
            await asyncio.sleep(_BEAT)

    def _beaten(self) -> None:
        self._owed_since = None

    @property
    def stuck_for(self) -> float:
        """Seconds that the worker's event loop has owed a sign of life."""
        since = self._owed_since
        return 0.0 if since is None else mono() - since

    async def _page(self, path: str) -> Page:
        match path:
            case "/healthz":
                return self._health()
            case "/readyz":
                return await self._readiness()
            case "/metrics":
                return await self._metrics()
            case _:
                return text_page(HTTPStatus.NOT_FOUND, "there are /healthz, /readyz and /metrics")

    def _health(self) -> Page:
        seconds = self.stuck_for
        if seconds < self._stuck_after:
            return text_page(HTTPStatus.OK, "live")
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way to see another thread's stack
        stack = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
        text = f"the event loop has been stuck for {seconds:.0f} s"
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"{text}, at:\n{stack}")

    async def _readiness(self) -> Page:
        try:
            reason = await self._asked(unreadiness(self._worker), 1.5 * _ANSWER_WITHIN)
        except TimeoutError:
            reason = "the event loop does not answer: a handler blocks it"
        if reason is None:
            return text_page(HTTPStatus.OK, "ready")
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    async def _metrics(self) -> Page:
        observer = self._worker.bus.session.observer
        if not isinstance(observer, Exposing):
            return text_page(
                HTTPStatus.NOT_FOUND,
                "no metrics: pip install 'command-bus[prometheus]', or give the bus an observer that has some",
            )
        with contextlib.suppress(TimeoutError):  # then the figures of the server are missing, and those of this process are there
            await self._asked(observer.refresh(self._worker.bus), 2 * _ANSWER_WITHIN)
        return Page(HTTPStatus.OK, observer.exposition(), observer.content_type)

    async def _asked(self, question: Coroutine[Any, Any, T], patience: float) -> T:
        """What the worker's loop answers.

        Raises:
            TimeoutError: Nothing, in time.
        """
        try:
            if self._loop is None or self._loop.is_closed():
                raise TimeoutError
            answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question, self._loop))
        except BaseException:
            question.close()
            raise
        async with asyncio.timeout(patience):
            return await answer
