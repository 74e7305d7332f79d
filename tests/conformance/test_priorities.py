"""Priorities and fair shares, as an application sees them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from command_bus import Command, CommandContext, EntityId, EntityPolicy, Envelope, HandlerRegistry, RetryPolicy
from command_bus.errors import InvalidCommand, InvalidSettings, RegistrationError
from command_bus.transport.flows import Flow
from tests.conformance.conftest import Sandbox

registry = HandlerRegistry()
ran: list[tuple[str, str]] = []
pace: list[float] = [0.0]


class Bulk(Command[None], entity="bulk", priority="low"):
    bulk: EntityId


class Charge(Command[None], entity="account"):
    account: EntityId
    note: str = ""


class Urgent(Command[None], entity="account", priority="high"):
    account: EntityId


class Import(Command[None], entity="file", fair_by="customer", retry=RetryPolicy(attempts=3, delay=0.01)):
    file: EntityId
    customer: str
    fails: int = 0


class Report(Command[None], entity="report"):
    report: EntityId


@registry.handles(Bulk)
async def bulk(command: Bulk) -> None:
    ran.append(("bulk", str(command.bulk)))


@registry.handles(Charge)
async def charge(command: Charge) -> None:
    ran.append(("account", f"{command.account}{command.note}"))


@registry.handles(Urgent)
async def urgent(command: Urgent) -> None:
    ran.append(("urgent", str(command.account)))


@registry.handles(Import)
async def imported(command: Import, context: CommandContext) -> None:
    ran.append((command.customer, str(command.file)))
    if context.attempt <= command.fails:
        raise RuntimeError("as planned")


@registry.handles(Report)
async def report(command: Report) -> None:
    ran.append(("report", str(command.report)))


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


async def test_urgent_work_passes_bulk_work_that_waits(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        await bus.dispatch_batch(Bulk(bulk=f"b{number}") for number in range(300))
        await bus.dispatch(Charge(account="a", note="1"))
        await bus.dispatch(Charge(account="a", note="2"), priority="high")
        found = (await bus.entities.of("account").list()).entities
        assert [(each.name, each.priority, each.tenant) for each in found] == [("account:a", "high", None)]
        figures = {each.priority: each.waiting for each in (await bus.stats()).priorities}
        assert figures["high"] == 1
        assert figures["low"] == 300 - 8
        assert (await bus.stats()).ready == 301
        async with bus.worker(concurrency=4):
            await bus.wait_idle(30)
        starts = {each.priority: each.started for each in (await bus.stats()).priorities}
    place = ran.index(("account", "a2"))
    assert ran.index(("account", "a1")) <= 8 + 4, "behind what was ready, and what a fetch brought"
    assert ran.index(("account", "a1")) < place <= 8 + 12
    assert len(ran) == 302
    assert starts == {"high": 2, "normal": 0, "low": 300}, "its first command, too, was lifted"


@pytest.mark.promise("Priorities and shares")
async def test_a_call_has_a_priority_of_its_own(sandbox: Sandbox) -> None:
    """Also a raw one, and what stands before it in its entity's line is lifted with it."""
    async with sandbox.bus(registry=registry) as bus:
        await bus.dispatch_batch(Bulk(bulk=f"b{number}") for number in range(300))
        await bus.dispatch(Charge(account="a", note="1"), priority="low")
        async with asyncio.TaskGroup() as callers:
            callers.create_task(bus.call(Charge(account="a", note="2"), priority="high", timeout=30))
            callers.create_task(bus.call_raw("account", "b", "Charge", {"account": "b"}, priority="high", timeout=30))
            while len(found := (await bus.entities.of("account").list()).entities) < 2 or found[0].depth < 2:
                await asyncio.sleep(0.01)
            assert {(each.name, each.priority) for each in found} == {("account:a", "high"), ("account:b", "high")}
            async with bus.worker(concurrency=4):
                await bus.wait_idle(30)
    assert max(ran.index(("account", each)) for each in ("a1", "b")) <= 8 + 4, "behind what was ready, and what a fetch brought"
    assert ran.index(("account", "a2")) <= 8 + 12
    with pytest.raises(InvalidCommand, match="priority='urgent'"):
        await bus.call(Charge(account="a"), priority="urgent")  # type: ignore[arg-type]


