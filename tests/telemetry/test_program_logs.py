"""The program's own log lines: times in UTC, and at once what a stop waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.cli.process.logs import TextFormatter
from command_bus.transport.redis.connection.errors import translated


class Hold(Command[None], entity="shelf"):
    shelf: EntityId


def test_times_of_text_are_in_utc() -> None:
    record = logging.makeLogRecord({"msg": "at work", "created": 1_700_000_000.25, "msecs": 250.0, "levelname": "INFO"})
    assert TextFormatter().format(record).startswith("2023-11-14T22:13:20.250Z INFO ")


async def test_a_stop_says_at_once_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="command_bus")
    registry = HandlerRegistry()
    running, gate = asyncio.Event(), asyncio.Event()

    @registry.handles(Hold)
    async def hold(command: Hold) -> None:
        running.set()
        await gate.wait()

    async with CommandBus.in_memory(registry=registry) as bus:
        worker = bus.worker(grace=7.5)
        await worker.start()
        await bus.dispatch(Hold(shelf="s 1"))
        await running.wait()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "stopping: waits up to 7.5 s for what runs: shelf:s 1" in caplog.text
        gate.set()
        await stopping


@pytest.mark.parametrize("text", ["Connection closed by server.", "Connection closed by server"])
def test_what_a_library_says_ends_no_sentence_within_ours(text: str) -> None:
    assert str(translated(ConnectionError(text), "redis://h")) == "redis://h cannot be reached: Connection closed by server"
