"""Publication in the simulator, in some seeds: events of producers and of handlers, two subscriptions, and a third that comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from command_bus import (
    Command,
    CommandBus,
    CommandBusError,
    CommandContext,
    EntityId,
    Event,
    PublishedInPart,
    RawEvent,
    RetryPolicy,
)
from tests.simulation.news import LATE, Delivered, Story
from tests.simulation.workload import REGISTRY, current

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["PublicationLoad"]

_PART = 0.25
_RETRY: Any = {"attempts": 500, "delay": 0.15, "jitter": 0.3}


class Told(Event, entity="news", name="news.told"):
    news: EntityId
    tag: str


class Announce(Command[None], entity="news", retry=RetryPolicy(**_RETRY)):
    news: EntityId
    tag: str


async def _handle(tag: str, context: CommandContext) -> None:
    """Record a run, which fails or lasts as drawn from the seed."""
    simulation, now = current[-1], current[-1].loop.time
    run = Delivered(tag, context.subscription, context.entity_id or "", context.fence, now())
    simulation.history.news.runs.append(run)
    random = Random(f"{simulation.seed} {tag} {context.subscription} {context.attempt}")
    try:
        await asyncio.sleep(random.choice((0.0, 0.0, 0.01, 0.2)))
        if random.random() < 0.15:
            run.how = "failed"
            raise RuntimeError("as planned")
        run.how = "returned"
    finally:
        if current and current[-1] is simulation:
            run.ended = now()


@REGISTRY.handles(Announce)
async def announce(command: Announce, context: CommandContext) -> None:
    news = current[-1].history.news
    for number in range(2):
        tag = f"{command.tag}.{number}"
        news.stories.setdefault(tag, Story(tag, str(command.news), "", current[-1].loop.time(), cause=command.tag))
        context.publish(Told(news=command.news, tag=tag))
    await _handle(command.tag, context)


@REGISTRY.subscribes("one", Told, retry=RetryPolicy(**_RETRY))
async def one(event: Told, context: CommandContext) -> None:
    await _handle(event.tag, context)


@REGISTRY.subscribes("two", "news.*", retry=RetryPolicy(**_RETRY))
async def two(event: RawEvent, context: CommandContext) -> None:
    await _handle(event.fields["tag"], context)


@REGISTRY.subscribes(LATE, Told, retry=RetryPolicy(**_RETRY))
async def late(event: Told, context: CommandContext) -> None:
    await _handle(event.tag, context)


_late = REGISTRY.lookup(f"news.told@{LATE}")
assert _late is not None
REGISTRY._handlers[_late.spec.name] = replace(_late, declared=None)


class PublicationLoad:
    """Publishes for one process; the first of them puts and removes `late` meanwhile."""

    def __init__(self, simulation: Simulation, bus: CommandBus, name: str) -> None:
        self._simulation, self._bus, self._name = simulation, bus, name
        self._random = Random(f"publication {name} {simulation.seed}")
        self._takes_part = Random(f"publication {simulation.seed}").random() < _PART

    async def run(self, seconds: float) -> None:
        if not self._takes_part:
            return
        work = [self._publish(number, seconds) for number in range(8)] + [self._announce(number, seconds) for number in range(3)]
        if self._name == "p1":
            work.append(self._come_and_go(seconds))
        await asyncio.gather(*work)

    async def _publish(self, number: int, seconds: float) -> None:
        await asyncio.sleep(self._random.random() * seconds)
        now = self._simulation.loop.time
        story = Story(f"{self._name}.n{number}", f"n{self._random.randrange(2)}", self._name, now())
        self._simulation.history.news.stories[story.tag] = story
        for _ in range(4):
            try:
                published = await self._bus.publish(Told(news=story.entity, tag=story.tag), event_id=story.tag)
            except PublishedInPart as error:
                story.subscriptions = error.subscriptions
            except CommandBusError:
                await asyncio.sleep(0.1)
            else:
                story.acked, story.subscriptions = now(), published.subscriptions
                return

    async def _announce(self, number: int, seconds: float) -> None:
        await asyncio.sleep(self._random.random() * seconds)
        command = Announce(news=f"n{number % 2}", tag=f"{self._name}.a{number}")
        for _ in range(4):
            try:
                await self._bus.dispatch(command, command_id=command.tag)
                return
            except CommandBusError:
                await asyncio.sleep(0.1)

    async def _come_and_go(self, seconds: float) -> None:
        lives, now, subscriptions = self._simulation.history.news.lives, self._simulation.loop.time, self._bus.subscriptions
        for _ in range(2):
            await asyncio.sleep(self._random.random() * seconds / 4)
            await self._until_answered(lambda: subscriptions.put(LATE, "news.told"))
            begun = now()
            await asyncio.sleep(self._random.random() * seconds / 2)
            lives.append((begun, now()))
            await self._until_answered(lambda: subscriptions.remove(LATE))

    @staticmethod
    async def _until_answered(request: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await request()
                return
            except CommandBusError:
                await asyncio.sleep(0.2)
