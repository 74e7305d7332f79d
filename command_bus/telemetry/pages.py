"""Short pages over HTTP, for probes and scrapers: GET, one answer, and the connection is closed.

Not a web framework, because a worker has none: a probe must not be what makes a worker depend on one. Who sends slowly, or much, is
cut off; who comes while too many are there waits in the kernel's line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from command_bus.errors import InvalidSettings

__all__ = ["Answering", "Page", "PageServer", "text_page"]

_log = logging.getLogger("command_bus.health")
_HEAD_LIMIT = 16 * 1024
_PATIENCE = 5.0  # seconds for the request, and for taking the answer
_AT_ONCE = 32  # connections


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Answering = Callable[[str], Awaitable[Page]]
"""Gives the page of a path."""


def text_page(status: HTTPStatus, text: str) -> Page:
    """A page of one line."""
    return Page(status, text.encode() + b"\n")


class PageServer:
    """Answers on a port, in the event loop that starts it.

    Args:
        answering: Gives the pages.
        host: Address to listen on.
        port: 0 takes any free one.
    """

    def __init__(self, answering: Answering, *, host: str, port: int) -> None:
        self._answering = answering
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def start(self) -> int:
        """Listen; the port.

        Raises:
            InvalidSettings: It is taken, or not ours to take.
        """
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_HEAD_LIMIT)
        except OSError as error:
            raise InvalidSettings(
                f"cannot answer probes on {self._host}:{self._port} ({error.strerror or error}): choose another health port"
            ) from error
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._places:
                with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(_PATIENCE):
                        head = await reader.readuntil(b"\r\n\r\n")
                    answer = await self._answered(head.split(b"\r\n", 1)[0].decode("latin-1").split(" "))
                    async with asyncio.timeout(_PATIENCE):
                        writer.write(answer)
                        await writer.drain()
        finally:
            writer.close()

    async def _answered(self, request: list[str]) -> bytes:
        method, path = (request[0], request[1].partition("?")[0]) if len(request) == 3 else ("", "")
        if method not in ("GET", "HEAD"):
            page = text_page(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        else:
            try:
                page = await self._answering(path)
            except Exception:  # noqa: BLE001 - whoever asks must get an answer, whatever went wrong
                _log.warning("%s could not be answered", path, exc_info=True)
                page = text_page(HTTPStatus.INTERNAL_SERVER_ERROR, "it could not be answered: see the log")
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else page.body)
