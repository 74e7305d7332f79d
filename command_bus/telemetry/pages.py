"""Short pages over HTTP, for probes and scrapers: GET, one answer, and the connection is closed.

It is no web framework, so that a worker does not depend on one for its probes. It is not `ThreadingHTTPServer` either, which has neither
a limit of connections nor a deadline from acceptance on, and logs every request.

Any client that reaches the port may open connections. It must not keep a probe from its answer, nor use up the descriptors that the worker
needs. So `_AT_ONCE` connections are open at most. For a new one, the connection is closed that has been open longest without a request, or,
if all have sent one, longest. None is closed before `_AT_LEAST`, which is enough for a request; until then new ones wait in the kernel's
queue, without a descriptor. Clients that send too slowly or too much are cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from command_bus.clock import mono
from command_bus.errors import InvalidSettings

_log = logging.getLogger("command_bus.health")
_HEAD_LIMIT = 16 * 1024
_PATIENCE = 5.0  # seconds for the request, from acceptance on, and for reading the answer
_AT_ONCE = 128  # connections
_AT_LEAST = 0.05  # seconds that a connection has for its request: so at most some 2,500 are accepted per second
_IN_LINE = 2048  # connections in the kernel's queue
_AGAIN = 0.2  # seconds until a process without free descriptors accepts again
_WARN_EVERY = 60.0  # seconds between log lines about that
_ABSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # `localhost` may have an IPv6 address that the machine lacks


class Page(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


PageHandler = Callable[[str], Awaitable[Page]]
"""Returns the page of a path."""


def text_page(status: HTTPStatus, text: str) -> Page:
    """Return a page of plain text."""
    return Page(status, text.encode() + b"\n")


@dataclass(slots=True)
class _Visit:
    """A connection."""

    connection: socket.socket
    since: float = field(default_factory=mono)
    asked: bool = False
    """Whether its request has arrived."""
    task: asyncio.Task[None] | None = None


class PageServer:
    """A server of pages, in the event loop that starts it.

    Args:
        answering: Returns the page of a path.
        host: The address to listen on.
        port: 0 takes any free one.
    """

    def __init__(self, answering: PageHandler, *, host: str, port: int) -> None:
        self._answering = answering
        self._host = host
        self._port = port
        self._accepting: list[asyncio.Task[None]] = []
        self._visits: list[_Visit] = []  # oldest first
        self._warned_at = -math.inf

    async def start(self) -> int:
        """Listen, and return the port.

        Raises:
            InvalidSettings: The port is taken, or not permitted.
        """
        try:
            listeners = await _listeners(self._host, self._port)
        except OSError as error:
            raise InvalidSettings(
                f"cannot answer probes on {self._host}:{self._port} ({error.strerror or error}): choose another health port"
            ) from error
        for listener in listeners:
            accepting = asyncio.create_task(self._accept(listener), name="command_bus.pages")
            accepting.add_done_callback(partial(_close, listener))
            self._accepting.append(accepting)
        port: int = listeners[0].getsockname()[1]
        return port

    def stop(self) -> None:
        """Stop listening."""
        for accepting in self._accepting:
            accepting.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptor is free, and the others are the application's
                self._warn(error)
                await asyncio.sleep(_AGAIN)
                continue
            visit = _Visit(connection)
            self._visits.append(visit)
            visit.task = loop.create_task(self._serve(visit), name="command_bus.page")
            await asyncio.sleep(0)  # accepting a connection that already waits lets no other task run
            await self._make_room()

    async def _make_room(self) -> None:
        while len(self._visits) > _AT_ONCE:
            oldest = _choose_to_close(self._visits)
            left = oldest.since + _AT_LEAST - mono()
            if left > 0:
                await asyncio.sleep(left)
            elif oldest.task is not None:
                self._visits.remove(oldest)
                oldest.task.cancel()

    def _warn(self, error: OSError) -> None:
        if mono() - self._warned_at >= _WARN_EVERY:
            self._warned_at = mono()
            _log.warning("probes cannot be answered: %s. It is retried", error.strerror or error)

    async def _serve(self, visit: _Visit) -> None:
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(_PATIENCE):
                    head = await _head(visit.connection)
                if not head:
                    return
                visit.asked = True
                answer = await self._answered(head.split(b"\r\n", 1)[0].decode("latin-1").split(" "))
                async with asyncio.timeout(_PATIENCE):
                    await loop.sock_sendall(visit.connection, answer)
        finally:
            visit.connection.close()
            if visit in self._visits:
                self._visits.remove(visit)

    async def _answered(self, request: list[str]) -> bytes:
        method, path = (request[0], request[1].partition("?")[0]) if len(request) == 3 else ("", "")
        if method not in ("GET", "HEAD"):
            page = text_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        else:
            try:
                page = await self._answering(path)
            except Exception:  # noqa: BLE001 - every request gets an answer
                _log.warning("%s could not be answered", path, exc_info=True)
                page = text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error: see the log")
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else page.body)


def _choose_to_close(visits: list[_Visit]) -> _Visit:
    """Return the connection to close for a new one; the connections are in the order of their arrival."""
    return next((visit for visit in visits if not visit.asked), visits[0])


def _close(listener: socket.socket, _: asyncio.Task[None]) -> None:
    """Close a listener when its task ends. The task may be cancelled before it begins, so it cannot do this itself."""
    listener.close()


async def _head(connection: socket.socket) -> bytes:
    """Read a request up to its empty line; return nothing if it ends before, or is too long."""
    loop, head = asyncio.get_running_loop(), bytearray()
    while b"\r\n\r\n" not in head:
        more = await loop.sock_recv(connection, 4096)
        if not more or len(head) > _HEAD_LIMIT:
            return b""
        head += more
    return bytes(head)


async def _listeners(host: str, port: int) -> list[socket.socket]:
    """Open sockets that listen on all addresses of a host, on one port.

    Raises:
        OSError: The host has no address, or a socket cannot listen on one.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    absent: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        chosen = listeners[0].getsockname()[1] if listeners else port
        try:
            listeners.append(_listener(family, (address[0], chosen, *address[2:])))
        except OSError as error:
            absent = error
            if error.errno not in _ABSENT:
                break
    else:
        if listeners:
            return listeners
    for listener in listeners:
        listener.close()
    raise absent or OSError(errno.EADDRNOTAVAIL, "no such address")


def _listener(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_IN_LINE)
    except BaseException:
        listener.close()
        raise
    return listener
