"""`Pipe`: a connection for plain requests and their answers, without the layers of a client.

redis-py spends 40 to 50 us of Python on a request, most of it in its connection pool, its retries and its stream reader. A pipe lets
redis-py make the connection (with TLS, users, and the look-up of the primary by `following`), and then takes over the transport. hiredis
packs requests and parses answers. Any number of requests is in flight at once, and they are answered in their order. After a connection
broke, the next request connects again. Requests in flight fail, and none is repeated here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from command_bus.clock import mono
from command_bus.tasks import end_tasks
from command_bus.transport.redis.connection.errors import CutOff

Answered = Callable[[Any], None]
"""Called with the answer to a request: unparsed, or the error as an exception."""


class Requests(ABC):
    """Sends requests and returns their answers unparsed: bytes, int, None or lists of these. Without a socket `post` takes a task for each."""

    def __init__(self) -> None:
        self._posted: set[asyncio.Task[Any]] = set()

    @abstractmethod
    async def request(self, *request: Any) -> Any:
        """Return the answer to one request.

        Raises:
            RedisError, OSError: As redis-py's: an error reply, or the connection failed.
        """

    def post(self, answered: Answered, *request: Any) -> bool:
        """Send a request, and return at once; `answered` is called in the turn in which the answer or the error arrives.

        It must not raise. Return False, and never call it, if there is no connection: nothing was sent then, and `request` connects.
        """
        task = asyncio.get_running_loop().create_task(self.request(*request), name="command_bus.request")
        self._posted.add(task)
        task.add_done_callback(partial(self._ended, answered))
        return True

    async def close(self) -> None:
        """Close the connection; requests in flight fail."""
        await end_tasks(self._posted)

    def _ended(self, answered: Answered, task: asyncio.Task[Any]) -> None:
        self._posted.discard(task)
        if task.cancelled():
            answered(CutOff("the request was cancelled"))
        else:
            answered(task.exception() or task.result())


class ClientRequests(Requests):
    """Implements `Requests` over a client."""

    def __init__(self, client: Redis) -> None:
        super().__init__()
        self._client = client
        client.response_callbacks = {}

    async def request(self, *request: Any) -> Any:
        return await self._client.execute_command(*request)  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        await super().close()
        await self._client.aclose()


_CLOSED = "Connection closed by server."


def _settle(waiting: asyncio.Future[Any], answer: Any) -> None:
    if waiting.done():
        return
    if isinstance(answer, Exception):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)


class _Answers(asyncio.Protocol):
    """Reads answers off one connection, in the order of the requests.

    Args:
        connection: redis-py's, connected; its transport belongs to this object from now on.
        patience: Seconds that an answer may take while no byte arrives: a large answer may take long to arrive.
    """

    def __init__(self, connection: Any, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._patience = patience
        self._left: Callable[[Exception], Exception | None] = getattr(connection, "left", _broken_by)
        self._lost: Callable[[], None] = getattr(connection, "lost", lambda: None)
        self._reader = hiredis.Reader(protocolError=RedisConnectionError, replyError=connection._parser.parse_error)  # noqa: SLF001
        self._waiting: deque[tuple[Answered, float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001
        self.broken = False
        self._transport.set_protocol(self)
        if self._transport.is_closing():  # its former protocol was informed
            self.end(_CLOSED)

    def send(self, request: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Send a request; return the future of its answer.

        Raises:
            RedisConnectionError: The connection is broken: nothing was sent.
        """
        if self.broken:
            raise RedisConnectionError(_CLOSED)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self.post(partial(_settle, answer), request)
        return answer

    def post(self, answered: Answered, request: tuple[Any, ...]) -> None:
        """Send a request over this connection, which is not broken; `answered` gets the answer or the error."""
        data = hiredis.pack_command(request)
        self._waiting.append((answered, mono()))
        self._transport.write(data)
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience, self._look)

    def data_received(self, data: bytes) -> None:
        """Hand out what has arrived; see asyncio."""
        self._heard = mono()
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                answered, _ = self._waiting.popleft()
                fatal = self._left(answer) if isinstance(answer, Exception) else None
                answered(answer if fatal is None else fatal)
                if fatal is not None:  # for this request; those behind it are in flight, and their outcome is unknown
                    self.end(f"given up: {fatal}")
                    return
        except (RedisError, IndexError) as error:  # no protocol that we know, or more answers than questions
            self.end(f"the server's answer makes no sense: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is under way; see asyncio."""
        self.end(f"Connection lost: {exc}" if exc else _CLOSED)

    def end(self, why: str, kind: type[Exception] = CutOff) -> None:
        """Close the connection; fail the requests in flight, each with an error of its own."""
        if self.broken:
            return
        self.broken = True
        self._lost()
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        self._connection._reader = self._connection._writer = None  # noqa: SLF001 - closed: nothing that redis-py would have to warn of
        while self._waiting:
            answered, _ = self._waiting.popleft()
            answered(kind(why))

    def _look(self) -> None:
        """Break the connection if the oldest request has waited too long and nothing comes; one timer serves all requests."""
        self._timer = None
        if not self._waiting:
            return
        left = max(self._waiting[0][1], self._heard) + self._patience - mono()
        if left <= 0:
            self.end(f"no answer in {self._patience:g} s", RedisTimeoutError)
        else:
            self._timer = self._loop.call_later(left, self._look)


def _broken_by(error: Exception) -> Exception | None:
    """Return the error if it ends the connection: the server is loading, has too many clients, or requires a password."""
    return error if isinstance(error, RedisConnectionError) else None


class Pipe(Requests):
    """Implements `Requests` over one connection.

    Args:
        client: Has the pool that makes the connection.
        patience: Seconds that an answer may take.
    """

    def __init__(self, client: Redis, patience: float) -> None:
        self._client = client
        self._patience = patience
        self._answers: _Answers | None = None
        self._connecting: asyncio.Task[_Answers] | None = None
        self._closed = False

    async def request(self, *request: Any) -> Any:
        answers = self._answers
        if answers is None or answers.broken:
            answers = await self._connected()
        return await answers.send(request)

    def post(self, answered: Answered, *request: Any) -> bool:
        answers = self._answers
        if answers is None or answers.broken:
            return False
        answers.post(answered, request)
        return True

    async def close(self) -> None:
        self._closed = True
        if self._answers is not None:
            self._answers.end("the connection was closed")
        if self._connecting is not None:
            await end_tasks([self._connecting])
        if self._answers is not None:  # it was connected in the same turn
            self._answers.end("the connection was closed")
        await self._client.aclose()

    async def _connected(self) -> _Answers:
        """Connect once for all callers; a caller that is cancelled does not cancel it for the others."""
        if self._connecting is None:
            if self._closed:
                raise RedisConnectionError("the connection was closed")
            self._connecting = asyncio.get_running_loop().create_task(self._connect(), name="command_bus.connect")
            self._connecting.add_done_callback(self._done)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if self._closed and connecting.cancelled():  # it was cancelled, not who waits for it
                raise RedisConnectionError("the connection was closed") from None
            raise

    async def _connect(self) -> _Answers:
        pool: Any = self._client.connection_pool
        connection = pool.make_connection()
        await connection.connect()
        return _Answers(connection, self._patience)

    def _done(self, task: asyncio.Task[_Answers]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._answers = task.result()
