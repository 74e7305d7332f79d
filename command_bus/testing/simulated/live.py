"""The simulated server for running event loops: its clients, and simulated processes that can be killed at any moment.

Loops of several threads may share it: an application under `TestClient` and a `SyncCommandBus` have a loop each. A request is executed
in the thread that sends it. Only the workers of one loop read at a time, because other loops may be blocked: a test that waits in a
blocking call blocks its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, cast

from redis import Redis as SyncRedis
from redis import exceptions as redis_errors
from redis.asyncio import Redis

from command_bus.testing.clock import TaskLeaseKeeper
from command_bus.testing.simulated.server import Link, Reply, Server
from command_bus.testing.simulated.store import Args
from command_bus.transport.redis.connection.clients import PipeRedis
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.connection.pipe import Requests


class Wire(NamedTuple):
    """The way of one client's requests to a server.

    Attributes:
        exchange: Sends requests that travel together; returns their answers.
        close: Closes the connections; by default none stays open between requests.
    """

    exchange: Callable[[list[Args]], Awaitable[list[Any]]]
    close: Callable[[], object] = lambda: None


def _encoded(request: tuple[Any, ...]) -> list[bytes]:
    return [arg if type(arg) is bytes else arg.encode() if type(arg) is str else str(arg).encode() for arg in request]


def _raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class WirePipe(Requests):
    """Implements `Requests` for scripts and blocking reads: each request travels alone."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    async def request(self, *request: Any) -> Any:
        (answer,) = await self._wire.exchange([_encoded(request)])
        return _raised(answer)

    async def close(self) -> None:
        await super().close()
        self._wire.close()


class _PipelinePipe(WirePipe):
    """Implements `Requests` for one pipeline, whose requests begin in the same turn of the loop: they travel together."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._requests: list[list[bytes]] = []
        self._answers: asyncio.Future[list[Any]]

    async def request(self, *request: Any) -> Any:
        """Wait for the other requests, and send all, if this is the first."""
        index = len(self._requests)
        self._requests.append(_encoded(request))
        if index == 0:
            answers = self._answers = asyncio.get_running_loop().create_future()
            await asyncio.sleep(0)
            requests, self._requests = self._requests, []
            try:
                answers.set_result(await self._wire.exchange(requests))
            except Exception as error:  # noqa: BLE001 - raised below, by every request
                answers.set_exception(error)
            finally:
                answers.cancel()  # if this request was cancelled; else it is done
        else:
            answers = self._answers
        return _raised((await answers)[index])


class WireRedis(PipeRedis):
    """A client that owns its wire."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(WirePipe(wire))
        self._wire = wire

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:  # noqa: FBT002 - redis-py's signature
        """Return a pipeline whose requests travel together; never a transaction."""
        return PipeRedis(_PipelinePipe(self._wire)).pipeline()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """See redis-py."""
        self._wire.close()


class KilledError(BaseException):
    """Internal: ends what runs in a process that was killed. No handler of errors is for it."""


class Witness:
    """An onlooker of worker processes, who may kill one at any of these moments."""

    def sends(self, process: Process, requests: Sequence[Args]) -> None:
        """Receive requests that are about to travel together."""

    def has_answer(self, process: Process, requests: Sequence[Args]) -> None:
        """Be told that they were executed, before the process learns it."""

    def resumes(self, process: Process) -> None:
        """Be told that an attempt is about to go on, from its beginning or a wait."""

    def rests(self, process: Process) -> None:
        """Be told that an attempt waits or has ended."""

    async def watched(self, process: Process, work: Awaitable[Any]) -> Any:
        """Await an attempt; what runs of it once its process is dead gets a `KilledError`, not what a live process would get.

        It ends by its cancellation, with which the clean-up of its worker begins: a dead process makes nothing of an error.
        """
        steps = _Steps(self, process, work)
        try:
            return await steps
        except KilledError:
            if steps.woken is None:
                await asyncio.Event().wait()
            raise steps.woken or AssertionError from None


