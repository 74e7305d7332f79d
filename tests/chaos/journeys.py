"""The durable commands of the workload: journeys, what they call, and the plan of each, drawn from the seed and its id.

A journey has the same plan in each run of its handler: so worker, producer and checker agree on it here. Some journeys share few entities, where
each waits for the one before; the others have entities of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from command_bus import Command, EntityId
from tests.chaos.messages import UNTIL_DONE

__all__ = [
    "CANCEL",
    "SHARED",
    "Errand",
    "Journey",
    "Route",
    "Stage",
    "TakeBack",
    "Tell",
    "errand_for",
    "route_of",
    "take_back_for",
    "tells_of",
]

SHARED: Final = 4
"""Entities on which journeys stand in line."""
CANCEL: Final = "cancel"
"""The id of what a producer tells a journey that is to end early."""
_ERRANDS, _UNDOS = 8, 4
_KINDS = (
    "step",
    "step",
    "call",
    "call",
    "undo",
    "undo",
    "compensate",
    "named",
    "torn",
    "torn",
    "helpers",
    "sleep",
    "signal",
    "pair",
    "first",
    "all",
    "gather",
    "fail",
)


class Journey(Command[int], entity="journey", durable=True, retry=UNTIL_DONE):
    """Goes through the stages of its route."""

    journey: EntityId
    number: int
    seed: int


class Errand(Command[int], entity="errand", retry=UNTIL_DONE):
    """Called by a stage of a journey. It returns the fence of its run, which no other run has."""

    errand: EntityId
    journey: str
    key: str
    plan: str = ""
    busy: float = 0.0
    got: Any = None
    """As a node of a workflow: what came to be before it."""


class TakeBack(Command[int], entity="undo", retry=UNTIL_DONE):
    """Undoes a stage of a journey."""

    undo: EntityId
    journey: str
    key: str
    plan: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a journey.

    Attributes:
        kind: What is done.
        key: Names it in the records.
        seconds: That its step or its sleep takes.
        timeout: That limits its waits, or None.
        flaky: Whether its step fails once, and is tried again in place.
    """

    kind: str
    key: str
    seconds: float
    timeout: float | None
    flaky: bool

    @property
    def calls(self) -> tuple[str, ...]:
        """The keys of the errands that it calls, in the order in which it names what undoes them."""
        match self.kind:
            case "call" | "undo" | "first" | "named" | "torn":
                return (f"{self.key}.0",)
            case "all" | "gather":
                return (f"{self.key}.0", f"{self.key}.1")
            case _:
                return ()

    @property
    def undone(self) -> str | None:
        """The key of what is undone if the journey fails; None if nothing is."""
        match self.kind:
            case "undo" | "all" | "torn":
                return f"{self.key}.0"
            case "gather":
                return f"{self.key}.1"
            case "compensate" | "named":
                return self.key
            case _:
                return None

    @property
    def signals(self) -> tuple[str, ...]:
        """The keys of its waits for signals, which all have the stage's name."""
        match self.kind:
            case "signal":
                return (f"{self.key}.s0",)
            case "pair":
                return (f"{self.key}.s0", f"{self.key}.s1")
            case "first":
                return (f"{self.key}.s0",)
            case _:
                return ()


@dataclass(frozen=True, slots=True)
class Route:
    """The plan of a journey.

    Attributes:
        stages: What it does, one after another.
        end: How it ends: `return`, `reject` or `poison`.
        cancelled_after: Seconds after its acceptance in which a producer asks for its end; None if none does.
    """

    stages: tuple[Stage, ...]
    end: str
    cancelled_after: float | None


@dataclass(frozen=True, slots=True)
class Tell:
    """A signal for a journey, or the wish that it ends.

    Attributes:
        id: Of the signal; `CANCEL` is the wish.
        name: Of the signal.
        after: Seconds after the acceptance of the journey.
        twice: Whether it is brought a second time.
    """

    id: str
    name: str
    after: float
    twice: bool = False


def route_of(seed: int, journey: str) -> Route:
    """Return the plan of a journey."""
    random = Random(f"{seed} {journey} route")
    stages: list[Stage] = []
    for number in range(random.randint(2, 7)):
        seconds = random.choice((0.0, 0.001, 0.03, 0.2, 1.0)) * random.uniform(0.5, 1.5)
        kind, timeout = random.choice(_KINDS), random.choice((None, None, 0.3, 2.0))
        if kind in ("gather", "first"):  # these keep their worker, or leave a signal: not for ever
            timeout = timeout or 1.0
        stages.append(Stage(kind, f"{number}", seconds, timeout, random.random() < 0.15))
    cancelled_after = random.uniform(0.0, 3.0) if random.random() < 0.12 else None
    return Route(tuple(stages), random.choices(("return", "reject", "poison"), (60, 25, 15))[0], cancelled_after)


def errand_for(seed: int, journey: str, key: str) -> Errand:
    """Return the command that a stage calls."""
    random = Random(f"{seed} {journey} {key} errand")
    plan = random.choices(("", "refuse", "poison", "fail", "shot"), (72, 10, 6, 8, 4))[0]
    busy = random.choice((0.0, 0.0, 0.01, 0.1, 0.6))
    return Errand(errand=f"e{random.randrange(_ERRANDS)}", journey=journey, key=key, plan=plan, busy=busy)


def take_back_for(seed: int, journey: str, key: str) -> TakeBack:
    """Return the command that undoes a stage."""
    random = Random(f"{seed} {journey} {key} undo")
    return TakeBack(undo=f"u{random.randrange(_UNDOS)}", journey=journey, key=key, plan="fail" if random.random() < 0.15 else "")


def tells_of(seed: int, journey: str) -> Iterator[Tell]:
    """Yield what its producer tells a journey: each signal that is awaited for ever, some of the others, and some journeys that they are to end."""
    route = route_of(seed, journey)
    for stage in route.stages:
        for key in stage.signals:
            random = Random(f"{seed} {journey} {key} tell")
            if stage.timeout is None or random.random() < 0.7:
                yield Tell(f"{journey}/{key}", f"go-{stage.key}", random.choice((0.0, 0.05, 1.0, 3.0)), random.random() < 0.2)
    if route.cancelled_after is not None:
        yield Tell(CANCEL, "", route.cancelled_after)
