"""A receiver of webhooks: a real HTTP server that a test tells how to answer."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Receiver", "Request", "receiving"]

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@dataclass
class Request:
    """A request, as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def type(self) -> str:
        return str(json.loads(self.body)["type"])

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["data"]
        return found


@dataclass
class Receiver:
    """Keeps what came, and answers what it is told: bytes, or a number of seconds to be silent before it hangs up."""

    url: str = ""
    got: list[Request] = field(default_factory=list)
    answer: Callable[[Request], bytes | float] = lambda _: OK
    drip: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            request = Request(first.split(" ")[1], headers, body, asyncio.get_running_loop().time())
            self.got.append(request)
            answer = self.answer(request)
            if isinstance(answer, float):
                await asyncio.sleep(answer)
            else:
                for piece in [answer[place : place + 1] for place in range(len(answer))] if self.drip else [answer]:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.05 if self.drip else 0)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def answering(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def receiving(host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"{'http' if tls is None else 'https'}://{host}:{port}/hook?from=bus"
    try:
        yield receiver
    finally:
        server.close()