class _Steps:
    """The steps of an attempt, from one wait to the next."""

    def __init__(self, witness: Witness, process: Process, work: Awaitable[Any]) -> None:
        self._witness = witness
        self._process = process
        self._work = work
        self.woken: BaseException | None = None
        """What would have been raised in it if its process had lived."""

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self._work.__await__()
        step = partial(next, inner)
        while True:
            self._witness.resumes(self._process)
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            finally:
                self._witness.rests(self._process)
            self.woken = None
            try:
                step = partial(inner.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - the attempt gets it
                self.woken = error
                step = partial(inner.throw, error)
            if self._process.dead:
                step = partial(inner.throw, KilledError())


PROCESS: ContextVar[Process | None] = ContextVar("command_bus_testing_process", default=None)
"""The process of a task; tasks that it starts inherit it."""


class LiveServer(Server):
    """A server on the time of `clock`, for the loops of several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock, _call_at)
        self.offset = time.time() - clock()
        self.working: asyncio.AbstractEventLoop | None = None
        """The loop whose workers read; None for all."""
        self._lock = threading.RLock()

    def execute(self, link: Link, requests: list[Args], reply: Reply) -> None:
        with self._lock:
            super().execute(link, requests, reply)

    def cut(self, link: Link) -> None:
        with self._lock:
            super().cut(link)

    def let_work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the workers of this loop read, and no others."""
        with self._lock:
            if self.working is not loop:
                self.working = loop
                self._feed()

    def listens(self, link: Link) -> bool:
        return bool(link.owner.listens)

    def _wake_up(self, link_id: int) -> None:
        with self._lock:
            super()._wake_up(link_id)


def _call_at(when: float, function: Callable[..., Any], *args: Any) -> None:
    asyncio.get_running_loop().call_at(when, function, *args)


class Process(ClientFactory):
    """A simulated process: connections that end together. Implements `ClientFactory`.

    Args:
        server: Its server.
        works: Whether it is a worker's, which does not read while workers of another loop do.
    """

    label = "in-memory server"
    lease_keeper = TaskLeaseKeeper

    def __init__(self, server: LiveServer, *, works: bool = False) -> None:
        self.server = server
        self.loop = asyncio._get_running_loop()  # noqa: SLF001 - as `get_running_loop`, and None for a test of the server alone
        self._works = works
        self.dead = False
        self.witness: Witness | None = None
        self.replace: Callable[[], object] = lambda: None
        """Called once it is dead."""
        self.after: list[Callable[[], None]] = []
        """Called when a request was executed, before its answer is returned."""
        self._open: set[asyncio.Future[Any]] = set()

    @property
    def listens(self) -> bool:
        """Whether the server answers its blocking reads."""
        resting = self._works and self.server.working not in (None, self.loop)
        return not (self.dead or resting or (self.loop is not None and self.loop.is_closed()))

    def at(self, tag: str) -> Process:
        return self

    def commands(self) -> Redis:
        return WireRedis(Wire(self.exchange))

    def pipe(self, block: float = 0.0) -> WirePipe:
        return WirePipe(Wire(self.exchange))

    def thread(self, patience: float) -> SyncRedis:
        """Return an asynchronous client, because the thread is a task here."""
        return cast("SyncRedis", WireRedis(Wire(self.exchange)))

    def kill(self) -> None:
        """Kill it: from now on no request of it reaches the server, and no answer reaches it."""
        self.dead = True
        for future in list(self._open):
            if not future.done():
                future.set_exception(_gone())
        self.replace()

    async def exchange(self, requests: list[list[bytes]]) -> list[Any]:
        """Send requests that travel together; return their answers."""
        if self.witness is not None and not self.dead:
            self.witness.sends(self, requests)
        if self.dead:
            raise _gone()
        link = Link(self)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._open.add(future)
        try:
            self.server.execute(link, requests, lambda answers: _deliver(loop, future, answers))
            for look in list(self.after):
                look()
            if self.dead and future.done() and future.exception() is None:
                raise _gone()
            answers = await future
            if self.witness is not None and not self.dead:
                self.witness.has_answer(self, requests)
                if self.dead:
                    raise _gone()
            return answers
        finally:
            self._open.discard(future)
            self.server.cut(link)


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[list[Any]], answers: list[Any]) -> None:
    """Deliver the answers of a request, from any thread."""

    def deliver() -> None:
        if not future.done():
            future.set_result(answers)

    if asyncio._get_running_loop() is loop:  # noqa: SLF001 - as `get_running_loop`, for threads without one, too
        deliver()
    else:
        with contextlib.suppress(RuntimeError):  # its loop has ended, and its waiting tasks with it
            loop.call_soon_threadsafe(deliver)


def _gone() -> redis_errors.ConnectionError:
    return redis_errors.ConnectionError("this process was killed by the test")
