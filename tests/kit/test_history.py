"""The history on the in-memory server of `TestBus`: the conformance tests run on it in real time, and a test bus keeps it in virtual time."""

from __future__ import annotations

import time

import pytest

from command_bus import Command, EntityId, HandlerRegistry
from command_bus.testing.bus import TestBus
from command_bus.testing.simulated.live import LiveServer, Process
from tests.conformance.conftest import Sandbox
from tests.conformance.operating.test_history import *  # noqa: F403 - the tests themselves


class Pay(Command[int], entity="account", history="2 h"):
    account: EntityId


@pytest.fixture
async def sandbox() -> Sandbox:
    return Sandbox("memory", Process(LiveServer(time.monotonic)))


async def test_a_test_bus_keeps_the_history_in_virtual_time() -> None:
    registry = HandlerRegistry()

    @registry.handles(Pay)
    async def pay(command: Pay) -> int:
        return 7

    async with TestBus(registry) as bus:
        await bus.dispatch(Pay(account="a"), command_id="c-1")
        await bus.run_until_idle()
        entry = await bus.bus.history.get("c-1")
        assert entry is not None
        assert (entry.status, entry.reply) == ("completed", 7)
        await bus.advance(7199)
        assert len((await bus.bus.history.search()).entries) == 1
        await bus.advance(2)
        assert await bus.bus.history.get("c-1") is None
