"""`HealthServer`: `/healthz`, `/readyz` and `/metrics` of a worker, or of the relay of an outbox.

    async with bus.worker() as worker, HealthServer(worker, port=8080): ...

It answers from a thread with an event loop of its own. A worker whose loop is stuck could not answer at all, which looks like a worker that is
only slow. The thread can distinguish the two, because it expects a heartbeat from the worker's loop, and it reports where the loop is stuck.

- `/healthz` fails if the worker's event loop has not run for `stuck_after` seconds, and for no other reason: restarting a worker
  does not repair a server.
- `/readyz` fails unless the worker consumes: it is started and not stopping, reads work, and the server answers. A relay is ready while its looks
  succeed, also if another one works and this one follows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from command_bus.clock import mono
from command_bus.telemetry.pages import Page, PageServer, text_page
from command_bus.worker.worker import Worker
from command_bus.worker.worker_bus import WorkerBus

if TYPE_CHECKING:
    from command_bus.export import Export
    from command_bus.sql.relay import OutboxRelay

T = TypeVar("T")
_log = logging.getLogger("command_bus.health")

_ANSWER_WITHIN = 1.0  # seconds for the server's answer to a probe
_BEAT = 0.25  # seconds between heartbeats


@runtime_checkable
class Exposing(Protocol):
    """An observer that has metrics to expose."""

    content_type: str

    async def refresh(self, bus: WorkerBus) -> None:
        """Read the server's figures; called in the bus's event loop."""
        ...

    def exposition(self) -> bytes:
        """Return the metrics as text; called in any thread."""
        ...


class HealthServer:
    """A server of probes and metrics for one worker, relay or export, in a thread of its own.

    Args:
        worker: Made by `bus.worker()`, an `OutboxRelay` or an `Export`; started or not yet. `/metrics` exposes the metrics of its bus's `observer`.
        host: The address to listen on; the default is every IPv4 address, because probes come from outside a container.
        port: 0 takes any free one; the attribute has it.
        stuck_after: Seconds for which the event loop may not run until the worker counts as stuck.

    Attributes:
        port: Number that it listens at, once it is started.
    """

    def __init__(
        self,
        worker: Worker | OutboxRelay | Export,
        *,
        host: str = "0.0.0.0",  # noqa: S104 - as the docstring says
        port: int = 0,
        stuck_after: float = 10.0,
    ) -> None:
        self.port = port
        self._worker = worker
        self._stuck_after = stuck_after
        self._pages = PageServer(self._page, host=host, port=port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._thread: threading.Thread | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self._beat_due_since: float | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. Call it in the event loop that runs the worker.

        Raises:
            InvalidSettings: The port is taken, or not permitted.
        """
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        begun: asyncio.Future[int] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(self._loop, begun), name="command_bus.health", daemon=True)
        self._thread.start()
        self.port = await begun
        _log.info("health on port %d", self.port)

    async def stop(self) -> None:
        """Stop listening; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._own is not None and self._done is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it never listened
                self._own.call_soon_threadsafe(self._done.set)
        await asyncio.get_running_loop().run_in_executor(None, thread.join, 5.0)

    # In the thread.

    def _run(self, loop: asyncio.AbstractEventLoop, begun: asyncio.Future[int]) -> None:
        asyncio.run(self._answer_until_stopped(loop, begun))

    async def _answer_until_stopped(self, loop: asyncio.AbstractEventLoop, begun: asyncio.Future[int]) -> None:
        self._own, self._done = asyncio.get_running_loop(), asyncio.Event()
        try:
            port = await self._pages.start()
        except Exception as error:  # noqa: BLE001 - `start` raises it
            loop.call_soon_threadsafe(begun.set_exception, error)
            return
        loop.call_soon_threadsafe(begun.set_result, port)
        watch = asyncio.create_task(self._watch(loop), name="command_bus.heartbeat")
        await self._done.wait()
        self._pages.stop()
        watch.cancel()

    async def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Request heartbeats of the worker's loop; one that was closed never answers."""
        while True:
            if self._beat_due_since is None:
                self._beat_due_since = mono()
                with contextlib.suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(self._on_beat)
            await asyncio.sleep(_BEAT)

    def _on_beat(self) -> None:
        self._beat_due_since = None

    @property
    def stuck_for(self) -> float:
        """Seconds for which a heartbeat of the worker's event loop is overdue."""
        since = self._beat_due_since
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
            reason = await self._run_in_worker_loop(self._worker.why_not_ready(_ANSWER_WITHIN), 1.5 * _ANSWER_WITHIN)
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
                "no metrics: pip install 'command-bus[prometheus]', or give the bus an observer that has metrics",
            )
        with contextlib.suppress(TimeoutError):  # then only the figures of this process are exposed
            await self._run_in_worker_loop(observer.refresh(self._worker.bus), 2 * _ANSWER_WITHIN)
        return Page(HTTPStatus.OK, observer.exposition(), observer.content_type)

    async def _run_in_worker_loop(self, question: Coroutine[Any, Any, T], patience: float) -> T:
        """Run a coroutine in the worker's loop, and return its result.

        Raises:
            TimeoutError: It did not end in time.
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
