"""The history of a run, as plain values: all input of the checker.

Every process appends one JSON line per event with one write to a file of its own kind, so that a SIGKILL leaves whole lines. Times are of
CLOCK_MONOTONIC, which all processes of a machine share and no clock step moves.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.features import is_firing, tick_number

__all__ = [
    "Acted",
    "Asked",
    "Called",
    "Effect",
    "Ended",
    "ErrandRun",
    "Fault",
    "Final",
    "History",
    "Recorder",
    "Refused",
    "Seen",
    "Started",
    "StepEffect",
    "Told",
    "read_events",
]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to accept a command, and how it ended: `accepted`, `duplicate`, `refused`, or `unknown` while nothing was heard.

    `unique` means that a later command of its entity may replace it while it waits. `within` is the time, in seconds without a fault, in
    which the command must have been started after it was asked for; 0: none is given.
    """

    id: str
    entity: str
    number: int
    kind: str
    way: str
    who: str
    at: float
    answer: str = "unknown"
    answered: float = 0.0
    within: float = 0.0
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """Outcome of a `call`: `completed` with its value, `timeout`, or another outcome of its command."""

    id: str
    outcome: str
    value: int | None
    who: str
    began: float
    at: float


@dataclass(frozen=True, slots=True)
class Started:
    """A handler began. `number` is the place in its entity's line, -1 if it has none; `once` means at most once."""

    id: str
    entity: str
    number: int
    who: str
    fence: int
    attempt: int
    at: float
    once: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler ended: `end` (with its value), `raise` (planned), `shot` (cancelled by plan, not by the bus), `reject`, `cancelled` or
    `fenced` (the ledger refused it). A durable one also: `suspended`, `wished` (it was told to end early), `poison`, or `error …`.
    """

    id: str
    who: str
    fence: int
    how: str
    at: float
    value: int | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect that the ledger accepted; in its order."""

    id: str
    entity: str
    number: int
    fence: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A result of a step, a call or a signal that one run of a durable handler saw; with `begins` only that the run came there."""

    id: str
    fence: int
    key: str
    who: str
    at: float
    value: str | int | None = None
    begins: bool = False


@dataclass(frozen=True, slots=True)
class StepEffect:
    """An effect of a step that the ledger accepted, under the step's idempotency key (`token`)."""

    id: str
    key: str
    token: str
    fence: int
    value: str


@dataclass(frozen=True, slots=True)
class Acted:
    """The function of a step did its effect, under the fence of a run: recorded by that, as soon as the ledger has answered."""

    id: str
    fence: int
    key: str
    who: str
    at: float


@dataclass(frozen=True, slots=True)
class ErrandRun:
    """A command that a journey called, or that undoes what it called, began to run: `id` is its own."""

    id: str
    journey: str
    key: str
    undoes: bool
    who: str
    at: float


