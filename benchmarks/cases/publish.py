"""An event for five subscriptions beside a batch of five plain commands, each of an entity of its own. Server and client work for one of five."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from benchmarks.case import Case
from benchmarks.figures import Sample
from benchmarks.ground import Ground
from command_bus import Command, CommandBus, EntityId, Envelope, Event

__all__ = ["ALL"]

_EVENTS, _FLIGHT, _SUBSCRIPTIONS = 4_000, 100, 5


class Moved(Event, entity="parcel", name="parcel.moved"):
    parcel: EntityId
    place: str


class Move(Command[None], entity="parcel"):
    parcel: EntityId
    place: str


def sent(ground: Ground, kind: str) -> Sample:
    """Measure events, or batches of five commands with ids, as an event's deliveries have: a hundred are under way at a time."""
    count = ground.count(_EVENTS)
    with ground.spending() as spent:
        seconds, cpu = asyncio.run(_send(ground.url, count, kind))
    commands = count * _SUBSCRIPTIONS
    return {"per_s": commands / seconds, "client_us": cpu / commands * 1e6, **spent.per(commands)}


async def _send(url: str, count: int, kind: str) -> tuple[float, float]:
    async with CommandBus(url, namespace="bench-publish", max_depth=1_000_000, max_total_depth=10_000_000) as bus:
        await asyncio.gather(*(bus.subscriptions.put(f"s{number}", "parcel.*") for number in range(_SUBSCRIPTIONS)))

        async def one(number: int) -> None:
            if kind == "event":
                await bus.publish(Moved(parcel=f"p-{number}", place="x"))
                return
            await bus.dispatch_batch(
                [
                    Envelope(Move(parcel=f"p-{number}-{each}", place="x"), command_id=f"{number}@{each}")
                    for each in range(_SUBSCRIPTIONS)
                ]
            )

        await one(count)  # entity types are agreed on
        began, cpu = time.perf_counter(), time.process_time()
        for first in range(0, count, _FLIGHT):
            await asyncio.gather(*map(one, range(first, first + _FLIGHT)))
        return time.perf_counter() - began, time.process_time() - cpu


ALL = [
    Case("publish, an event for five subscriptions", "publish", partial(sent, kind="event")),
    Case("publish, a batch of five commands", "publish", partial(sent, kind="batch")),
]
