"""The simulated server behaves like a real one: the conformance tests of all steps run on it, in real time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from command_bus.testing.simulated.live import WirePipe, WireRedis
from command_bus.testing.simulated.server import Link, Server
from tests.conformance.conftest import Sandbox, harness, worker
from tests.conformance.steps.test_steps import *  # noqa: F403 - the tests themselves

__all__ = ["harness", "sandbox", "worker"]


class Wire:
    """Requests arrive at once."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def exchange(self, requests: list[list[bytes]]) -> list[Any]:
        link = Link("test")
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._server.execute(link, requests, future.set_result)
        try:
            return await future
        finally:
            self._server.cut(link)

    def close(self) -> None:
        """Do nothing: nothing is open."""


class LiveClients:
    """Clients of one simulated server in real time."""

    label = "simulated server"

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = Server(time.time, lambda at, call, *args: loop.call_later(at - time.time(), call, *args))
        self._server.offset = 0.0

    def at(self, tag: str) -> LiveClients:
        """See `ClientFactory`."""
        return self

    def commands(self) -> Redis:
        return WireRedis(Wire(self._server))

    def pipe(self, block: float = 0.0) -> WirePipe:
        return WirePipe(Wire(self._server))

    def thread(self, patience: float) -> Any:
        raise NotImplementedError


@pytest.fixture
async def sandbox() -> Sandbox:
    return Sandbox("simulated", LiveClients())
