"""Dispatches in bulk with priorities and tenants: they wait in the line as what is dispatched one by one does."""

from __future__ import annotations

import pytest

from command_bus import Command, CommandBus, EntityId, Envelope, HandlerRegistry
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.transport.ports.bulk import LoadItem, Opening, Version
from command_bus.transport.submissions import Admission
from tests.conformance.conftest import Sandbox
from tests.conformance.test_dispatches import load

ACCEPTED, DUPLICATE = Admission.ACCEPTED, Admission.DUPLICATE
OPEN = 8  # entities that the ready stream holds

registry = HandlerRegistry()
ran: list[str] = []


class Bulk(Command[None], entity="page", priority="low"):
    page: EntityId
    number: int = 0


class Import(Command[None], entity="file", fair_by="customer"):
    file: EntityId
    customer: str


@registry.handles(Bulk)
async def bulk(command: Bulk) -> None:
    ran.append(f"{command.page}{command.number or ''}")


@registry.handles(Import)
async def imported(command: Import) -> None:
    ran.append(command.customer)


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


def packed(bus: CommandBus, command: Command[None], command_id: str, priority: str | None = None) -> LoadItem:
    builder = EnvelopeBuilder(bus.settings)
    out = builder.of_item(Envelope(command, command_id=command_id, priority=priority))  # type: ignore[arg-type]
    submission = builder.build(out)
    return submission.mailbox, out.command_id, b"same", submission.envelope, out.entity_id or "", 0, submission.flow, None


async def opened(bus: CommandBus) -> Version:
    version = Version("d")
    await bus.session.transport.bulk.open(version, Opening())
    return version


async def waiting(bus: CommandBus) -> dict[str, int]:
    return {each.priority: each.waiting for each in (await bus.stats()).priorities}


@pytest.mark.promise("A row waits where Python's would")
async def test_what_is_loaded_waits_by_its_priority(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        low = [packed(bus, Bulk(page=f"p{number}"), f"c{number}") for number in range(200)]
        others = [packed(bus, Bulk(page="u"), "urgent", "high"), packed(bus, Bulk(page="n"), "usual", "normal")]
        assert await load(bus, version, low) == [ACCEPTED] * 200
        assert await waiting(bus) == {"high": 0, "normal": 0, "low": 200 - OPEN}
        assert await load(bus, version, others) == [ACCEPTED] * 2
        assert await waiting(bus) == {"high": 1, "normal": 1, "low": 200 - OPEN}
        assert (await bus.entity("page", "u").show()).entity.priority == "high"
        assert (await bus.entity("page", "n").show()).entity.priority == "normal"
        assert await load(bus, version, low + others) == [DUPLICATE] * 202
        assert await waiting(bus) == {"high": 1, "normal": 1, "low": 200 - OPEN}, "what is loaded again waits once"
        async with bus.worker(concurrency=4):
            await bus.wait_idle(30)
        assert len(ran) == 202
        assert ran.index("u") < OPEN + 12, "within what was ready, and a fetch"


async def test_an_urgent_row_lifts_its_entity_and_keeps_its_place(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        items = [packed(bus, Bulk(page=f"p{number}"), f"c{number}") for number in range(200)]
        await load(bus, version, items)
        await load(
            bus, version, [packed(bus, Bulk(page="u", number=1), "u1"), packed(bus, Bulk(page="u", number=2), "u2", "high")]
        )
        assert (await bus.entity("page", "u").show()).entity.priority == "high"
        async with bus.worker(concurrency=4):
            await bus.wait_idle(30)
        assert ran.index("u1") < ran.index("u2") < OPEN + 24


@pytest.mark.promise("A row waits where Python's would")
async def test_tenants_of_what_is_loaded_take_turns(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        items = [packed(bus, Import(file=f"a{number}", customer="large"), f"a{number}") for number in range(150)]
        items += [packed(bus, Import(file=f"b{number}", customer="small"), f"b{number}") for number in range(20)]
        await load(bus, version, items)
        assert {each.tenant for each in await bus.fairness.list() if each.waiting} == {"large", "small"}
        async with bus.worker(concurrency=1):
            await bus.wait_idle(30)
        assert len(ran) == 170
        last = len(ran) - ran[::-1].index("small")
        assert last <= 40 + 12, "in turn with the other, not behind it"


async def test_a_load_without_classes_and_tenants_starts_no_line(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        client = sandbox.client()
        flows = bus.session.redis.keys.shards[0].flows
        try:
            await load(bus, version, [packed(bus, Bulk(page="a"), "a", "normal")])
            assert not await client.exists(flows)
            await load(bus, version, [packed(bus, Bulk(page="b"), "b", "high")])
            assert await client.exists(flows)
        finally:
            await client.aclose()
