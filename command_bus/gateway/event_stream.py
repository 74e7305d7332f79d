"""`EventStream`: an answer that goes on until the client goes, does not read, or there is nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from command_bus.gateway.answers import HEADERS
from command_bus.transport.tasks import end_tasks

_PATIENCE = 30.0
"""Seconds for which a client may leave unread what is sent to it."""


class EventStream(Response):
    """Server-sent events.

    Args:
        head: What is sent first.
        chunks: What follows; closed at the end.
    """

    media_type = "text/event-stream"

    def __init__(self, head: bytes, chunks: AsyncGenerator[bytes]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**HEADERS, "X-Accel-Buffering": "no"})
        self._head = head
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. It is closed when this returns, whatever happens."""
        async with aclosing(self._chunks):
            sending = asyncio.create_task(self._send(send), name="command_bus.gateway.stream")
            gone = asyncio.create_task(_until_gone(receive), name="command_bus.gateway.gone")
            try:
                await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end_tasks((sending, gone))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _sent(send, self._head)
        async for chunk in self._chunks:
            await _sent(send, chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _sent(send: Send, chunk: bytes) -> None:
    async with asyncio.timeout(_PATIENCE):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
