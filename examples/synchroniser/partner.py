"""The partner: an HTTP server that answers so many requests a second, and refuses the rest with 429.

It counts for itself, from the arrival of each request. Now and then it refuses one that it could have answered, as such servers do.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self

__all__ = ["BURST", "RATE", "Partner"]

RATE, BURST = 60.0, 30
"""Requests a second, and how many may come at once."""
_MOODY = 40  # each so many requests one is refused
RETRY_AFTER = 0.5


@dataclass(slots=True)
class Partner:
    """`async with` starts and stops it.

    Attributes:
        port: Where it listens.
        arrivals: When each request came.
        refused: How many it refused because they were too many.
        moods: How many it refused without a reason.
        paid: How often each order was refunded.
    """

    port: int = 0
    arrivals: list[float] = field(default_factory=list[float])
    refused: int = 0
    moods: int = 0
    paid: dict[str, int] = field(default_factory=dict[str, int])
    _tokens: float = BURST
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
            status, headers, body = self._answer(request)
            lines = [
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
                f"Content-Length: {len(body)}",
                "Connection: close",
                *headers,
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the worker was killed
        finally:
            writer.close()

    def _answer(self, path: str) -> tuple[int, list[str], bytes]:
        now = time.monotonic()
        passed = now - self.arrivals[-1] if self.arrivals else 0.0
        self._tokens = min(float(BURST), self._tokens + passed * RATE)
        self.arrivals.append(now)
        if self._tokens < 1.0:
            self.refused += 1
            return 429, [f"Retry-After: {RETRY_AFTER}"], b""
        self._tokens -= 1.0
        if len(self.arrivals) % _MOODY == 0:
            self.moods += 1
            return 429, [f"Retry-After: {RETRY_AFTER}"], b""
        kind, _, name = path.strip("/").partition("/")
        if kind == "refunds":  # the name is an idempotency key: a repeat pays nothing
            self.paid[name] = self.paid.get(name, 0) + (name not in self.paid)
        return 200, [], json.dumps({"path": path}).encode()
