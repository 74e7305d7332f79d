"""Another priority for what waits: one entity's line, one command, all that filters choose."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    Limit,
    RetryPolicy,
    Unique,
    lanes,
)
from command_bus.admin.selection import BulkStep
from command_bus.errors import InvalidCommand
from tests.conformance.conftest import Sandbox

REGISTRY = HandlerRegistry()
ran: list[str] = []
began, goes_on = asyncio.Event(), asyncio.Event()
FEW = 8 + 12
"""Entities before one that is urgent: those that were ready, and those that a fetch brought."""


class Ship(Command[None], entity="parcel", retry=RetryPolicy(attempts=3, delay=0.3)):
    parcel: EntityId
    note: str = ""
    fails: bool = False


class Pull(Command[None], entity="page", limits=(Limit("partner"),)):
    page: EntityId


class Import(Command[None], entity="file", fair_by="customer"):
    file: EntityId
    customer: str


class Approve(Command[None], entity="order", durable=True):
    order: EntityId


class Note(Command[None]):
    text: str


@REGISTRY.handles(Ship)
async def ship(command: Ship, context: CommandContext) -> None:
    if command.fails and context.attempt == 1:
        raise RuntimeError("as planned")
    ran.append(f"{command.parcel}{command.note}")


@REGISTRY.handles(Pull)
async def pull(command: Pull) -> None:
    ran.append(str(command.page))
    if command.page == "first":
        began.set()
        await goes_on.wait()


@REGISTRY.handles(Import)
async def imported(command: Import) -> None:
    ran.append(str(command.file))


@REGISTRY.handles(Approve)
async def approve(command: Approve, context: DurableContext) -> None:
    await context.signal("yes")
    ran.append(str(command.order))


@REGISTRY.handles(Note)
async def note(command: Note) -> None:
    ran.append(command.text)


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()
    began.clear()
    goes_on.clear()


async def bulk(bus: CommandBus, count: int = 300) -> None:
    await bus.dispatch_batch(Ship(parcel=f"b{number}") for number in range(count))


async def work_off(bus: CommandBus) -> None:
    async with bus.worker(concurrency=4):
        await bus.wait_idle(30)


async def last(steps: Any) -> BulkStep:
    *_, step = [each async for each in steps]
    return step


async def priorities(bus: CommandBus, entity_type: str = "parcel") -> dict[str, str]:
    found = (await bus.entities.of(entity_type).list(limit=1000)).entities
    return {each.name: each.priority for each in found if each.priority != "normal"}


@pytest.mark.promise("Priorities and shares")
async def test_an_entity_passes_what_waits_though_nothing_had_a_priority_before(sandbox: Sandbox) -> None:
    """What was ready before is brought back into the line. agenda#1254, bullmq#2387, bullmq#2507."""
    async with sandbox.bus(registry=REGISTRY) as bus:
        await bulk(bus)
        assert await bus.entity("parcel", "b290").prioritize("normal"), "it is of this priority: nothing is switched on"
        assert not await bus.entity("parcel", "none").prioritize("high")
        assert not [key for key in await sandbox.keys() if key.endswith(":flows")]
        await bus.dispatch(Ship(parcel="b290", note="x"))
        assert await bus.entity("parcel", "b290").prioritize("high")
        assert await bus.entity("parcel", "b1").prioritize("low")
        assert await priorities(bus) == {"parcel:b290": "high", "parcel:b1": "low"}
        await work_off(bus)
        assert len(ran) == 301
        assert ran.index("b290") <= FEW
        assert ran.index("b290") < ran.index("b290x") <= FEW + 4, "its order stays"
        with pytest.raises(InvalidCommand, match="'high', 'normal' or 'low'"):
            await bus.entity("parcel", "b1").prioritize("urgent")  # type: ignore[arg-type]


async def test_it_holds_for_what_waits_now_and_what_comes_later_counts_by_its_own(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=REGISTRY) as bus:
        await bulk(bus, 40)
        for entity, priority in (("low", "high"), ("high", "low"), ("back", "high")):
            await bus.dispatch(Ship(parcel=entity), priority=priority)
        for entity, priority in (("low", "low"), ("high", "high"), ("back", "normal")):
            await bus.entity("parcel", entity).prioritize(priority)
        assert await priorities(bus) == {"parcel:low": "low", "parcel:high": "high"}
        await bus.dispatch(Ship(parcel="low", note="2"))
        await bus.dispatch(Ship(parcel="high", note="2"), priority="low")
        assert await priorities(bus) == {"parcel:high": "high"}, "a normal command behind low ones lifts them"
        await work_off(bus)
        assert ran.index("high") <= FEW


async def test_a_retry_has_the_new_priority(sandbox: Sandbox) -> None:
    """Betterment/delayed#123, bull#1755: a retry came back with the priority of its enqueue, or with none."""
    async with sandbox.bus(registry=REGISTRY) as bus:
        await bus.dispatch(Ship(parcel="r", fails=True))
        async with bus.worker(concurrency=1):
            while not [each async for each in bus.commands.select(state="retrying")]:
                await asyncio.sleep(0.01)
        assert await bus.entity("parcel", "r").prioritize("high")
        await bulk(bus)
        await asyncio.sleep(0.4)
        assert await priorities(bus) == {"parcel:r": "high"}
        await work_off(bus)
        assert ran.index("r") <= FEW + 8


