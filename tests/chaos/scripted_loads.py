"""Scripted loads that a mixed workload seldom makes. The harness runs them among other faults, and alone when nothing else goes on.

A scripted load dispatches commands of lines that no other load uses. Commands that must not wait for the others have a time within which they
must start (`Asked.within`); so have the steps that handlers request. Seconds with faults are not counted, nor those in which the backlog of the
storm is worked off: among faults a load proves that nothing is lost or runs twice, and alone that no entity is starved.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from command_bus import Envelope, QueueFull, TransportUnavailable, Unconfirmed
from command_bus.transport.redis.keys import KeySpace
from tests.chaos.calm import LOAD, SCRIPTED
from tests.chaos.faults import Act, FaultContext, Kind, stop
from tests.chaos.fleet import Seat
from tests.chaos.messages import Apply, Ghost, Order, Parcel, Steady
from tests.chaos.plan import QUANTUM_TIME

__all__ = ["SCRIPTED_LOADS"]

_SLACK = 1.0
"""Seconds that a crowded machine may take for what is done at once otherwise."""
_FLOODED = 4.0
"""Seconds that a known command may wait while a thousand unknown ones are offered to all workers for the first time."""
_HANG, _HANDED_BACK = 8.0, 2.5
"""Seconds that a handler hangs in its thread, and after which what waits for one must have gone to a worker with a free one. By chance that is the
third or fourth worker that it is offered to: on a quiet machine 2 of 58 commands took 2.0 s in one run, 2.5 s in another.
"""
_IN_PLACES = 2.0
"""Seconds more where lines have a limit: two places are left, and what waits for a thread has one of them, for a second each time."""


@dataclass(frozen=True, slots=True)
class Part:
    """A command of a scripted load.

    Attributes:
        message: To send.
        within: Seconds in which it must be started, counted from when it is due; 0.0: nothing is asked of it.
        delay: Until it is due.
        expires: Seconds after which it is not started any more.
    """

    message: Any
    within: float = 0.0
    delay: float = 0.0
    expires: float | None = None


async def _ask(context: FaultContext, parts: Sequence[Part]) -> None:
    """Send a load's commands and record the answers. Nothing is sent again: a load needs none of its commands."""
    asked: list[tuple[str, Part]] = []
    for part in parts:
        spec, number = type(part.message).spec(), part.message.number
        entity = f"{spec.entity}:{getattr(part.message, spec.key)}"
        command = f"{entity.replace(':', '-')}.{number}"
        within = part.within + part.delay if part.within else 0.0
        context.recorder.note(
            "ask", id=command, entity=entity, number=number, kind=type(part.message).__name__, way=SCRIPTED, within=within
        )
        asked.append((command, part))
    batch = await context.bus.dispatch_batch(
        Envelope(part.message, command_id=command, delay=part.delay, expires=part.expires) for command, part in asked
    )
    for (command, _), outcome in zip(asked, batch.outcomes, strict=True):
        context.recorder.note("answer", id=command, answer=_answer(outcome.error or outcome.status))


def _answer(answer: Exception | str) -> str:
    match answer:
        case str():
            return answer
        case Unconfirmed() | TransportUnavailable(outcome_unknown=True):
            return "unknown"
        case QueueFull() | TransportUnavailable():
            return "refused"
        case _:
            return f"error {type(answer).__name__}: {answer}"


def _names(context: FaultContext, word: str, *, in_first_shard: bool) -> Iterator[str]:
    """Return names of new lines, of the first shard or of the others (of any, if there is only one)."""
    keys = KeySpace(context.plan.namespace, context.plan.shards)
    salt = secrets.token_hex(3)
    for number in itertools.count():
        name = f"{word}-{salt}-{number}"
        if keys.count == 1 or (keys.shard_of(f"line:{name}") == 0) is in_first_shard:
            yield name


async def _hot_shard(context: FaultContext, _seat: Seat) -> None:
    """Dispatch as many hot lines of one shard as there are slots; then a few of other shards, which must have their turn."""
    hot = itertools.islice(_names(context, "hot", in_first_shard=True), context.plan.slots)
    await _ask(context, [Part(Apply(line=name, number=number, busy=0.1)) for name in hot for number in range(25)])
    await asyncio.sleep(0.3)
    cold = list(itertools.islice(_names(context, "cold", in_first_shard=False), 6))
    within = QUANTUM_TIME * (1 + len(cold) / context.plan.slots) + _SLACK
    await _ask(context, [Part(Apply(line=name, number=0), within) for name in cold])
    await asyncio.sleep(2.0)


