"""Events on a `TestBus`: what handlers subscribe to gets them, and `published` has each once."""

from __future__ import annotations

from command_bus import Command, CommandContext, EntityId, Event, HandlerRegistry, RawEvent, RetryPolicy
from command_bus.testing import TestBus


class Placed(Event, entity="order", name="order.placed"):
    order: EntityId


class Ignored(Event, entity="order"):
    order: EntityId


class Place(Command[None], entity="order", retry=RetryPolicy(attempts=3, delay=60.0)):
    order: EntityId


registry = HandlerRegistry()
mails: list[str] = []


@registry.subscribes("mail", "order.*")
async def mail(event: RawEvent) -> None:
    mails.append(event.entity_id())


@registry.handles(Place)
async def place(command: Place, context: CommandContext) -> None:
    context.publish(Placed(order=command.order))
    if context.attempt == 1:
        raise ValueError("later")


async def test_events_reach_subscriptions_and_are_noted() -> None:
    mails.clear()
    async with TestBus(registry) as bus:
        published = await bus.publish(Placed(order="o-1"))
        assert published.subscriptions == ("mail",)
        assert (await bus.publish(Ignored(order="o-1"))).subscriptions == ()
        await bus.dispatch(Place(order="o-2"))
        bus.crash_after("handled", Place, nth=2)
        await bus.run_until_idle()
        assert mails == ["o-1", "o-2"]
        assert [(each.command, each.entity) for each in bus.published] == [
            (Placed(order="o-1"), "order:o-1"),
            (Ignored(order="o-1"), "order:o-1"),
            (Placed(order="o-2"), "order:o-2"),
        ]
        assert bus.dispatched == [Place(order="o-2")]


async def test_a_handler_is_tested_as_a_plain_function() -> None:
    context = CommandContext(command_id="c-1", attempt=2)
    await place(Place(order="o-1"), context)
    assert context.sent == (Placed(order="o-1"),)