@dataclass(frozen=True, slots=True)
class Told:
    """A signal (or the wish that it ends) was to be brought to a journey: `taken`, `repeated`, `gone`; empty while nothing was heard."""

    journey: str
    told: str
    who: str
    at: float
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """An effect that the ledger refused, because it had a newer fence."""

    id: str
    entity: str
    fence: int
    at: float
    who: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something was done to a process (`victim` is its name), to the server, or to all of them (`*`)."""

    kind: str
    victim: str
    start: float
    end: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Final:
    """State of the server after the run.

    Attributes:
        idle: Whether all work drained in time.
        outcomes: Command id to how it was settled (`completed`, `rejected`, `failed`, `interrupted`, `expired`, …; `waiting` if it was not).
        values: Command id to the stored result of those that completed.
        letters: Command ids of the dead letters with their reasons, one for each letter.
        counters: Of the namespace: accepted, settled, completed, rejected, expired, dead_lettered, depth.
        pending: Leases that somebody holds.
        keys: Keys that belong to an entity or to nobody and have no end of life.
        total: Sum of the accounts; `deposited` is what they began with.
        totals: Entity to its state: the count and the digest.
        crashes: Processes that ended without being told to, with the end of what they said.
    """

    idle: bool
    outcomes: dict[str, str]
    values: dict[str, int] = field(default_factory=dict[str, int])
    letters: tuple[tuple[str, str], ...] = ()
    counters: dict[str, int] = field(default_factory=dict[str, int])
    pending: int = 0
    keys: tuple[str, ...] = ()
    total: int = 0
    deposited: int = 0
    crashes: tuple[str, ...] = ()
    ends: tuple[tuple[str, str], ...] = ()
    totals: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


@dataclass
class History:
    """One run.

    Attributes:
        lease: Seconds that a silent worker keeps its entities.
        features: What was switched on beside plain commands.
        seed: Of the run: the plans of journeys are drawn from it.
    """

    lease: float
    features: tuple[str, ...] = ()
    seed: int = 0
    asked: list[Asked] = field(default_factory=list[Asked])
    called: list[Called] = field(default_factory=list[Called])
    started: list[Started] = field(default_factory=list[Started])
    ended: list[Ended] = field(default_factory=list[Ended])
    effects: list[Effect] = field(default_factory=list[Effect])
    seen: list[Seen] = field(default_factory=list[Seen])
    steps: list[StepEffect] = field(default_factory=list[StepEffect])
    acted: list[Acted] = field(default_factory=list[Acted])
    errands: list[ErrandRun] = field(default_factory=list[ErrandRun])
    told: list[Told] = field(default_factory=list[Told])
    refused: list[Refused] = field(default_factory=list[Refused])
    faults: list[Fault] = field(default_factory=list[Fault])
    final: Final = field(default_factory=lambda: Final(idle=True, outcomes={}))

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        """Take in what processes recorded."""
        open_requests: dict[tuple[str, str], dict[str, Any]] = {}
        for event in events:
            event.pop("spec", None)
            match event.pop("ev"):
                case "ask":
                    self._close(open_requests.pop((event["id"], event["who"]), None))
                    open_requests[event["id"], event["who"]] = event
                case "answer":
                    request = open_requests.pop((event["id"], event["who"]), None)
                    self._close(request, event["answer"], event["at"])
                case "fault":
                    self.faults.append(Fault(**{name: event[name] for name in Fault.__slots__ if name in event}))
                case str() as kind if kind in _KEPT:
                    place, made = _KEPT[kind]
                    getattr(self, place).append(made(**event))
                case _:
                    pass  # what only the harness reads
        for request in open_requests.values():
            self._close(request)

    def add_firings(self) -> None:
        """Take what schedules sent for asked: no producer recorded it, and its number is its tick's."""
        starts = {start.id: start for start in self.started}
        for command in {*starts, *self.final.outcomes}:
            if is_firing(command):
                entity, at = f"ticker:{command.rpartition('@')[0]}", starts[command].at if command in starts else 0.0
                self.asked.append(Asked(command, entity, tick_number(command), "Tick", "schedule", "*", at, "accepted", at))

    def add_errands(self) -> None:
        """Take what journeys called for asked: their ids are the bus's. Of those that never began, nobody knows which journey called them."""
        began: dict[str, ErrandRun] = {}
        for run in self.errands:
            began.setdefault(run.id, run)
        entities = {start.id: start.entity for start in self.started}
        if (
            "across" in self.features
        ):  # what never began is a part of a move over two shards, whose handler knows the id of the whole
            for part in [each for each in self.final.outcomes if is_called(each) and each not in began]:
                del self.final.outcomes[part]
        for command in {*began, *filter(is_called, self.final.outcomes)}:
            first = began.get(command)
            kind, at = ("Errand", 0.0) if first is None else ("TakeBack" if first.undoes else "Errand", first.at)
            self.asked.append(Asked(command, entities.get(command, "errand:"), -1, kind, "journey", "*", at, "accepted", at))

    @property
    def until(self) -> float:
        """Time of the last recorded event."""
        told: list[Started | Ended | Called | Asked] = [*self.started, *self.ended, *self.called, *self.asked]
        return max((event.at for event in told), default=0.0)

    def _close(self, request: dict[str, Any] | None, answer: str = "unknown", at: float = 0.0) -> None:
        if request is not None:
            self.asked.append(Asked(**request, answer=answer, answered=at))


_KEPT: dict[str, tuple[str, Callable[..., Any]]] = {
    "called": ("called", Called),
    "start": ("started", Started),
    "ended": ("ended", Ended),
    "refused": ("refused", Refused),
    "saw": ("seen", Seen),
    "begun": ("seen", partial(Seen, begins=True)),
    "acted": ("acted", Acted),
    "errand": ("errands", ErrandRun),
    "tell": ("told", Told),
    "told": ("told", Told),
}
"""Kinds of events that are kept as they are: in which list, as what."""


def is_called(command_id: str) -> bool:
    """Return whether the bus made this id: only what durable commands call has such a one here."""
    return command_id.startswith("~")


class Recorder:
    """Appends events of one process to a file that outlives it."""

    def __init__(self, path: Path, who: str) -> None:
        self.who = who
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what: str, **values: Any) -> None:
        """Record an event with the current time."""
        os.write(self._file, json.dumps({"ev": what, "who": self.who, "at": time.monotonic()} | values).encode() + b"\n")


def read_events(path: Path) -> Iterable[dict[str, Any]]:
    """Read the events of a file in the order of its writes; ignore a torn last line."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