async def test_a_class_and_an_entity_type_have_a_priority(sandbox: Sandbox) -> None:
    settings = {"entities": {"report": EntityPolicy(priority="low"), "account": EntityPolicy(priority="low")}}
    async with sandbox.bus(registry=registry, **settings) as bus:
        await bus.dispatch_batch(Report(report=f"r{number}") for number in range(100))
        await bus.dispatch(Urgent(account="u"))
        await bus.dispatch(Charge(account="c"), priority="normal")
        await bus.dispatch_raw("report", "raw", "Report", {"report": "raw"}, priority="high")
        await bus.dispatch_batch([Envelope(Report(report="e"), priority="high")])
        page = await bus.entities.list(limit=1000)
        by_name = {each.name: each.priority for each in page.entities}
        assert by_name["report:r99"] == "low"
        assert (by_name["account:u"], by_name["account:c"]) == ("high", "normal")
        assert (by_name["report:raw"], by_name["report:e"]) == ("high", "high")
        async with bus.worker(concurrency=4):
            await bus.wait_idle(30)
    assert len(ran) == 104


async def test_tenants_share_and_are_listed(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        await bus.fairness.put("acme", weight=3)
        for customer in ("small", "acme"):
            await bus.dispatch_batch(Import(file=f"{customer}{number}", customer=customer) for number in range(200))
        listed = await bus.fairness.list()
        assert [(each.tenant, each.weight, each.waiting) for each in listed] == [("acme", 3.0, 200), ("small", 1.0, 200)]
        found = await bus.entity("file", "acme199").show()
        assert (found.entity.priority, found.entity.tenant) == ("normal", "acme")
        async with bus.worker(concurrency=4):
            await bus.wait_idle(30)
        assert await bus.fairness.remove("acme")
        assert not await bus.fairness.remove("acme")
        assert {each.tenant: (each.weight, each.waiting) for each in await bus.fairness.list()} == {
            "acme": (1.0, 0),
            "small": (1.0, 0),
        }
    contended = Counter(customer for customer, _ in ran[64:224])
    assert 0.71 <= contended["acme"] / 160 <= 0.79, "three of four, within five percent"


async def test_a_command_that_is_dispatched_alone_has_its_tenant(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        for file in ("first", "next"):  # the next one is built in another way: its entity type is agreed on
            await bus.dispatch(Import(file=file, customer="acme"))
        assert [(each.tenant, each.waiting) for each in await bus.fairness.list()] == [("acme", 2)]


async def test_what_was_served_in_the_last_minute_is_listed(sandbox: Sandbox) -> None:
    """By tenant and priority, further commands of an entity included; what waits is not served."""
    async with sandbox.bus(registry=registry) as bus:
        await bus.dispatch_batch(Import(file=f"a{number % 5}", customer="acme") for number in range(15))
        await bus.dispatch_batch([Envelope(Import(file=f"s{number}", customer="small"), priority="high") for number in range(3)])
        await bus.dispatch_batch(Bulk(bulk=str(number)) for number in range(4))
        async with bus.worker(concurrency=4):
            await bus.wait_idle(30)
        found = {each.tenant: (each.served, each.served_high, each.served_low) for each in await bus.fairness.list()}
    assert found["acme"] in ((15, 0, 0), (14, 0, 0)), "fourteen if a minute has begun just now"
    assert found["small"] in ((3, 3, 0), (2, 2, 0))
    assert found[""] in ((4, 0, 4), (3, 0, 3))


async def test_a_tenant_alone_gets_all_and_retries_count(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        await bus.fairness.put("other", weight=1000)
        await bus.dispatch_batch(Import(file=f"f{number}", customer="only", fails=number % 2) for number in range(150))
        async with bus.worker(concurrency=8):
            await bus.wait_idle(30)
    assert len(ran) == 225


@pytest.mark.promise("Priorities and shares")
async def test_switched_on_under_load_with_workers_that_die(sandbox: Sandbox) -> None:
    """No command is lost, none runs out of its entity's order, and nothing stands still."""
    async with sandbox.bus(registry=registry, lease=1.0) as bus:
        await bus.dispatch_batch(Charge(account=f"a{number % 150}", note=f"-{number // 150}") for number in range(450))
        first = bus.worker(concurrency=4)
        await first.start()
        await bus.dispatch(Urgent(account="a149"))
        await bus.dispatch_batch(Bulk(bulk=f"b{number}") for number in range(100))
        await asyncio.sleep(0)
        await first.stop(0.0)
        async with bus.worker(concurrency=4):
            await bus.wait_idle(30)
    for number in range(150):
        notes = [text.partition("-")[2] for kind, text in ran if kind == "account" and text.partition("-")[0] == f"a{number}"]
        assert list(dict.fromkeys(notes)) == ["0", "1", "2"]
    assert {("urgent", "a149"), ("bulk", "b99")} <= set(ran)


async def test_74_a_priority_or_weight_that_is_none(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        with pytest.raises(InvalidCommand, match="priority='urgent': 'high', 'normal' or 'low'"):
            await bus.dispatch(Charge(account="a"), priority="urgent")  # type: ignore[arg-type]
        for weight in (0, -1, float("nan"), 1001, True):
            with pytest.raises(InvalidSettings, match=r"a number from 0.001 to 1,000"):
                await bus.fairness.put("acme", weight=weight)
        assert not (await bus.stats()).priorities, "nothing was written"
    with pytest.raises(RegistrationError, match="priority is 'high', 'normal' or 'low'"):

        class Wrong(Command[None], entity="file", priority="urgent"):  # type: ignore[arg-type]
            file: EntityId

    with pytest.raises(InvalidSettings, match=r"EntityPolicy\(priority='urgent'\)"):
        EntityPolicy(priority="urgent")  # type: ignore[arg-type]


async def test_75_a_tenant_that_cannot_be_one(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        with pytest.raises(InvalidCommand, match="a tenant may have 200 bytes"):
            await bus.dispatch(Import(file="f", customer="x" * 201))
        batch = await bus.dispatch_batch([Import(file="f", customer="x" * 201), Import(file="g", customer="fine")])
        assert [each.status for each in batch.outcomes] == ["rejected", "accepted"]
        with pytest.raises(InvalidSettings, match="tenant: not empty"):
            await bus.fairness.put("", weight=2)
        await bus.fairness.put("a/b c,|é", weight=2)
        await bus.dispatch(Import(file="h", customer="a/b c,|é"))
        assert [(each.tenant, each.weight, each.waiting) for each in await bus.fairness.list() if each.weight == 2] == [
            ("a/b c,|é", 2.0, 1)
        ]
    with pytest.raises(RegistrationError, match="fair_by='customer' names no field"):

        class Wrong(Command[None], entity="file", fair_by="customer"):
            file: EntityId


def test_starts_of_the_last_minute() -> None:
    from command_bus.transport.redis.admin.shares import served_lately

    assert served_lately("10:7:100", 10 * 60) == 107
    assert served_lately("10:7:100", 10 * 60 + 45) == 7 + 25
    assert served_lately("10:40:100", 11 * 60 + 45) == 10
    assert served_lately("10:40:100", 12 * 60) == 0
    assert served_lately("11:40:100", 10 * 60) == 0, "the clock has gone back"
    assert served_lately("garbage", 10 * 60) == 0


def test_a_flow_has_one_text() -> None:
    from command_bus.transport.flows import flow_of, flow_of_record, parse_flow

    assert flow_of("normal") == ""
    assert parse_flow("") == Flow("normal", "")
    assert parse_flow(flow_of("high", "a/b c")) == Flow("high", "a/b c")
    assert parse_flow("9x") == Flow("normal", "")
    assert flow_of_record(None, "5-1") == Flow("normal", "")
    runs = "1*9@,0acme*1@5-1,2*3@7-0"
    assert flow_of_record(runs, "4-9") == flow_of_record(runs, "") == Flow("high", "acme")
    assert flow_of_record(runs, "5-1") == Flow("high", "acme")
    assert flow_of_record(runs, "7-0") == Flow("low", "")
    assert flow_of_record("x", "7-0") == Flow("normal", "")
