"""The simulated server behaves like a real one: the conformance tests of all steps run on it, in real time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from command_bus.testing.simulated.live import Wire, WirePipe, WireRedis
from command_bus.testing.simulated.server import Link, Server
from tests.conformance.conftest import Sandbox, harness, worker
from tests.conformance.steps.test_steps import *  # noqa: F403 - the tests themselves

__all__ = ["harness", "sandbox", "worker"]


class LiveClients:
    """Clients of one simulated server in real time."""

    label = "simulated server"

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = Server(time.time, lambda at, call, *args: loop.call_later(at - time.time(), call, *args))
        self._server.offset = 0.0

    async def _exchange(self, requests: list[list[bytes]]) -> list[Any]:
        """Let requests arrive at once."""
        link = Link("test")
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._server.execute(link, requests, future.set_result)
        try:
            return await future
        finally:
            self._server.cut(link)

    def at(self, tag: str) -> LiveClients:
        """See `ClientFactory`."""
        return self

    def commands(self) -> Redis:
        return WireRedis(Wire(self._exchange))

    def pipe(self, block: float = 0.0) -> WirePipe:
        return WirePipe(Wire(self._exchange))

    def thread(self, patience: float) -> Any:
        raise NotImplementedError


@pytest.fixture
async def sandbox() -> Sandbox:
    return Sandbox("simulated", LiveClients())
