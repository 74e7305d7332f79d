"""Sends the journeys of one producer process, and brings them their signals and the wishes that they end: early, late, and some twice.

What is still to be told is recorded before the journey is sent, so that the next process of this name can tell it.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import asdict, dataclass
from typing import Any

from command_bus import (
    CommandBus,
    CommandBusError,
    CommandTimeout,
    QueueFull,
    TransportUnavailable,
    Unconfirmed,
    UnknownCommand,
)
from tests.chaos.history import Recorder
from tests.chaos.journeys import CANCEL, SHARED, Journey, Tell, tells_of
from tests.chaos.plan import Plan

__all__ = ["JourneyLoad", "tell_the_rest"]

_TELL = "Tell"
_AGAIN = 0.1
_WAIT = 5.0


@dataclass(frozen=True, slots=True)
class _Trip:
    """A journey to send."""

    id: str
    entity: str
    number: int
    kind: str = "Journey"
    way: str = "dispatch"


class JourneyLoad:
    """Sends journeys.

    Args:
        bus: To send with.
        recorder: Notes every request and answer.
        plan: Of the run.
        name: Of this process.
        before: What the process before this one left: see `Requests`.
    """

    def __init__(self, bus: CommandBus, recorder: Recorder, plan: Plan, name: str, before: dict[str, Any]) -> None:
        self._bus = bus
        self._recorder = recorder
        self._plan = plan
        self._rng = random.Random(f"{plan.seed} {name} journeys")
        producer = int(name[1:].partition(".")[0])
        self._numbers = {entity: before["numbers"].get(entity, 0) for entity in _shared(producer, plan.producers)}
        left = [spec for spec in before["open"] if _producer_of(spec["entity"], plan.producers) == producer]
        self._open = [_Trip(**spec) for spec in left if spec["kind"] == "Journey"]
        self._to_tell = [spec for spec in left if spec["kind"] == _TELL]
        self._telling: set[asyncio.Task[None]] = set()
        self._producer = producer

    async def run(self, stopping: asyncio.Event) -> None:
        """Send until asked to stop; then wait until all is answered and told."""
        for trip in self._open:
            await self._send(trip)
        for spec in self._to_tell:
            self._soon(_Trip(spec["journey"], spec["entity"], spec["number"]), _tell_of(spec))
        while not stopping.is_set():
            await asyncio.sleep(self._plan.producers / self._plan.journeys * self._rng.uniform(0.3, 1.7))
            if not self._plan.quiet.exists() and not stopping.is_set():
                await self._begin(self._fresh())
        await asyncio.gather(*self._telling)

    def _fresh(self) -> _Trip:
        if self._rng.random() < 0.4:
            entity = self._rng.choice(list(self._numbers))
            number = self._numbers[entity]
            self._numbers[entity] += 1
        else:
            entity, number = f"journey:own{self._producer}-{self._rng.getrandbits(40):x}", 0
        return _Trip(f"{entity.replace(':', '-')}.{number}", entity, number)

    async def _begin(self, trip: _Trip) -> None:
        tells = [*tells_of(self._plan.seed, trip.id)]
        for tell in tells:
            spec = {"id": f"{trip.id}!{tell.id}", "entity": trip.entity, "number": trip.number, "kind": _TELL}
            spec |= {"journey": trip.id, "told": tell.id, "name": tell.name, "twice": tell.twice}
            self._recorder.note("tell", journey=trip.id, told=tell.id, spec=spec)
        await self._send(trip)
        for tell in tells:
            self._soon(trip, tell)

    async def _send(self, trip: _Trip) -> None:
        """Dispatch a journey, again until there is an answer."""
        names = {"id": trip.id, "entity": trip.entity, "number": trip.number, "kind": trip.kind, "way": trip.way}
        message = Journey(journey=trip.entity.partition(":")[2], number=trip.number, seed=self._plan.seed)
        while True:
            self._recorder.note("ask", **names, spec=asdict(trip))
            try:
                receipt = await self._bus.dispatch(message, command_id=trip.id)
            except (QueueFull, TransportUnavailable, Unconfirmed) as error:
                unknown = isinstance(error, Unconfirmed) or getattr(error, "outcome_unknown", False)
                self._recorder.note("answer", id=trip.id, answer="unknown" if unknown else "refused")
                await asyncio.sleep(_AGAIN)
            except CommandBusError as error:
                self._recorder.note("answer", id=trip.id, answer=f"error {type(error).__name__}: {error.message}")
                return
            else:
                self._recorder.note("answer", id=trip.id, answer=receipt.status)
                return

    # What is told.

    def _soon(self, trip: _Trip, tell: Tell) -> None:
        task = asyncio.create_task(self._tell(trip, tell), name=f"tell {trip.id}")
        self._telling.add(task)

    async def _tell(self, trip: _Trip, tell: Tell) -> None:
        await asyncio.sleep(tell.after)
        await _tell(self._bus, self._recorder, trip.id, tell)


async def tell_the_rest(bus: CommandBus, recorder: Recorder, left: list[dict[str, Any]]) -> None:
    """Tell journeys what no producer has told them: the last process of its name ended before it could."""
    for spec in left:
        if spec["kind"] == _TELL:
            await _tell(bus, recorder, spec["journey"], _tell_of(spec))


async def _tell(bus: CommandBus, recorder: Recorder, journey: str, tell: Tell) -> None:
    """Bring it until it is taken; the signal's id makes that safe."""
    for _ in range(1 + tell.twice):
        while (answer := await _answer(bus, journey, tell)) is None:
            await asyncio.sleep(_AGAIN)
        recorder.note("told", journey=journey, told=tell.id, answer=answer)


async def _answer(bus: CommandBus, journey: str, tell: Tell) -> str | None:
    """Return the answer, or None if there was none."""
    try:
        if tell.id == CANCEL:
            return "taken" if await bus.commands.cancel(journey, running=True, wait=_WAIT) else "gone"
        return "taken" if await bus.commands.signal(journey, tell.name, tell.id, signal_id=tell.id) else "repeated"
    except UnknownCommand:
        return "gone"
    except (CommandTimeout, QueueFull, TransportUnavailable, Unconfirmed):
        return None


def _tell_of(spec: dict[str, Any]) -> Tell:
    return Tell(spec["told"], spec["name"], 0.0, spec["twice"])


def _shared(producer: int, producers: int) -> list[str]:
    return [f"journey:j{number}" for number in range(SHARED)][producer::producers]


def _producer_of(entity: str, producers: int) -> int | None:
    """Return the producer whose journey's entity this is; None if it is none of a journey."""
    kind, _, name = entity.partition(":")
    if kind != "journey":
        return None
    return int(name[1:]) % producers if name.startswith("j") else int(name[3:].partition("-")[0])
