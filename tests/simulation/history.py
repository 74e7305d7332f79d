"""The history of a run, recorded outside the bus by handlers, producers and the server, for the checker."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from command_bus.testing.simulated.store import Store
from tests.simulation.limit_rules import LimitWatch
from tests.simulation.news import News
from tests.simulation.standing import Standing
from tests.simulation.state_rules import broken_states
from tests.simulation.unique_rules import broken_keys

__all__ = ["Act", "Claim", "Execution", "History", "Journey", "JourneyRun", "Sent", "Told", "Trigger", "of_commands"]

_MOST_STATES = 20


@dataclass(slots=True)
class Sent:
    """A command that a producer handed to the bus (perhaps several times, under one id)."""

    id: str
    entity: str
    kind: str
    """work, once, park, order, sync, fold, shared, weighed"""
    how: str
    """dispatch, call, batch, delayed, unique, follow-up"""
    process: str
    invoked: float
    batch: int = 0
    """Which of its process's."""
    position: int = 0
    """Within its batch."""
    delay: float = 0.0
    expires: bool = False
    tries: int = 1
    acked: float | None = None
    admissions: list[str] = field(default_factory=list)
    refused: str = ""
    outcome: str = ""
    """Of a call."""
    answered: float = 0.0
    value: Any = None
    timeout: float = 0.0
    cancelled: bool = False
    """Perhaps: an answer may be lost."""
    removed: float | None = None
    """When a producer learned that it was taken out of its line."""
    replays: int = 0
    discarded: bool = False
    plan: Any = None
    """What its handler does, if that is not drawn from the seed: a plan for each attempt, the last for all others."""
    within: float = 0.0
    """Seconds of calm in which it must be started, and after a failure started again; 0: none are given."""


@dataclass(slots=True)
class Execution:
    """One start of a handler."""

    id: str
    entity: str
    attempt: int
    fence: int
    worker: str
    process: Any
    began: float
    ended: float | None = None
    how: str = ""
    """returned, failed, rejected, cancelled, shot (cancelled by plan, not by the bus), put off, gave up; empty if its process was killed first"""
    puts_off: float | None = None
    """Seconds for which it puts its command off; None: it does not."""
    command_id: str = ""
    saw: list[str] | None = None
    """Commands that the state of its entity names; None: it has none."""
    beside: int | None = None
    """The number of others in its call; None: its handler takes one."""

    @property
    def is_uncounted(self) -> bool:
        """True if it may have used no attempt: it was put off, or is of a run that was given back or halved."""
        return self.how == "put off" or (self.beside is not None and self.how not in ("failed", "gave up"))

    def is_with(self, other: Execution) -> bool:
        """Return whether both are of one run, of which one call or several were made."""
        return self.beside is not None and other.beside is not None and (self.fence, self.worker) == (other.fence, other.worker)

    @property
    def may_be_cut_short(self) -> bool:
        """Whether its attempt may count as interrupted; also one that returned, where its worker was stopped while it prepared what it sends."""
        return self.how in ("cancelled", "shot", "") or any(kind == "stop" for kind, _, _ in self.process.troubles)


@dataclass(slots=True)
class JourneyRun:
    """One run of a durable handler."""

    fence: int
    attempt: int
    worker: str
    process: Any
    began: float
    ended: float | None = None
    how: str = ""
    saw: list[tuple[str, str]] = field(default_factory=list)
    """What its steps, calls and waits came to."""


class Act(NamedTuple):
    """An effect of a step: under the fence of which run it was done, and when."""

    key: str
    fence: int
    at: float


@dataclass(slots=True)
class Journey:
    """A durable command."""

    tag: str
    entity: str
    acked: bool = False
    cancelled: bool = False
    """Perhaps: it may have ended before."""
    outcome: str = ""
    runs: list[JourneyRun] = field(default_factory=list)
    effects: dict[str, list[str]] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    """The same, in their order."""
    calls: set[str] = field(default_factory=set)
    signals: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    undos: list[str] = field(default_factory=list)
    """What it named to be undone, in its order."""
    compensations: set[str] = field(default_factory=set)
    """Of these what belongs to no call."""
    plan: Any = None
    """Its stages and its end, if they are not drawn from the seed."""
    undone: list[tuple[str, str]] = field(default_factory=list)
    """What was undone, and by which command."""
    undone_at: float | None = None
    """When the first began."""