async def _hanging_threads(context: FaultContext, _seat: Seat) -> None:
    """Let threads hang, all of one worker at least but not all of the last; short commands must find free threads."""
    plan = context.plan
    hanging = plan.workers * plan.threads - 2
    names = _names(context, "hang", in_first_shard=True)
    within = _HANDED_BACK + _SLACK + (_IN_PLACES if "limits" in plan.features else 0.0)
    await _ask(context, [Part(Steady(line=next(names), number=0, busy=_HANG), within) for _ in range(hanging)])
    await asyncio.sleep(0.2)
    for _ in range(2):
        await _ask(context, [Part(Steady(line=next(names), number=0, busy=0.03), within) for _ in range(plan.slots)])
        await asyncio.sleep(0.3)
    await asyncio.sleep(_HANG - 0.8)


async def _calls_inside(context: FaultContext, _seat: Seat) -> None:
    """Let as many handlers as there are slots call another line each: their calls must start while they wait."""
    plan = context.plan
    names = _names(context, "order", in_first_shard=True)
    orders = [Order(order=next(names), number=0, patience=2 * _SLACK + plan.lease, within=_SLACK) for _ in range(plan.slots)]
    await _ask(context, [Part(order) for order in orders])
    await asyncio.sleep(0.5)


async def _sleeper(context: FaultContext, _seat: Seat) -> None:
    """Stop a worker beyond its lease while more work waits for its threads than they can do.

    The handlers refuse, so they end at once when their worker wakes, and its threads are free before its event loop runs.
    """
    names = list(itertools.islice(_names(context, "nap", in_first_shard=True), context.plan.slots))
    await _ask(
        context, [Part(Steady(line=name, number=number, busy=0.1, plan="refuse")) for name in names for number in range(8)]
    )
    await asyncio.sleep(0.3)
    free = [seat for seat in context.fleet.workers if not seat.busy]
    if not free:
        return
    seat = context.rng.choice(free)
    seat.busy = True
    try:
        await stop(context, seat, context.plan.lease * context.rng.uniform(1.4, 1.7), "stop")
    finally:
        seat.busy = False


async def _unknown(context: FaultContext, _seat: Seat) -> None:
    """Dispatch many commands that no worker knows, and some that all know."""
    salt = secrets.token_hex(3)
    await _ask(context, [Part(Ghost(ghost=f"{salt}-{number}", number=0), expires=1.5) for number in range(1_200)])
    names = _names(context, "known", in_first_shard=False)
    for _ in range(5):
        await _ask(context, [Part(Apply(line=next(names), number=0), _FLOODED) for _ in range(4)])
        await asyncio.sleep(0.25)
    await asyncio.sleep(0.3)


async def _parcels(context: FaultContext, _seat: Seat) -> None:
    """Dispatch large commands that become due at one moment, and small ones."""
    names = _names(context, "parcel", in_first_shard=True)
    parcels = [Parcel(line=next(names), number=0, ballast=bytes(200_000)) for _ in range(60)]
    await _ask(context, [Part(parcel, 2 * _SLACK, delay=0.8) for parcel in parcels])
    await asyncio.sleep(0.6)
    for _ in range(4):
        await _ask(context, [Part(Apply(line=next(names), number=0), _SLACK) for _ in range(4)])
        await asyncio.sleep(0.2)


async def _own_ends(context: FaultContext, _seat: Seat) -> None:
    """Run handlers that fail, or end in other ways: each is an attempt, and the next starts at once."""
    names = _names(context, "end", in_first_shard=False)
    plans = ["fail", "shot", "mute"] * 4
    await _ask(context, [Part(Apply(line=next(names), number=0, plan=plan)) for plan in plans])
    await _ask(context, [Part(Steady(line=next(names), number=0, plan=plan)) for plan in ("fail", "mute") * 2])


def _scripted_load(name: str, act: Act) -> Kind:
    async def played(context: FaultContext, seat: Seat) -> None:
        start = time.monotonic()
        await act(context, seat)
        context.note(SCRIPTED if context.plan.quiet.exists() else LOAD, "server", start, name)

    return Kind(name, LOAD, 0.4, LOAD, played)


SCRIPTED_LOADS = (
    _scripted_load("hot shard", _hot_shard),
    _scripted_load("hanging threads", _hanging_threads),
    _scripted_load("calls inside", _calls_inside),
    _scripted_load("unknown", _unknown),
    _scripted_load("parcels", _parcels),
    _scripted_load("own ends", _own_ends),
    _scripted_load("sleeper", _sleeper),  # the last: it is a fault, after which nothing has a time for a while
)