async def test_a_delayed_command_keeps_the_new_priority_when_it_is_due_or_promoted(sandbox: Sandbox) -> None:
    """bull#915, bull#1205: a delayed one came as if it had none."""
    async with sandbox.bus(registry=REGISTRY) as bus:
        for name in ("one", "two", "three"):
            await bus.dispatch(Ship(parcel=name), delay=60, command_id=name, priority="low")
        await bulk(bus)
        assert not await bus.entity("parcel", "one").prioritize("high"), "it is not in line yet"
        assert await bus.commands.prioritize("one", "high")
        assert (await last(bus.commands.select(state="delayed", where={"parcel": "two"}).prioritize("high"))).done == 1
        for name in ("one", "two", "three"):
            assert await bus.commands.reschedule(name, delay=0)
        await work_off(bus)
        assert max(ran.index("one"), ran.index("two")) <= 2 * FEW
        assert len(ran) == 303
        assert not await bus.commands.prioritize("one", "high"), "it has ended"
        assert not await bus.commands.prioritize("unknown", "high")


async def test_paused_entities_have_the_new_priority_when_they_go_on(sandbox: Sandbox) -> None:
    """bull#922: what was moved while the queue was paused came back in another order."""
    async with sandbox.bus(registry=REGISTRY) as bus:
        await bulk(bus)
        await bus.entities.of("parcel").pause("stock")
        async with bus.worker(concurrency=4):
            await asyncio.sleep(0.3)  # what was ready is set aside
        for entity in ("b2", "b250"):
            assert await bus.entity("parcel", entity).prioritize("high")
        await bus.entity("parcel", "b1").prioritize("low")
        await bus.entities.of("parcel").resume()
        await work_off(bus)
        assert max(ran.index("b2"), ran.index("b250")) <= FEW
        assert len(ran) == 300


async def test_what_waits_for_a_limit_gets_another_place_in_its_queue(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=REGISTRY) as bus, bus.worker(concurrency=8):
        await bus.limits.put("partner", concurrency=1)
        for page in ("first", *map(str, range(6))):
            await bus.dispatch(Pull(page=page))
        await began.wait()
        while len([each async for each in bus.commands.select(state="limited")]) < 6:
            await asyncio.sleep(0.02)
        assert await bus.entity("page", "5").prioritize("high")
        assert await bus.entity("page", "0").prioritize("low")
        await asyncio.sleep(0.3)  # it asks again
        goes_on.set()
        await bus.wait_idle(30)
    assert ran[:2] == ["first", "5"]


async def test_all_that_match_get_it_and_a_line_is_one(sandbox: Sandbox) -> None:
    """awa#307: one act for one job and for all of a filter; attempts and unique keys stay as they are."""
    async with sandbox.bus(registry=REGISTRY) as bus:
        await bulk(bus, 30)
        await bus.dispatch(Ship(parcel="u", note="1"), unique=Unique("k"))
        await bus.dispatch(Ship(parcel="u", note="2"))
        select = bus.commands.select
        assert await last(select(where={"note": "2"}).prioritize("high", dry_run=True)) == BulkStep(32, 1, 0, 0, complete=True)
        assert await last(select(where={"note": "2"}).prioritize("high")) == BulkStep(32, 1, 1, 0, complete=True)
        assert await priorities(bus) == {"parcel:u": "high"}
        assert (await bus.dispatch(Ship(parcel="u", note="3"), unique=Unique("k"))).status == "duplicate"
        step = await last(select(name="Ship").prioritize("low", limit=20))
        assert (step.matched, step.done) == (20, 20)
        assert (await last(select().prioritize("normal"))).done == 32
        assert await priorities(bus) == {}
        await work_off(bus)
        assert ran.index("u1") < ran.index("u2")
        assert len(ran) == 32


async def test_tenants_and_lanes_and_commands_without_an_entity_keep_what_they_are(sandbox: Sandbox) -> None:
    settings = {"entities": {"parcel": EntityPolicy(mailbox=lanes(2))}}
    async with sandbox.bus(registry=REGISTRY, **settings) as bus:
        await bus.dispatch_batch(Import(file=f"f{number}", customer="acme") for number in range(30))
        assert await bus.entity("file", "f25").prioritize("high")
        found = (await bus.entities.of("file").list(limit=100)).entities
        assert {each.tenant for each in found} == {"acme"}
        assert await priorities(bus, "file") == {"file:f25": "high"}
        await bus.dispatch_batch(Note(text=f"n{number}") for number in range(30))
        receipt = await bus.dispatch(Note(text="urgent"))
        assert await bus.commands.prioritize(receipt.command_id, "high")
        await bus.dispatch_batch(Ship(parcel=f"p{number}") for number in range(4))
        assert await bus.entity("parcel", "p1").prioritize("low"), "that is its lane"
        await work_off(bus)
        assert max(ran.index("f25"), ran.index("urgent")) <= FEW + 4
        assert len(ran) == 65


async def test_a_durable_one_that_waits_has_it_when_it_goes_on(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=REGISTRY) as bus:
        receipt = await bus.dispatch(Approve(order="o"))
        async with bus.worker(concurrency=1):
            while (await bus.commands.status(receipt.command_id)).state != "suspended":
                await asyncio.sleep(0.01)
        assert await bus.entity("order", "o").prioritize("high")
        await bulk(bus)
        await bus.commands.signal(receipt.command_id, "yes")
        await work_off(bus)
        assert ran.index("o") <= FEW
