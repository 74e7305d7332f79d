"""The table *first starts × places*: whatever comes between, the first start of a durable command is shown as what it was."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from command_bus import Command, CommandBus, DurableContext, EntityId, GiveUp, History, RetryPolicy, Snooze
from tests.conformance import conftest
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.selection import quick
from tests.tables.first_starts import BETWEEN, PLACES

sandbox, servers = conftest.sandbox, conftest.servers
pytestmark = pytest.mark.server
ID, PAUSE = "t-1", 0.15


class Bench:
    """One command, what comes between, and when it was shown to have started."""

    def __init__(self, sandbox: Sandbox, row: str) -> None:
        self.between = row.split(", ")
        self.done: set[str] = set()
        self.reached = "nowhere"
        self.gates = {name: asyncio.Event() for name in ("first", "last")}
        self.shown: dict[str, set[Any]] = {place: set() for place in PLACES}
        delay = 60.0 if row == "wished" else PAUSE
        retry = RetryPolicy(attempts=9, delay=delay, jitter=0)
        rules: dict[str, Any] = {"durable": True, "history": History("1 day"), "on_poison": "park", "retry": retry}

        class Trace(Command[str], entity="trace", **rules):
            trace: EntityId

        self.kind = Trace

        @sandbox.registry.handles(Trace)
        async def handle(command: Trace, context: DurableContext) -> str:
            return await self.handle(context)

    async def handle(self, context: DurableContext) -> str:
        """Run into all that comes between, then fail once."""
        await self.gate("first")
        await context.step("begin", len, "abc")
        for what in self.between:
            await self.meet(context, what)
        await self.gate("last")
        self.once("end", GiveUp("as asked"))
        return "done"

    async def gate(self, name: str) -> None:
        self.reached = name
        await self.gates[name].wait()

    def once(self, what: str, error: Exception) -> None:
        if what not in self.done:
            self.done.add(what)
            raise error

    async def meet(self, context: DurableContext, what: str) -> None:
        if what in ("signalled", "held"):
            await context.signal("go")
        elif what == "slept":
            await context.sleep(PAUSE)
        elif what in ("aborted", "handed back") and what not in self.done:
            self.done.add(what)
            self.reached = what
            await asyncio.sleep(60)
        elif what == "snoozed":
            self.once(what, Snooze(PAUSE))
        elif what == "parked":
            self.once(what, GiveUp("as asked"))
        elif what in ("retried", "wished"):
            self.once(what, OSError("as asked"))

    async def run(self, bus: CommandBus) -> None:
        """Carry the row out."""
        async with AsyncExitStack() as stack:
            self.worker = await stack.enter_async_context(bus.worker())
            self.entity = bus.entity("trace", "a")
            await bus.dispatch(self.kind(trace="a"), command_id=ID)
            await until(lambda: self.reached == "first")
            self.first = await self.look()
            await asyncio.sleep(0.02)  # so that no later time is the same
            self.gates["first"].set()
            for what in self.between:
                await self.bring(bus, what, stack)
            await until(lambda: self.reached == "last")
            self.shown["entity"].add(await self.look())
            self.gates["last"].set()
            if "wished" not in self.between:  # else it ends with that
                letter = await until(lambda: self.parked(bus))
                self.shown["dead letter"].add(letter.first_started_ms)
                await bus.dead_letters.replay(letter.id)
            await until(lambda: self.ended(bus))
            entry = await bus.history.get(ID)
            self.shown["history"].add(entry and entry.started_ms)

    async def bring(self, bus: CommandBus, what: str, stack: AsyncExitStack) -> None:
        """Let one thing come between."""
        if what in ("signalled", "held"):
            await self.state_is("suspended")
            if what == "held":
                await self.entity.pause("as asked")
            await bus.commands.signal(ID, "go")
            if what == "held":
                await self.state_is("paused")
                await self.entity.resume()
        elif what == "aborted":
            await until(lambda: self.reached == what)
            await self.entity.abort("as asked")
        elif what == "handed back":
            await until(lambda: self.reached == what)
            await self.worker.stop(grace=0)
            await stack.enter_async_context(bus.worker())
        elif what == "parked":
            letter = await until(lambda: self.parked(bus))
            self.shown["while it waits"].add(await self.look())
            await bus.dead_letters.replay(letter.id)
        elif what == "wished":
            await self.state_is("retrying")
            await bus.cancel(ID, running=True)

    async def state_is(self, state: str) -> None:
        async def found() -> bool:
            return (await self.entity.show()).entity.state == state

        await until(found)
        self.shown["while it waits"].add(await self.look())

    async def look(self) -> int | None:
        details = await self.entity.show()
        assert details.entity.attempt > 0, "it was started"
        return details.first_started_ms

    async def parked(self, bus: CommandBus) -> Any:
        return next(iter([each async for each in bus.dead_letters.list()]), None)

    async def ended(self, bus: CommandBus) -> bool:
        return (await bus.commands.status(ID)).state == "settled"


@pytest.mark.parametrize("row", quick(BETWEEN, ["signalled", "slept", "wished", "signalled, parked"]))
async def test_the_first_start_stays_what_it_was(sandbox: Sandbox, row: str) -> None:
    bench = Bench(sandbox, row)
    async with sandbox.bus() as bus:
        await bench.run(bus)
    wrong = {place: shown for place, shown in bench.shown.items() if not shown <= {bench.first}}
    assert not wrong, f"first started at {bench.first}, and shown at {wrong}"
