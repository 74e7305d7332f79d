"""A pipe over connections that break, stall and talk nonsense."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, NoScriptError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from command_bus.embedded import EmbeddedServer
from command_bus.errors import TransportUnavailable
from command_bus.transport.redis.connection.errors import CutOff, translated
from command_bus.transport.redis.connection.pipe import Pipe

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


_KNOWN = inspect.signature(AbstractConnection).parameters
NAMELESS = dict.fromkeys(["driver_info"] if "driver_info" in _KNOWN else ["lib_name", "lib_version"])
"""The library's name is not told before the first request: by other arguments with an older redis-py."""


def client_of(port: int, **options: Any) -> Redis:
    pool: Any = BlockingConnectionPool(
        host="127.0.0.1", port=port, protocol=2, retry=Retry(NoBackoff(), 0), **{**NAMELESS, **options}
    )
    return Redis.from_pool(pool)


@asynccontextmanager
async def pipe_to(*talks: Talk, patience: float = 5.0, **options: Any) -> AsyncIterator[Pipe]:
    """Open a pipe to a server with one behaviour per connection; the last is repeated."""
    left = list(talks)
    talking: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        talk = left.pop(0) if len(left) > 1 else left[0]
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            talking.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pipe = Pipe(client_of(server.sockets[0].getsockname()[1], **options), patience)
    try:
        yield pipe
    finally:
        await pipe.close()
        server.close()
        for task in list(talking):
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the turn after


async def _request(reader: asyncio.StreamReader) -> None:
    """Read one request of one word."""
    for _ in range(3):
        await reader.readuntil(b"\r\n")


async def pong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await _request(reader)
        writer.write(b"+PONG\r\n")


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close each connection at once."""


async def hangs_up_in_the_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _request(reader)
    writer.write(b"$100\r\nhalf")
    await writer.drain()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _request(reader)
    writer.write(b"$20\r\n")
    for _ in range(20):
        await asyncio.sleep(0.05)
        writer.write(b"x")
    writer.write(b"\r\n")
    await reader.read()


async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _request(reader)
    writer.write(b"%%%\r\n")
    await reader.read()


async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _request(reader)
    writer.write(b"+PONG\r\n+PONG\r\n")
    await reader.read()


async def loading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _request(reader)
    writer.write(b"-LOADING Redis is loading the dataset in memory\r\n")
    await reader.read()


@pytest.mark.parametrize("bad", [hangs_up_in_the_answer, nonsense, loading])
async def test_pending_requests_fail_and_the_next_request_reconnects(bad: Talk) -> None:
    async with pipe_to(bad, pong) as pipe:
        answers: Any = await asyncio.gather(pipe.request("PING"), pipe.request("PING"), return_exceptions=True)
        assert all(isinstance(answer, RedisConnectionError) for answer in answers)
        assert await pipe.request("PING") == b"PONG"


async def test_after_a_fatal_answer_later_requests_are_in_doubt() -> None:
    async with pipe_to(loading, pong) as pipe:
        answers: Any = await asyncio.gather(pipe.request("PING"), pipe.request("PING"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [BusyLoadingError, CutOff]
        told = translated(answers[1], "it")
        assert isinstance(told, TransportUnavailable)
        assert told.outcome_unknown


async def test_a_request_that_was_cut_off_is_in_doubt() -> None:
    async with pipe_to(hangs_up_in_the_answer) as pipe:
        try:
            raise ConnectionRefusedError("of another connection")
        except ConnectionRefusedError:
            with pytest.raises(CutOff) as raised:
                await pipe.request("PING")
        told = translated(raised.value, "it")
        assert isinstance(told, TransportUnavailable)
        assert told.outcome_unknown


async def test_closing_cancels_no_caller_that_waits_for_a_connection() -> None:
    async with pipe_to(silent, username="u", password="p") as pipe:
        waiting = asyncio.create_task(pipe.request("PING"))
        await asyncio.sleep(0.05)
        await pipe.close()
        with pytest.raises(RedisConnectionError):
            await waiting


async def test_a_connection_that_breaks_before_the_first_request_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pipe_to(silent, pong) as pipe:
        made = pipe._connected

        async def broken_at_once() -> Any:
            answers = await made()
            answers.connection_lost(None)
            return answers

        with monkeypatch.context() as patch:
            patch.setattr(pipe, "_connected", broken_at_once)
            with pytest.raises(RedisConnectionError):
                await asyncio.wait_for(pipe.request("PING"), 2)
        assert await pipe.request("PING") == b"PONG"


async def test_a_server_that_hangs_up_at_once_is_met_again_and_again() -> None:
    async with pipe_to(hangs_up) as pipe:
        for _ in range(50):
            with pytest.raises(RedisConnectionError):
                await asyncio.wait_for(pipe.request("PING"), 2)


async def test_an_answer_that_does_not_come_breaks_the_connection() -> None:
    async with pipe_to(silent, pong, patience=0.1) as pipe:
        with pytest.raises(RedisTimeoutError):
            await pipe.request("PING")
        assert await pipe.request("PING") == b"PONG"


async def test_an_answer_that_comes_slowly_is_waited_for() -> None:
    async with pipe_to(slowly, patience=0.4) as pipe:
        assert await pipe.request("PING") == b"x" * 20


async def test_an_answer_without_a_question_breaks_the_connection() -> None:
    async with pipe_to(talkative, pong) as pipe:
        assert await pipe.request("PING") == b"PONG"
        await asyncio.sleep(0.05)
        assert await pipe.request("PING") == b"PONG"


async def test_a_cancelled_request_takes_no_other_requests_answer() -> None:
    gate = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for name in (b"one", b"two", b"three"):
            await _request(reader)
            await gate.wait()
            writer.write(b"+" + name + b"\r\n")
        await reader.read()

    async with pipe_to(slow) as pipe:
        tasks = [asyncio.create_task(pipe.request("PING")) for _ in range(3)]
        await asyncio.sleep(0.05)
        tasks[1].cancel()
        gate.set()
        assert await tasks[0] == b"one"
        assert await tasks[2] == b"three"


async def test_a_cancelled_caller_leaves_the_new_connection_to_others() -> None:
    async with pipe_to(pong) as pipe:
        tasks = [asyncio.create_task(pipe.request("PING")) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert await tasks[1] == b"PONG"


async def test_closing_fails_what_is_under_way() -> None:
    async with pipe_to(silent) as pipe:
        waiting = asyncio.create_task(pipe.request("PING"))
        await asyncio.sleep(0.05)
        await pipe.close()
        with pytest.raises(RedisConnectionError):
            await waiting
        with pytest.raises(RedisConnectionError):
            await pipe.request("PING")


async def test_error_replies_are_redis_py_s_and_break_nothing() -> None:
    with EmbeddedServer.start(tcp=True) as server:
        pipe = Pipe(client_of(int(server.url.rpartition(":")[2].partition("/")[0])), 5.0)
        with pytest.raises(NoScriptError):
            await pipe.request("EVALSHA", "0" * 40, 0)
        with pytest.raises(ResponseError):
            await pipe.request("NOTHING", "x")
        await pipe.request("SET", "a", 1)
        answers = await asyncio.gather(*(pipe.request("INCR", "a") for _ in range(100)))
        assert answers == list(range(2, 102))
        await pipe.close()


def after_one_answer(bad: Talk) -> Talk:
    """Answer the first request of a connection, then behave badly."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(b"+PONG\r\n")
        await bad(reader, writer)

    return talk