@dataclass(slots=True)
class Claim:
    """A lease that was taken over."""

    at: float
    activation: str
    entity: str
    old: str
    new: str
    idle: float
    """True seconds since its holder last renewed or read it."""


@dataclass(slots=True)
class Trigger:
    """A dispatch with a unique key."""

    entity: str
    id: str
    invoked: float
    acked: float | None = None
    """When its producer learned that it was accepted, or folded into one that waits; None if that is not known."""


class Told(NamedTuple):
    """An event of the bus."""

    kind: str
    entity: str
    id: str
    attempt: int
    fence: int


class End(NamedTuple):
    """An end that is kept.

    Attributes:
        command_id: Of the command.
        tag: What the history calls it.
        status: How it ended.
        fence: Of the start that settled it.
        is_found: Whether it is found by its command id.
    """

    command_id: str
    tag: str
    status: str
    fence: int
    is_found: bool = True


class History:
    """The record of one run."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.sent: dict[str, Sent] = {}
        self.executions: list[Execution] = []
        self.pauses: list[tuple[str, float, float]] = []
        """Entity, from the acknowledged pause, until the resume was asked for."""
        self.purges: list[tuple[str, float, float]] = []
        """Entity, from when it was asked until there was an answer."""
        self.aborts: list[tuple[str, float, float]] = []
        """The same, of attempts that were to end."""
        self.jumps: list[tuple[float, float]] = []
        self.letters: list[Any] = []
        self.claims: list[Claim] = []
        self.triggers: list[Trigger] = []
        self.news = News()
        self.standing = Standing()
        self.journeys: dict[str, Journey] = {}
        self.follow_ups: dict[str, list[str]] = {}
        """What the handler of a command sends with its settlement, in its order."""
        self.accepted: dict[str, list[tuple[float, bytes]]] = {}
        self.touches: dict[str, list[tuple[float, str]]] = {}
        self.homes: dict[str, str] = {}
        self.notes: list[tuple[float, str, str]] = []
        self.counters: dict[str, int] = {}
        self.leftovers: list[str] = []
        self.told: list[Told] | None = None
        self.ends: list[End] | None = None
        """What is kept of the ends of commands; None: the seed keeps none."""
        self.ticked: list[Any] = []
        """Starts for firings of schedules."""
        self.fired_then: int | None = None
        """Firings when all schedules were removed; None: the seed has none."""
        self.kept_states: dict[str, list[str]] | None = None
        """What the states of entities say in the end; None: that is not known."""
        self.fired_in_the_end = 0
        """The events in their order, if the entity type was watched."""
        self.states: list[tuple[float, str, str]] = []
        """What was wrong on the server after a script: when, whose mailbox, and what."""
        self.limits: LimitWatch | None = None
        self.stuck = ""
        self.lease = 2.0
        self.processes: list[Any] = []

    def was_aborted(self, run: Execution) -> bool:
        """Return whether an operator ended an attempt, however its handler ended then: a thread goes on to its end."""
        return any(
            entity == run.entity and begin <= (run.ended or begin) and run.began <= until for entity, begin, until in self.aborts
        )

    def calls(self, fence: int) -> None:
        """Note that a handler is called under a fence."""
        if self.limits is not None:
            self.limits.called.add(fence)

    def note(self, who: str, what: str) -> None:
        """Add a line to the timeline; an empty `who` is for all entities."""
        self.notes.append((self._clock(), who, what))

    # Events of the server.

    def added(self, key: bytes, entry: bytes, rest: list[bytes]) -> None:
        """Record that an entry was added to a stream."""
        name = key.partition(b"}:")[2]
        if name == b"ready" and rest[1] == b"e":
            self.homes[_name(key, entry)] = rest[2].decode()
        elif name[:2] == b"m:":
            self.note(name[2:].decode(), f"in the mailbox as {entry.decode()}")

    def touched(self, key: bytes, activation: bytes, consumer: bytes) -> None:
        """Record that an activation was read."""
        self.touches.setdefault(_name(key, activation), []).append((self._clock(), consumer.decode()))

    def claimed(self, key: bytes, activation: bytes, old: bytes, new: bytes, *, justid: bool) -> None:
        """Record that a lease was renewed or taken over."""
        name, now = _name(key, activation), self._clock()
        touches = self.touches.setdefault(name, [])
        if not justid:
            idle = now - touches[-1][0] if touches else 1e9
            self.claims.append(Claim(now, name, self.homes.get(name, ""), old.decode(), new.decode(), idle))
            self.note(self.homes.get(name, ""), f"{new.decode()[:4]} takes over from {old.decode()[:4]}, idle {idle:.2f} s")
        else:
            touches.append((now, new.decode()))

    def ran(self, store: Store, keys: list[bytes]) -> None:
        """Look at a shard after a script ran there."""
        if keys and len(self.states) < _MOST_STATES:
            prefix = keys[0].partition(b"}:")[0] + b"}:"
            broken = [*broken_states(store, prefix), *broken_keys(store, prefix)]
            if self.limits is not None:
                broken += self.limits.look(store, self._clock())
            self.states += [(self._clock(), entity, text) for entity, text in broken]
            if len(self.standing.broken) < _MOST_STATES:
                self.standing.look(store, prefix, self._clock())

    # What it comes to.

    def killed(self, name: str) -> bool:
        """Return whether a process was killed."""
        return any(process.name == name and process.dead for process in self.processes)

    def calm_from(self) -> float:
        """Return when the last fault of all live processes was over."""
        ends: list[float] = [
            until for process in self.processes for kind, _, until in process.troubles if kind not in ("kill", "stop")
        ]
        return max(ends, default=0.0)

    def digest(self) -> str:
        """Return a digest, equal for runs with the same events at the same times."""
        told = [repr(self.notes), repr(self.counters), repr(self.leftovers), repr(sorted(self.touches.items()))]
        told += [f"{e.id} {e.attempt} {e.fence} {e.worker} {e.began!r} {e.ended!r} {e.how}" for e in self.executions]
        told += [
            f"{s.id} {s.acked!r} {s.admissions} {s.refused} {s.outcome} {s.answered!r} {s.value}" for s in self.sent.values()
        ]
        for journey in self.journeys.values():
            told += [f"{run.fence} {run.began!r} {run.how} {run.saw}" for run in journey.runs]
            told.append(f"{journey.tag} {journey.outcome} {journey.undone}")
        return sha256("\n".join(told).encode()).hexdigest()[:16]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_clock", "limits")}

    def timeline(self, entity: str) -> list[str]:
        """Return all records of an entity in order, with the faults of all entities."""
        lines = [(at, what) for at, who, what in self.notes if who in ("", entity, f"item:{entity}")]
        for sent in self.sent.values():
            if sent.entity == entity:
                lines.append((sent.invoked, f"{sent.process}: {sent.how} {sent.kind} {sent.id}"))
                if sent.acked is not None:
                    lines.append((sent.acked, f"{sent.process}: {sent.id} acknowledged ({', '.join(sent.admissions)})"))
                if sent.outcome:
                    lines.append((sent.answered, f"{sent.process}: {sent.id} answered: {sent.outcome} {sent.value}"))
        for run in self.executions:
            if run.entity == entity:
                who = f"{run.process} {run.worker[:4]}"
                lines.append((run.began, f"{who}: starts {run.id}, attempt {run.attempt}, fence {run.fence}"))
                if run.ended is not None:
                    lines.append((run.ended, f"{who}: {run.id} {run.how} (attempt {run.attempt})"))
        lines += self.standing.timeline(entity)
        return [f"{at - 1000:9.4f}  {text}" for at, text in sorted(lines, key=lambda line: line[0])]


def _name(ready: bytes, activation: bytes) -> str:
    """Return a name of an activation, unique over all shards, whose ids may coincide."""
    return f"{ready.decode()} {activation.decode()}"


def of_commands(history: History) -> dict[str, list[Execution]]:
    """Return the starts of each command, in the order of their fences."""
    found: dict[str, list[Execution]] = {}
    for run in sorted(history.executions, key=lambda run: run.fence):
        found.setdefault(run.id, []).append(run)
    return found
