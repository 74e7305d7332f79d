"""Looking for a primary where some of those who should know are frozen: they accept connections and never answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError

from command_bus.clock import mono
from command_bus.transport.redis.connection import topology as discovery
from command_bus.transport.redis.connection.failover import following
from command_bus.transport.redis.connection.topology import ClusterMap, HostPort, Locator, SentinelPrimary, TopologyUrl


class Frozen:
    """Accepts connections, counts them, and never says a word."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.met = threading.Event()
        self._accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        return len(self._accepted)

    def _accept(self) -> None:
        while True:
            try:
                self._accepted.append(self._socket.accept()[0])
            except OSError:
                return
            self.met.set()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for each in self._accepted:
            each.close()


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frozen]:
    monkeypatch.setattr(discovery, "_LOOK", 0.3)
    node = Frozen()
    yield node
    node.close()


def sentinel(port: int) -> Locator:
    return SentinelPrimary(TopologyUrl.parse(f"redis+sentinel://127.0.0.1:{port}/bus"))


def cluster(port: int) -> Locator:
    return ClusterMap(TopologyUrl.parse(f"redis+cluster://127.0.0.1:{port}")).shard("{x:0}:")


@pytest.mark.parametrize("of", [sentinel, cluster])
def test_a_node_that_does_not_answer_is_asked_once(frozen: Frozen, of: Callable[[int], Locator]) -> None:
    with pytest.raises(RedisConnectionError, match="no node answers"):
        of(frozen.port).locate()
    assert frozen.connections == 1


@pytest.mark.parametrize("of", [sentinel, cluster])
def test_reporting_a_moved_primary_does_not_wait_for_discovery(frozen: Frozen, of: Callable[[int], Locator]) -> None:
    locator = of(frozen.port)

    def look() -> None:
        with pytest.raises(RedisConnectionError):
            locator.locate()

    looking = threading.Thread(target=look)
    looking.start()
    assert frozen.met.wait(5)
    locator.moved()
    assert looking.is_alive()
    looking.join()


A, B, C, D = ("a", 1), ("b", 1), ("c", 1), ("d", 1)


def test_the_sentinel_that_answered_last_is_asked_first() -> None:
    nodes, asked, silent = discovery._Nodes("the primary", [A, B, C]), list[HostPort](), {A}

    def question(address: HostPort) -> str:
        asked.append(address)
        if address in silent:
            raise RedisConnectionError("no answer")
        return address[0]

    assert [nodes.ask(question), nodes.ask(question)] == ["b", "b"]
    assert asked == [A, B, B]
    nodes.add([D, A])
    silent |= {B, C}
    asked.clear()
    assert nodes.ask(question) == "d"  # neither B nor C, and A would have been the last but D
    assert asked == [B, C, A, D]
    silent.add(D)
    with pytest.raises(RedisConnectionError, match="the primary: no node answers"):
        nodes.ask(question)


async def test_connecting_needs_no_thread_of_the_default_executor() -> None:
    hung_up = asyncio.Event()

    async def pong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n"):
                writer.write(b"+OK\r\n")
        writer.close()
        hung_up.set()

    class Here:
        def locate(self) -> HostPort:
            host, port = server.sockets[0].getsockname()
            return str(host), int(port)

        def moved(self) -> None: ...

    done = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, done.wait)
    server = await asyncio.start_server(pong, "127.0.0.1", 0)
    connection: Any = following(Connection)(locator=Here(), host="unknown", port=0, protocol=2)
    try:
        async with asyncio.timeout(5):
            await connection.connect()
        assert connection.host == "127.0.0.1"
    finally:
        done.set()
        await busy
        await connection.disconnect()
        await hung_up.wait()
        server.close()


async def test_discovery_ignores_callers_that_gave_up() -> None:
    asked, go = threading.Event(), threading.Event()
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))

    class Slow:
        def locate(self) -> HostPort:
            asked.set()
            go.wait(5)
            return "127.0.0.1", 1

        def moved(self) -> None: ...

    connection: Any = following(Connection)(locator=Slow(), host="unknown", port=0, protocol=2)
    connecting = asyncio.ensure_future(connection.connect())
    while not asked.is_set():
        await asyncio.sleep(0.01)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    go.set()
    deadline = mono() + 5
    while any(thread.name == "command_bus.locate" for thread in threading.enumerate()) and mono() < deadline:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    assert not problems
