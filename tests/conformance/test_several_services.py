"""Services with different handlers in one namespace: what one does not know is left to another, while that lives. Over every server."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import Command, CommandContext, EntityId, NoHandler, RetryPolicy
from command_bus.worker.offers import OtherWorkers
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

GRACE = 0.2


class Bill(Command[int], entity="bill", retry=RetryPolicy(attempts=2, delay=0.5, jitter=0)):
    bill: EntityId
    fails: bool = False


class Hold(Command[None], entity="hold"):
    hold: EntityId


class Service:
    """Knows the commands, and has one slot."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.gate = asyncio.Event()
        self.attempts: list[int] = []
        self.holds = asyncio.Event()

        @sandbox.registry.handles(Bill)
        async def bill(command: Bill, context: CommandContext) -> int:
            self.attempts.append(context.attempt)
            if command.fails and context.attempt == 1:
                raise ConnectionError("the printer is away")
            return context.attempt

        @sandbox.registry.handles(Hold)
        async def hold(command: Hold) -> None:
            self.holds.set()
            await self.gate.wait()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collect what workers learnt of each other."""
    answers: list[bool] = []
    handle = OtherWorkers.handle

    async def noted(self: OtherWorkers, name: str) -> bool:
        answers.append(await handle(self, name))
        return answers[-1]

    monkeypatch.setattr(OtherWorkers, "handle", noted)
    return answers


@pytest.mark.promise("Unknown commands wait")
@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_live_worker_knows_is_not_given_up_by_another(sandbox: Sandbox, asked: list[bool], fails: bool) -> None:
    """The one that knows it is busy, or the command has been retried for longer than unknown ones are offered."""
    service = Service(sandbox)
    stranger = Sandbox(sandbox.name, sandbox.clients, namespace=sandbox.namespace)
    async with sandbox.bus(unknown_grace=GRACE) as bus, bus.worker(concurrency=1):
        if fails:
            await bus.dispatch(Bill(bill="b-1", fails=True), command_id="b-1")
            await until(lambda: service.attempts)
        await bus.dispatch(Hold(hold="h-1"))
        await service.holds.wait()
        if not fails:
            await bus.dispatch(Bill(bill="b-1"), command_id="b-1")
        async with stranger.bus(unknown_grace=GRACE) as other, other.worker():
            await until(lambda: asked)
            assert (await bus.stats()).dead_letters == 0
        service.gate.set()
        assert await bus.result("b-1", Bill, timeout=20) == (2 if fails else 1)
    assert set(asked) == {True}


async def test_once_none_knows_it_it_is_given_up(sandbox: Sandbox, asked: list[bool]) -> None:
    Service(sandbox)
    stranger = Sandbox(sandbox.name, sandbox.clients, namespace=sandbox.namespace)
    async with sandbox.bus(unknown_grace=GRACE) as bus:
        async with bus.worker():
            await bus.call(Bill(bill="b-1"), timeout=20)
        async with stranger.bus(unknown_grace=GRACE) as other, other.worker():
            with pytest.raises(NoHandler):
                await bus.call(Bill(bill="b-2"), timeout=20)
    assert set(asked) == {False}
