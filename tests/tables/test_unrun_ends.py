"""The table *unrun ends*: whatever a worker decides that cannot run a durable command, what was done is undone once, or waits for a decision.

Nothing that has something to undo is settled without that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandRejected, DurableContext, EntityId, HandlerRegistry, Reject
from tests.conformance import conftest
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Refund, Reserve, Shop
from tests.conformance.harness import ManualWorker, TransportHarness
from tests.conformance.put_service import until
from tests.selection import quick
from tests.tables.unrun_ends import ROWS

sandbox, servers = conftest.sandbox, conftest.servers
pytestmark = pytest.mark.server
FLOW, ID, BOX = Flow.spec().name, "c-1", "order:o-1"
KEYS = ["a:" + "b" * 32]


class NewFlow(Command[Any], entity="order", durable=True, name=FLOW):
    """The class of a later deploy, which refuses what was sent before."""

    order: EntityId
    script: int


class Bench:
    """An order that has something to undo, and a worker that cannot run it."""

    def __init__(self, sandbox: Sandbox, end: str) -> None:
        self.sandbox, self.end = sandbox, end
        self.shop = Shop(sandbox)
        self.sound = b""
        self.undoing = False

        @self.shop.script
        async def order(context: DurableContext) -> Any:
            await context.call(Reserve(sku="s-1"), undo=Refund(account="a-1"))
            if not self.undoing:
                await context.signal("go")
            else:
                context.compensate(Reserve(sku="gate"))
            raise Reject("no stock")

    def unable(self) -> CommandBus:
        """Return the bus of a worker that cannot run the order. It undoes what others did."""
        registry = HandlerRegistry()

        @registry.handles(Refund)
        async def refund(command: Refund) -> None:
            self.shop.log.append(("refund", str(command.account)))

        @registry.handles(Reserve)
        async def reserve(command: Reserve) -> int:
            return 1

        if self.end == "invalid":

            @registry.handles(NewFlow)
            async def new_flow(command: NewFlow, context: DurableContext) -> None: ...

        known = self.sandbox.registry if self.end == "bad_signature" else registry
        signs: dict[str, Any] = {"signing_keys": KEYS, "require_signatures": True} if self.end == "bad_signature" else {}
        return self.sandbox.bus(registry=known, unknown_grace=0.0, lease=1.0, **signs)

    async def envelope(self, data: bytes | None = None) -> bytes:
        """Return the envelope of the order; give it another one, if one is given."""
        key, name = f"{{{self.sandbox.namespace}:0}}:", BOX
        client: Any = self.sandbox.client(0)
        try:
            found = await client.hget(f"{key}lone", name)
            if found is not None:
                if data is not None:
                    await client.hset(f"{key}lone", name, data)
                return bytes(found)
            ((entry, fields),) = await client.xrange(f"{key}m:{name}", count=1)
            if data is not None:
                await client.delete(f"{key}m:{name}")
                await client.xadd(f"{key}m:{name}", {**fields, b"e": data}, id=entry)
            return bytes(fields[b"e"])
        finally:
            await client.aclose()

    async def spoil(self) -> None:
        """Make the envelope one that no worker can read, if that is the end."""
        self.sound = sound = await self.envelope()
        if self.end == "unsupported_version":
            await self.envelope(sound[:1] + b"\x7f" + sound[2:])
        elif self.end == "undecodable":
            await self.envelope(sound[:-1])

    @asynccontextmanager
    async def lost(self, moment: str) -> AsyncIterator[None]:
        """Let a worker start it, and be lost."""
        if moment != "lost":
            yield
            return
        ghost = ManualWorker(TransportHarness(self.sandbox.clients, self.sandbox.namespace), "ghost")
        await ghost.start()
        yield
        await ghost.steps.close(1)
        await ghost._harness.producer.close()
        await ghost._harness.connections.close()

    @property
    def refunds(self) -> int:
        return self.shop.count(("refund", "a-1"))


async def letter_of(bus: CommandBus) -> Any:
    return next((letter for letter in [each async for each in bus.dead_letters.list()] if letter.parked), None)


async def parked(bus: CommandBus, bench: Bench) -> str:
    """Wait until the order parks its entity; return the id of its letter."""
    letter = await until(lambda: letter_of(bus))
    assert (letter.reason, letter.command_id, bench.refunds) == (bench.end, ID, 0)
    assert (await bus.commands.status(ID)).state == "parked"
    return str(letter.id)


async def is_suspended(bus: CommandBus) -> bool:
    return (await bus.commands.status(ID)).suspension is not None


@pytest.mark.parametrize("row", quick(ROWS, [row for row in ROWS if "no_handler" in row or "undecodable, lost" in row]))
async def test_what_has_begun_is_undone_or_waits_for_a_decision(sandbox: Sandbox, row: str) -> None:
    end, moment, decision = row.split(", ")
    bench = Bench(sandbox, end)
    bench.undoing = moment == "undoing"
    async with sandbox.bus(unknown_grace=0.0) as bus:
        await bus.entity("stock", "gate").pause("so that it is not undone yet")
        receipt = await bus.dispatch(Flow(order="o-1"), command_id=ID, keep_result=True)
        async with bus.worker():
            await until(lambda: is_suspended(bus))
        await bench.spoil()
        await bus.entity("stock", "gate").resume()
        if not bench.undoing:
            await bus.commands.signal(ID, "go")
        async with bench.lost(moment), bench.unable() as other:
            async with other.worker():
                letter_id = "" if decision == "left" else await parked(bus, bench)
                if decision == "discarded":
                    await bus.dead_letters.discard(letter_id)
                if decision != "replayed" and end != "bad_signature":
                    await bus.wait_idle(20)
                    assert bench.refunds == 1
            if decision == "replayed":
                await bench.envelope(bench.sound)
                await bus.dead_letters.replay(letter_id)
                assert (await bus.commands.status(ID)).state == "waiting"
        async with bus.worker():
            await bus.wait_idle(20)
            if decision == "replayed":
                with pytest.raises(CommandRejected, match="no stock"):
                    await receipt.result(timeout=10)
            assert not await bus.dead_letters.count()
    assert bench.refunds == 1
    assert await bench.shop.side_records() == []


async def test_what_has_begun_has_no_deadline(sandbox: Sandbox) -> None:
    """Also where all that it had is one start, whose worker has handed it back."""
    shop, hangs = Shop(sandbox), [True]

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.call(Reserve(sku="s-1"), undo=Refund(account="a-1"))
        if hangs.pop():
            hangs.append(False)
            shop.log.append("hangs")
            await asyncio.gather(context.signal("go"), asyncio.sleep(0))
        raise Reject("no stock")

    async with sandbox.bus() as bus:
        async with bus.worker(grace=0):
            receipt = await bus.dispatch(Flow(order="o-1"), expires=1, keep_result=True)
            await until(lambda: shop.count("hangs"))
        await asyncio.sleep(1)
        async with bus.worker():
            with pytest.raises(CommandRejected, match="no stock"):
                await receipt.result(timeout=10)
    assert shop.count(("refund", "a-1")) == 1
