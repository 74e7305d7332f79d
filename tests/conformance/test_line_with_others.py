"""The line beside limits, unique keys, schedules and the tools of operators: each keeps what it promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, Limit, Rate, Unique, every
from command_bus.messages.limits import Rate as StepRate
from command_bus.transport.flows import flow_of
from command_bus.transport.steps import LimitQuestion, Released, Started, Take
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done
from tests.conformance.limits.limit_bench import LimitBench
from tests.conformance.schedules.schedule_parts import MINUTE, Clock, fire
from tests.conformance.steps.test_line_steps import LOW, OPEN, fill, in_line, put, run_all, use_line
from tests.conformance.unique.test_unique_steps import send, stander, submission

HIGH = flow_of("high")
registry = HandlerRegistry()
ran: list[tuple[str, int]] = []


class Bulk(Command[None], entity="bulk", priority="low"):
    bulk: EntityId
    n: int = 0


class Sync(Command[None], entity="shop", fair_by="customer"):
    shop: EntityId
    customer: str
    n: int = 0


class Save(Command[None], entity="doc", unique=Unique(wins="latest"), priority="high"):
    doc: EntityId
    n: int = 0


class Pull(Command[None], entity="page", limits=(Limit("partner", key="partner"),), priority="low"):
    page: EntityId
    partner: str
    n: int = 0


@registry.handles(Bulk)
async def bulk(command: Bulk) -> None:
    ran.append((f"bulk:{command.bulk}", command.n))


@registry.handles(Sync)
async def sync(command: Sync) -> None:
    ran.append((f"shop:{command.shop}", command.n))


@registry.handles(Save)
async def save(command: Save) -> None:
    ran.append((f"doc:{command.doc}", command.n))


@registry.handles(Pull)
async def pull(command: Pull) -> None:
    ran.append((f"page:{command.page}", command.n))


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@pytest.fixture
def bench(harness: TransportHarness) -> LimitBench:
    return LimitBench(harness)


def assert_each_once_in_order(name: str, entities: int, each: int) -> None:
    for number in range(entities):
        assert [n for who, n in ran if who == f"{name}:{number}"] == list(range(each))


@pytest.mark.parametrize("shards", [1, 3])
async def test_what_is_limited_waits_for_both_and_keeps_its_order(sandbox: Sandbox, shards: int) -> None:
    async with sandbox.bus(registry=registry, shards=shards) as bus:
        await bus.limits.put("type:shop", Rate(400, burst=20))
        await bus.limits.put("partner", concurrency=2)
        for n in range(3):
            await bus.dispatch_batch(Sync(shop=str(number), customer=f"c{number % 2}", n=n) for number in range(60))
            await bus.dispatch_batch(Bulk(bulk=str(number), n=n) for number in range(60))
            await bus.dispatch_batch(Pull(page=str(number), partner=f"p{number % 3}", n=n) for number in range(12))
        async with bus.worker(concurrency=6), bus.worker(concurrency=6):
            await bus.wait_idle(60)
        assert (await bus.stats()).depth == 0
    assert_each_once_in_order("shop", 60, 3)
    assert_each_once_in_order("bulk", 60, 3)
    assert_each_once_in_order("page", 12, 3)


async def test_a_lone_command_that_was_in_the_line_keeps_its_id_while_its_limit_is_asked(
    bench: LimitBench, harness: TransportHarness
) -> None:
    await bench.put("type:other", concurrency=1)
    await fill(harness, LOW, OPEN)
    await put(harness, "other:a", HIGH, "a1")
    before = await harness.record("other:a")
    assert before is not None
    assert (before.state, before.message != "") == ("q", True)
    worker = harness.worker()
    worker.batches._is_first = False
    await use_line(harness, worker)
    for lease in await worker.read(OPEN):
        assert isinstance(await worker.do(lease, TAKE), Started)
    await use_line(harness, worker)
    lease = await worker.read_one()
    asked = await worker.do(lease, TAKE)
    assert isinstance(asked, LimitQuestion)
    assert (asked.message, asked.envelope) == (before.message, b"a1")
    record = await harness.record("other:a")
    assert record is not None
    assert (record.state, record.message or record.activation) == ("o", before.message), "the same millisecond, the same id"
    started = await worker.do(lease, Take(asked.message))
    assert isinstance(started, Started)
    assert (started.message, started.envelope, started.attempt) == (before.message, b"a1", 1)
    assert await worker.do(lease, done("a1")) == Released("idle")


async def test_who_is_granted_by_a_limit_does_not_wait_in_the_line_again(bench: LimitBench, harness: TransportHarness) -> None:
    """It has paid for its start there, and holds what others wait for."""
    await bench.put("type:other", StepRate(20, burst=1))
    worker = bench.worker()
    await put(harness, "other:a", HIGH, "a1", "a2")
    await put(harness, "other:b", HIGH, "b1", "b2")
    await use_line(harness, worker)
    first, second = await worker.read()
    assert isinstance(await worker.do(first, TAKE), Started)
    assert await worker.do(second, TAKE) == Released("wait")
    await fill(harness, HIGH, OPEN + 5)
    waiting = len(await in_line(harness))
    assert waiting >= 5
    await bench.wake_until(OPEN + 1)
    assert await bench.state("other:b") == "r"
    assert len(await in_line(harness)) == waiting
    (lease,) = [each for each in await worker.read(1000) if each.mailbox == "other:b"]
    started = await worker.do(lease, TAKE)
    assert isinstance(started, Started)
    assert started.envelope == b"b1"


async def test_what_waits_in_the_line_keeps_its_place_at_the_limit(bench: LimitBench, harness: TransportHarness) -> None:
    """As what is ready does: its worker has yet to say that it was refused."""
    await bench.put("shopify", concurrency=1)
    await fill(harness, LOW, OPEN)
    await put(harness, "other:a", LOW, "a1")
    worker = bench.worker()
    await harness.put("other:b", "b1")
    record = await harness.record("other:a")
    assert record is not None
    assert record.state == "q"
    first = (await worker.read(1))[0]
    assert await bench.asks.ask(first, "1-1", "1 name:shopify", must_yield=False)
    first.mailbox, mailbox = "other:a", first.mailbox
    assert not await bench.asks.ask(first, "1-1", "1 name:shopify", must_yield=False)
    await bench.asks.over(mailbox, first.activation)
    await bench.wake()
    assert await bench.queue("name:shopify") == ["other:a"]


async def test_a_unique_command_lifts_its_entity_and_is_replaced_in_the_line(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    await fill(harness, LOW, OPEN + 5)
    assert await send(harness, submission("c0", flow=LOW)) == "+"
    record = await harness.record("box:a")
    assert record is not None
    assert (record.state, record.holder[0]) == ("q", "2")
    assert await send(harness, submission("c1", flow=HIGH)) == "r"
    record = await harness.record("box:a")
    assert record is not None
    assert (record.state, record.holder[0]) == ("q", "0"), "it has moved forward"
    assert await in_line(harness) == ["box:a", *(f"box:f{OPEN + each}" for each in range(5))]
    assert await harness.mailboxes.depth("box:a") == 1
    order = await run_all(harness, worker)
    assert order.index("box:a") == OPEN
    assert await harness.nothing_of("box:a")


async def test_the_first_unique_command_with_a_class_puts_the_line_into_use(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    assert not await harness.client.exists(harness.shard.flows)
    assert await send(harness, submission("c0", flow=HIGH)) == "+"
    assert await harness.client.exists(harness.shard.flows)
    assert await run_all(harness, worker) == ["box:a"]


async def test_a_delayed_unique_command_keeps_its_class_and_its_key(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN + 5)
    assert await send(harness, submission("c0", flow=LOW)) == "+"
    assert await send(harness, submission("c1", flow=HIGH, delay_ms=1)) == "r"
    record = await harness.record("box:a")
    assert record is not None
    assert record.state == "q", "it stays in the line, although it is empty for now"
    await asyncio.sleep(0.005)
    await harness.promote(worker)
    known = await stander(harness)
    assert known is not None
    assert (known.command_id, known.place != "d") == ("c1", True)
    record = await harness.record("box:a")
    assert record is not None
    assert (record.state, record.holder[0]) == ("q", "0")
    order = await run_all(harness, worker)
    assert order.count("box:a") == 1
    assert await harness.nothing_of("box:a")


async def test_an_entity_whose_only_command_was_replaced_by_a_later_one_leaves_the_line(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    await fill(harness, LOW, OPEN + 5)
    assert await send(harness, submission("c0", flow=LOW)) == "+"
    assert await send(harness, submission("c1", flow=LOW, delay_ms=60_000)) == "r"
    assert "box:a" not in await run_all(harness, worker)
    assert await harness.record("box:a") is None
    assert await in_line(harness) == []
    assert await stander(harness) is not None, "the delayed one holds the key"


@pytest.fixture
async def bus(sandbox: Sandbox, clock: Clock) -> AsyncIterator[CommandBus]:
    async with sandbox.bus(registry=registry) as bus:
        yield clock.rule(bus)


class Check(Command[None], entity="page", priority="high"):
    page: EntityId
    n: int = 0


class Visit(Command[None], entity="page", name="visit", fair_by="customer"):
    page: EntityId
    customer: str


registry.handles(Check)(lambda command: None)
registry.handles(Visit)(lambda command: None)


async def test_a_firing_has_the_priority_of_its_class(bus: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("check", Check(page="1"), every(60))
    await bus.schedules.put("calm", Sync(shop="1", customer="c"), every(60))
    clock.ms += MINUTE + 250
    assert await fire(bus, "check", "calm") == []
    assert (await bus.entity("page", "1").show()).entity.priority == "high"
    assert (await bus.entity("shop", "1").show()).entity.priority == "normal"
    clock.ms += MINUTE
    await bus.dispatch_batch(Bulk(bulk=str(number)) for number in range(OPEN))
    assert await fire(bus, "check", "calm") == []
    assert [each.depth for each in (await bus.entities.of("page").list()).entities] == [2]


async def test_a_firing_is_in_the_share_of_its_tenant(bus: CommandBus, clock: Clock) -> None:
    """Also once it is put again for another one, and of an entity that has no other work."""
    await bus.schedules.put("visit", Visit(page="9", customer="acme"), every(60))
    await bus.schedules.put_raw("raw", "page", "8", "visit", {"page": "8", "customer": "acme"}, every(60))
    clock.ms += MINUTE + 250
    assert await fire(bus, "visit", "raw") == []
    assert (await bus.entity("page", "9").show()).entity.tenant == "acme"
    assert (await bus.entity("page", "8").show()).entity.tenant is None, "without the class nobody knows the field"
    await bus.schedules.put("visit", Visit(page="9", customer="small"), every(60))
    clock.ms += MINUTE
    assert await fire(bus, "visit") == []
    assert (await bus.entity("page", "9").show()).entity.tenant == "small"
    assert [each.tenant for each in await bus.fairness.list() if each.waiting and each.tenant] == ["small"]


async def test_a_firing_waits_in_the_line_and_lifts_what_waits_there(bus: CommandBus, clock: Clock) -> None:
    await bus.schedules.put("check", Check(page="1"), every(60))
    await bus.schedules.put("new", Check(page="2"), every(60))
    await bus.dispatch_batch(Bulk(bulk=str(number)) for number in range(OPEN + 10))
    await bus.dispatch(Pull(page="1", partner="p"))
    clock.ms += MINUTE + 250
    assert await fire(bus, "check", "new") == []
    figures = {each.priority: each.waiting for each in (await bus.stats()).priorities}
    assert figures["high"] == 2
    assert figures["low"] >= 10
    async with bus.worker(concurrency=4):
        await bus.wait_idle(30)
    assert ran.index(("page:1", 0)) < OPEN + 8, (
        "behind what was open, before what waited: as the last it would be number OPEN + 11"
    )


async def test_counts_are_right_and_an_obliteration_leaves_nothing(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        await bus.dispatch_batch(Bulk(bulk=str(number % (OPEN + 20))) for number in range(2 * OPEN))
        await bus.dispatch(Save(doc="d", n=1))
        await bus.dispatch(Save(doc="d", n=2))
        await bus.fairness.put("acme", weight=3)
        found = await bus.entities.recount()
        assert found.stored == found.counted == 2 * OPEN + 1
        assert await bus.entities.purge() == 2 * OPEN + 1
        assert {each.waiting for each in (await bus.stats()).priorities} == {0}
        await bus.dispatch_batch(Bulk(bulk=str(number)) for number in range(2 * OPEN))
        await bus.entities.obliterate(confirm=sandbox.namespace)
        client = sandbox.client()
        try:
            assert [key async for key in client.scan_iter(match=f"*{sandbox.namespace}*")] == []
        finally:
            await client.aclose()