class Posted:
    """The outcome of a posted request as it was told."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.told = asyncio.Event()

    def __call__(self, answer: Any) -> None:
        self.answers.append(answer)
        self.told.set()


async def test_a_posted_request_is_answered_in_its_turn() -> None:
    async with pipe_to(pong) as pipe:
        posted = Posted()
        assert not pipe.post(posted, "PING"), "there is no connection"
        assert await pipe.request("PING") == b"PONG"
        assert pipe.post(posted, "PING")
        assert await pipe.request("PING") == b"PONG"
        assert posted.answers == [b"PONG"]


@pytest.mark.parametrize("bad", [hangs_up, hangs_up_in_the_answer, nonsense, loading])
async def test_a_posted_request_fails_once_and_the_next_one_reconnects(bad: Talk) -> None:
    async with pipe_to(after_one_answer(bad), pong) as pipe:
        assert await pipe.request("PING") == b"PONG"
        posted = Posted()
        assert pipe.post(posted, "PING")
        await asyncio.wait_for(posted.told.wait(), 5.0)
        (error,) = posted.answers
        assert isinstance(error, RedisConnectionError)
        assert not pipe.post(Posted(), "PING"), "the connection is gone"
        assert await pipe.request("PING") == b"PONG"
        assert posted.answers == [error]


async def test_a_posted_request_that_is_not_answered_breaks_the_connection() -> None:
    async with pipe_to(after_one_answer(silent), pong, patience=0.1) as pipe:
        assert await pipe.request("PING") == b"PONG"
        posted = Posted()
        assert pipe.post(posted, "PING")
        await asyncio.wait_for(posted.told.wait(), 5.0)
        (error,) = posted.answers
        assert isinstance(error, RedisTimeoutError)
        told = translated(error, "it")
        assert isinstance(told, TransportUnavailable)
        assert told.outcome_unknown


async def test_closing_fails_a_posted_request() -> None:
    async with pipe_to(after_one_answer(silent)) as pipe:
        assert await pipe.request("PING") == b"PONG"
        posted = Posted()
        assert pipe.post(posted, "PING")
        await pipe.close()
        assert [type(answer) for answer in posted.answers] == [CutOff]
