"""The table *what follows a status × status*: a delivery is decided by the status, whatever becomes of the body behind it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("httpx")

from command_bus.webhooks.posting import Answer, Poster
from command_bus.webhooks.record import WebhookRecord
from tests.tables.cut_answers import BODIES, STATUSES


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)
    status, _, body = head.split(b" ")[1].decode().removeprefix("/").partition("/")
    rest, then = BODIES[body.replace("_", " ")]
    writer.write(f"HTTP/1.1 {status} X\r\nRetry-After: 7\r\n".encode() + rest)
    await writer.drain()
    if then == "resets":
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if then == "waits":
        await reader.read()
    writer.close()


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def poster() -> AsyncIterator[Poster]:
    made = Poster()
    yield made
    await made.close()


def webhook(address: str, status: int, body: str, seconds: float) -> WebhookRecord:
    url = f"{address}/{status}/{body.replace(' ', '_')}"
    return WebhookRecord("crm", url, ("completed",), (), ("env:S",), seconds, True, True, (1.0,), 7)


async def test_the_status_decides(address: str, poster: Poster) -> None:
    room = asyncio.Semaphore(20)

    async def post(status: int, body: str) -> str | None:
        try:
            async with room:
                answer = await poster.post(webhook(address, status, body, 1.0), dict, b"{}")
        except Exception as error:
            return f"{status}, {body}: {type(error).__name__}: {error}"
        wanted = Answer(status, 7.0 if status in (429, 503) else None)
        return None if answer == wanted else f"{status}, {body}: {answer}"

    found = await asyncio.gather(*(post(status, body) for status in STATUSES for body in BODIES))
    wrong = [each for each in found if each]
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)


async def test_a_body_without_an_end_is_let_go(address: str, poster: Poster) -> None:
    async with asyncio.timeout(10):
        assert await poster.post(webhook(address, 200, "without an end", 60.0), dict, b"{}") == Answer(200, None)
