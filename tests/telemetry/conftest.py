"""A server, and what asks a health port: from a thread, as the loop under test may be stuck."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from command_bus import CommandBus, HandlerRegistry
from command_bus.embedded import EmbeddedServer


class Answer(NamedTuple):
    status: int
    text: str
    headers: Any


def fetched(port: int, path: str, method: str = "GET") -> Answer:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with contextlib.closing(urllib.request.urlopen(request, timeout=10)) as response:
            return Answer(response.status, response.read().decode(), response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode(), error.headers)


async def fetch(port: int, path: str, method: str = "GET") -> Answer:
    return await asyncio.to_thread(fetched, port, path, method)


async def eventually(condition: Callable[[], Awaitable[bool]], within: float = 15.0) -> bool:
    until = time.monotonic() + within
    while not await condition():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.02)
    return True


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as running:
        yield running


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


@pytest.fixture
def make_bus(server: EmbeddedServer, registry: HandlerRegistry) -> Callable[..., CommandBus]:
    namespace = f"h-{secrets.token_hex(4)}"

    def make(**arguments: Any) -> CommandBus:
        return CommandBus(server.url, **{"namespace": namespace, "registry": registry, "lease": 3.0, "grace": 5.0, **arguments})

    return make
