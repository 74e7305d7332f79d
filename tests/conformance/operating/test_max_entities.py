"""`max_entities`: how many entities may have work at a time. Each new one beyond that is refused, those that have work go on."""

from __future__ import annotations

import pytest

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    DurableContext,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    InvalidSettings,
    QueueFull,
)
from command_bus.transport.ports.bulk import Opening, Version
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.submissions import Admission
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Fast, Flow, Shop
from tests.conformance.list_server import ListServer
from tests.conformance.list_transport import lists
from tests.conformance.put_service import until
from tests.conformance.test_admission_rules import command
from tests.conformance.test_dispatches import item, load

ACCEPTED, BEHIND, MANY = Admission.ACCEPTED, Admission.PREDECESSOR_REFUSED, Admission.TOO_MANY_ENTITIES


class Order(Command[None], entity="shop"):
    shop: EntityId
    fails: bool = False


def registry() -> HandlerRegistry:
    handlers = HandlerRegistry()

    @handlers.handles(Order)
    async def order(command: Order) -> None:
        if command.fails:
            raise RuntimeError("the till is broken")

    return handlers


async def follow_the_rules(bus: CommandBus) -> None:
    """Check the limit of two, in a batch and one by one."""
    producer = bus.session.transport.producer
    batch = [command("a:1", "c1"), command("a:2", "c2"), command("a:3", "c3"), command("a:3", "c4"), command("a:1", "c5")]
    assert await producer.enqueue_many(batch, 5.0) == [ACCEPTED, ACCEPTED, MANY, BEHIND, ACCEPTED]
    assert await producer.enqueue(command("a:4", "c6"), 5.0) is MANY
    assert await producer.enqueue(command("a:2", "c7"), 5.0) is ACCEPTED, "it has work already"
    assert await producer.enqueue(command("a:4", "c1"), 5.0) is Admission.DUPLICATE, "a known id is answered as such"
    assert await producer.enqueue(command("a:4", "c8", delay_ms=60_000), 5.0) is MANY


async def test_on_every_server(sandbox: Sandbox) -> None:
    async with sandbox.bus(max_entities=2) as bus:
        await follow_the_rules(bus)


async def test_on_lists() -> None:
    async with CommandBus("redis://unused", open_transport=lists(ListServer()), max_entities=2) as bus:
        await follow_the_rules(bus)


@pytest.mark.promise("More entities have work than `max_entities` allows")
async def test_a_settled_entity_makes_room_and_a_parked_one_does_not(sandbox: Sandbox) -> None:
    sandbox.registry = registry()
    park = {"shop": EntityPolicy(on_poison="park")}
    async with sandbox.bus(max_entities=1, entities=park) as bus:
        async with bus.worker():
            await bus.dispatch(Order(shop="done"))
            await bus.wait_idle(timeout=20)
        await bus.dispatch(Order(shop="bad", fails=True), command_id="bad-1")
        async with bus.worker():
            await until(bus.dead_letters.count)
        with pytest.raises(QueueFull, match="max_entities") as refused:
            await bus.dispatch(Order(shop="other"))
        assert (refused.value.limit, refused.value.retryable) == ("entities", True)
        [letter] = [each async for each in bus.dead_letters.list()]
        await bus.dead_letters.discard(letter.id)
        assert (await bus.dispatch(Order(shop="other"))).status == "accepted"


@pytest.mark.promise("More entities have work than `max_entities` allows")
@pytest.mark.parametrize("way", ["paused", "suspended"])
async def test_paused_and_suspended_entities_count(sandbox: Sandbox, way: str) -> None:
    shop = Shop(sandbox)

    @shop.script
    async def order(context: DurableContext) -> None:
        await context.sleep(3600)

    async with sandbox.bus(max_entities=1) as bus, bus.worker():
        if way == "paused":
            await bus.entity("order", "o-1").pause()
        await bus.dispatch(Flow(order="o-1"))
        if way == "suspended":
            await shop.suspended()
        with pytest.raises(QueueFull) as refused:
            await bus.dispatch(Fast(order="o-2"))
        assert refused.value.limit == "entities"


@pytest.mark.promise("More entities have work than `max_entities` allows")
async def test_what_becomes_due_is_never_refused(sandbox: Sandbox) -> None:
    sandbox.registry = registry()
    async with sandbox.bus(max_entities=1) as bus:
        await bus.dispatch(Order(shop="later"), delay=0.05)
        await bus.dispatch(Order(shop="now"))
        async with bus.worker():
            await bus.wait_idle(timeout=20)
        assert (await bus.stats()).settled == 2


async def test_each_shard_has_its_part(sandbox: Sandbox) -> None:
    keys = KeySpace("unit", 4)
    assert (keys.limits(10, None), keys.limits(10, 6), keys.limits(1, 1)) == (3, "3:2", "1:1")
    async with sandbox.bus(max_entities=4, shards=2) as bus:
        batch = await bus.dispatch_batch([Order(shop=str(number)) for number in range(40)])
        assert [each.status for each in batch.outcomes].count("accepted") == 4
        assert {each.error.limit for each in batch.outcomes if isinstance(each.error, QueueFull)} == {"entities"}


async def test_a_load_in_bulk_stops_at_it(sandbox: Sandbox) -> None:
    async with sandbox.bus(max_entities=2) as bus:
        version = Version("d")
        await bus.session.transport.bulk.open(version, Opening())
        items = [item(bus, f"e-{number % 3}", number) for number in range(6)]
        assert await load(bus, version, items) == [ACCEPTED, ACCEPTED, MANY, ACCEPTED, ACCEPTED, BEHIND]


@pytest.mark.parametrize("wrong", [0, -1, "many", 1.5])
def test_90_a_wrong_number_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidSettings, match="max_entities"):
        BusSettings(max_entities=wrong)  # type: ignore[arg-type]
