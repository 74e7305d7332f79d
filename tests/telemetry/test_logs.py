"""Log records name their command in fields of their own, and contain no payload."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy
from command_bus.cli.process.logs import JsonFormatter
from command_bus.messages.context import CommandContext
from tests.conformance.harness import lose_lease

pytestmark = pytest.mark.server
Make = Callable[..., CommandBus]


class Work(Command[int], entity="shelf", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0)):
    shelf: EntityId
    secret: str = "hidden-payload"


class Lines(logging.Handler):
    """Formats each record where and when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(self.format(record))

    def saying(self, text: str) -> list[dict[str, Any]]:
        return [found for line in self.text if text in (found := json.loads(line))["message"]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, logger="command_bus")
    caplog.set_level(logging.INFO, logger="shop")
    handler = Lines()
    for name in ("command_bus", "shop"):
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name in ("command_bus", "shop"):
        logging.getLogger(name).removeHandler(handler)


async def test_failures_and_what_handlers_log(make_bus: Make, registry: HandlerRegistry, lines: Lines) -> None:
    @registry.handles(Work)
    def work(command: Work) -> int:  # in a thread
        logging.getLogger("shop").info("at work", extra={"aisle": 7})
        raise ValueError("no such shelf")

    async with make_bus() as bus, bus.worker() as worker:
        receipt = await bus.dispatch(Work(shelf="s/1"))
        await bus.dispatch_raw("shelf", "s/2", "Work", {"shelf": "s/2", "secret": ["hidden-payload"]})
        await bus.wait_idle(10)
    named = {"command": "Work", "command_id": receipt.command_id, "entity": "shelf:s/1", "worker": worker.name}
    for number, record in enumerate(lines.saying("at work"), 1):
        assert {**named, "attempt": number, "aisle": 7, "correlation_id": receipt.command_id}.items() <= record.items()
    first, second = lines.saying("failed (attempt")
    assert {**named, "attempt": 1, "level": "info"}.items() <= first.items()
    assert {**named, "attempt": 2}.items() <= second.items()
    letter, invalid = sorted(lines.saying("is dead-lettered"), key=lambda record: record["entity"])
    assert {**named, "attempt": 2, "reason": "failed", "level": "warning"}.items() <= letter.items()
    assert {"reason": "invalid", "entity": "shelf:s/2", "attempt": 1}.items() <= invalid.items()
    assert "hidden-payload" not in "".join(lines.text)


async def test_a_lost_lease_names_its_entity(make_bus: Make, registry: HandlerRegistry, lines: Lines) -> None:
    running = asyncio.Event()

    @registry.handles(Work)
    async def work(command: Work, context: CommandContext) -> int:
        if context.attempt == 1:
            running.set()
            await asyncio.sleep(30)
        return 1

    async with make_bus(lease=1.0) as bus, bus.worker() as worker:
        await bus.dispatch(Work(shelf="s/1"))
        await running.wait()
        lose_lease(worker)
        await bus.wait_idle(10)
    [lost], [found] = lines.saying("is lost"), lines.saying("its lease ended while")
    assert {"entity": "shelf:s/1", "worker": worker.name}.items() <= lost.items()
    assert {"entity": "shelf:s/1", "worker": worker.name, "attempt": 1}.items() <= found.items()
