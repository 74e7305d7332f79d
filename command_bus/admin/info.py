"""Values for operators: entities, holds, commands, dead letters, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from command_bus.messages.policies import Priority
from command_bus.serialization.announcements import WorkerInfo, WorkerStatus
from command_bus.transport.ports.limits import LimitWaitInfo
from command_bus.transport.records import EntityCondition, Failure, HoldInfo, SuspensionInfo
from command_bus.transport.unique_keys import KeyState

EntityOrder = Literal["depth", "age", "attempt", "name"]
"""The order of a listing: the deepest, the longest waiting or the most often tried first, or by name."""


@dataclass(frozen=True, slots=True)
class EntityInfo:
    """One entity that has work, or is paused or drained itself.

    Attributes:
        name: For people: `account:a-17`; with lanes `order (lane 3)`, without entity `(no entity) id`.
        entity_type: None if it has no entity.
        entity_id: None if it has no entity, is a lane, or its id is too long for its name.
        state: `waiting` (for a worker, or all that it has is delayed), `running`, `retrying`, `snoozed`, `paused`, `parked` by a dead letter,
            `limited` (waits for a limit), `suspended` (its durable command waits without a worker), `blocked` (the command at its head is of
            several entities, and not yet at the head of all), or `draining` (waiting, and refusing what is new).
        depth: Commands that it holds, running and delayed ones included.
        age: Seconds since the command at its head was accepted; 0.0 if all are delayed.
        attempt: The number of times that was started; a start that took no attempt does not count, but once it was started it is 1 at least.
        running_for: Seconds since this attempt started; None if none runs.
        worker: Who runs it, or None.
        retry_at_ms: When a retry is due, or a snooze over, by the server's clock, or None.
        hold: Why it is paused or draining, or None.
        letter_id: Id of the dead letter that parks it, or None.
        due_ms: When the first of its commands takes its place, by the server's clock, if all that it has is delayed; else None. A listing
            leaves it out for what comes far behind others: 100,000 in its shard.
        priority: The highest of the commands that wait in it.
        tenant: Key of the share of workers that it takes; None if its commands name none.
        snoozes: The number of times the command at its head was put off by its handler.
        failure: How the last attempt of that command failed; None if none did.
        limit: For what it waits, if it is limited; None otherwise.
        suspension: For what its durable command waits, if it is suspended; None otherwise.
        home: The name of the entity at which the command at its head runs, if that is of several entities and this one is not its home;
            None otherwise.
    """

    name: str
    entity_type: str | None
    entity_id: str | None
    state: EntityCondition
    depth: int
    age: float
    attempt: int
    running_for: float | None
    worker: str | None
    retry_at_ms: int | None
    hold: HoldInfo | None
    letter_id: str | None
    due_ms: int | None = None
    snoozes: int = 0
    priority: Priority = "normal"
    tenant: str | None = None
    failure: Failure | None = None
    limit: LimitWaitInfo | None = None
    suspension: SuspensionInfo | None = None
    home: str | None = None


@dataclass(frozen=True, slots=True)
class ShareInfo:
    """The share of one tenant.

    Attributes:
        tenant: As the field of its commands has it; empty for what has none.
        weight: 1.0 unless it was given one.
        waiting: Its entities that wait for a worker.
        running: Its entities that workers hold.
        served: Starts of its commands in the last minute, about.
        served_high: Starts of high priority.
        served_low: Starts of low priority.
    """

    tenant: str
    weight: float
    waiting: int
    running: int
    served: int = 0
    served_high: int = 0
    served_low: int = 0


@dataclass(frozen=True, slots=True)
class PriorityInfo:
    """The figures of one priority.

    Attributes:
        priority: `high`, `normal` or `low`.
        waiting: Entities of it in the line behind the ready stream.
        started: Starts of its commands since priorities or shares came into use.
    """

    priority: Priority
    waiting: int
    started: int


@dataclass(frozen=True, slots=True)
class EntityTypeInfo:
    """An entity type that the namespace has a record of.

    Attributes:
        name: What is no UTF-8 in it is escaped.
        mailboxes: What all clients have agreed on: `per_entity`, or `lanes:` and their number; None if the type was only paused, drained or
            resumed so far.
    """

    name: str
    mailboxes: str | None


@dataclass(frozen=True, slots=True)
class EntityPage:
    """Some entities of a listing.

    Attributes:
        entities: In the order asked for.
        cursor: The place where the next page begins, or None if this is the last.
        matching: How many were found that match, on all pages.
        complete: False if there were more than were looked at (`scan`): then the order is that of those looked at.
    """

    entities: tuple[EntityInfo, ...]
    cursor: str | None
    matching: int
    complete: bool


@dataclass(frozen=True, slots=True)
class WaitingCommand:
    """A command in an entity's line.

    Attributes:
        command_id: Empty if its bytes cannot be read.
        name: The wire name; empty if the envelope could not be read.
        accepted_ms: When it was accepted; for a delayed one 0.
        due_ms: For a delayed one when it takes its place, else None.
        unique: Its unique key, or None.
        payload: Its fields; None if this bus cannot read them.
    """

    command_id: str
    name: str
    accepted_ms: int
    due_ms: int | None
    unique: str | None = None
    payload: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UniqueKeyInfo:
    """A unique key that is held.

    Attributes:
        key: What `Unique(key)` said, else the wire name of the command.
        state: The place where the command is that holds it: `delayed`, `waiting`, `started` (it runs, or waits for a retry) or `settled`. That of
            a settled one is held by its window alone.
        command_id: Id of that command.
        name: Its wire name.
        window_ms: Until when the key is held in any case; None without a window.
        latest_ms: Until when others can put that command off; None if nothing bounds it.
        entity_type: Type of its entity.
        entity_id: Id of its entity; None where only a digest of a long id is stored.
    """

    key: str
    state: KeyState
    command_id: str
    name: str
    window_ms: int | None
    latest_ms: int | None
    entity_type: str
    entity_id: str | None


@dataclass(frozen=True, slots=True)
class UniqueKeyPage:
    """Unique keys of an entity, or a page of all.

    Attributes:
        keys: Those that were found, by entity and key.
        complete: Whether all keys were looked at: else there may be more. Of an entity: whether these are all.
        cursor: Begins the next page; None behind the last one, and of an entity.
    """

    keys: list[UniqueKeyInfo]
    complete: bool
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class EntityDetails:
    """All that is known of one entity at a moment.

    Attributes:
        entity: As in a listing.
        head: The command at its head, or None.
        first_started_ms: When that was first started, or None.
        lease_age: Seconds since its holder last renewed its lease; None if no worker holds it.
        holder: The worker that holds it, if it is known.
        waiting: The commands behind the head, in order, delayed ones last; at most as many as were asked for.
        letter: The dead letter that parks it, or None.
        handlers: How many live workers handle the command at its head; None if there is none, or its name cannot be read.
        waits_for: The entities that are not ready yet for the command of several at the head of a blocked one; none if it is not its home.
    """

    entity: EntityInfo
    head: WaitingCommand | None
    first_started_ms: int | None
    lease_age: float | None
    holder: WorkerStatus | None
    waiting: tuple[WaitingCommand, ...]
    letter: DeadLetter | None
    handlers: int | None
    waits_for: tuple[EntityInfo, ...] = ()


AbortResult = Literal["ended", "finished", "nothing", "runs_on", "blocked", "unanswered"]
"""What came of an abort: the attempt was ended; it ended by itself before; nothing ran; its handler goes on; its worker's event loop is
blocked; or its worker has not answered."""


@dataclass(frozen=True, slots=True)
class AbortReport:
    """The result of `abort`.

    Attributes:
        result: `ended` if the attempt was ended, else why not: see `AbortResult`.
        entity: For people.
        command_id: The id of the command that ran; empty if none did, as what follows.
        name: Its wire name.
        attempt: The number of its start.
        running_for: Seconds for which it had run when it was asked for.
        worker: Who runs it, or None.
        host: The place where that worker is; None if it is not known.
        pid: Its process, or None.
        again: Whether another attempt follows, by the contract of the command; else it is a dead letter `interrupted`. None unless the
            attempt was ended, or if no worker announced the contract.
        in_thread: Whether its handler goes on in a thread, which nothing can stop.
        where: The place where the event loop is blocked; empty if it is not.
    """

    result: AbortResult
    entity: str
    command_id: str = ""
    name: str = ""
    attempt: int = 0
    running_for: float = 0.0
    worker: str | None = None
    host: str | None = None
    pid: int | None = None
    again: bool | None = None
    in_thread: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A command that was dead-lettered, with its cause.

    Attributes:
        id: What `replay` and `discard` take.
        reason: `failed`, `interrupted`, `no_handler`, `undecodable`, `invalid`, `unsupported_version`, `bad_signature`, `expired` or
            `compensation_failed`.
        command_id: Empty if the envelope could not be read.
        name: The wire name; empty if the envelope could not be read.
        entity_type: The entity's type, or None.
        entity_id: The entity's id, or None.
        error_type: The exception's qualified name.
        error_message: Its text.
        traceback: The frames, without local values.
        attempts: How many times it was started.
        accepted_ms: When the server accepted it, in ms since the epoch.
        first_started_ms: When it was first started.
        failed_ms: When it was dead-lettered.
        worker: Name of the process that gave it up.
        headers: As they were sent.
        parked: Whether its entity waits for a decision about it.
        payload: The decoded fields, or None if they cannot be read. Decoded when it is first asked for.
        raw: The original envelope.
    """

    id: str
    reason: str
    command_id: str
    name: str
    entity_type: str | None
    entity_id: str | None
    error_type: str
    error_message: str
    traceback: str
    attempts: int
    accepted_ms: int
    first_started_ms: int
    failed_ms: int
    worker: str
    headers: Mapping[str, str]
    parked: bool
    payload: Mapping[str, Any] | None
    raw: bytes = field(repr=False)

    @property
    def entity(self) -> str | None:
        """`"account:a-17"`, or None."""
        return None if self.entity_type is None else f"{self.entity_type}:{self.entity_id}"


@dataclass(frozen=True, slots=True)
class LetterPage:
    """A page of dead letters.

    Attributes:
        letters: Newest first.
        cursor: The place where the next page begins; None if there are no older ones.
        looked: How many letters were looked at for it.
        oldest_ms: When the oldest of those was dead-lettered; None if none was looked at.
    """

    letters: tuple[DeadLetter, ...]
    cursor: str | None
    looked: int
    oldest_ms: int | None


def _counted(name: str) -> Any:
    """Return the field of a counter, which the shards have under this name."""
    return field(default=0, metadata={"counter": name})


def _summed(name: str) -> Any:
    """Return the field of a figure that is the sum of this one of each shard."""
    return field(default=0, metadata={"figure": name})


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of the namespace.

    Attributes:
        depth: Commands accepted and not settled (waiting, delayed, running, parked).
        in_flight: Entities held by workers.
        ready: Entities that wait for a worker.
        delayed: Commands and retries that wait for their time.
        paused: Entities, entity types and buses that were paused or drained; see `bus.entities.holds()`.
        parked: Entities held by a poisoned command.
        entities: Those that have work.
        oldest_age: Seconds for which the entity at the head of the line has waited for a worker, 0.0 if none waits.
        longest_running: Seconds for which the attempt that runs longest has run, as the workers said with their last sign of life.
        dead_letters: Letters in the dead-letter queue.
        accepted: Commands accepted since the namespace was made.
        settled: Commands settled since then, with any outcome.
        completed: Settled commands whose handler returned.
        rejected: Refused by their handler.
        expired: Settled commands that were not started in time for their caller.
        dead_lettered: Commands dead-lettered since then (a replayed one may count again).
        retried: Attempts since then that failed and were followed by another.
        handed_back: Starts since then that were no attempt: the worker did not know the command, or was leaving.
        workers: The live workers.
        priorities: High, normal and low, once priorities or shares are used; else empty.
        snoozed: Starts since then whose handler put its command off.
        pruned: Dead letters deleted since the namespace was made, because they were too old or too many.
        superseded: Commands since then that another of their unique key replaced.
        folded: Commands since then that were dropped, because another held their unique key.
        schedules: Those that have a tick to come.
        fired: Firings of schedules since the namespace was made.
        fired_late: Those more than a second behind their time.
        schedule_overdue: Seconds for which the schedule has been due that is latest, 0.0 if none is.
        limited: Entities that wait for a limit; see `bus.limits.list()`.
        schedules_stored: Schedules in all, also those that are paused, ended or exported: they are lost with the namespace.
        ticks_missed: Ticks since the namespace was made that were left out because no worker fired them in time.
        ticks_skipped: Ticks since then that were left out because of `overlap`.
        suspended: Durable commands that wait without a worker.
        suspensions: The number of times since the namespace was made one was suspended.
        cancelled: Settled commands that were cancelled after they had started.
        history: Ends of commands in the history; see `bus.history`.
        states: Those of entities, which are lost with the namespace; see `bus.states`.
    """

    depth: int = _counted("depth")
    in_flight: int = _summed("in_flight")
    ready: int = 0
    delayed: int = _summed("due")
    paused: int = 0
    parked: int = _summed("parked")
    entities: int = _summed("active")
    oldest_age: float = 0.0
    longest_running: float = 0.0
    dead_letters: int = _summed("dead")
    accepted: int = _counted("accepted")
    settled: int = _counted("settled")
    completed: int = 0
    rejected: int = _counted("rejected")
    expired: int = _counted("expired")
    dead_lettered: int = _counted("dead")
    retried: int = _counted("retried")
    handed_back: int = _counted("handed_back")
    workers: tuple[WorkerInfo, ...] = ()
    priorities: tuple[PriorityInfo, ...] = ()
    snoozed: int = _counted("snoozed")
    pruned: int = _counted("pruned")
    superseded: int = _counted("superseded")
    folded: int = _counted("folded")
    schedules: int = _counted("scheduled")
    fired: int = _counted("fired")
    fired_late: int = _counted("late")
    schedule_overdue: float = 0.0
    limited: int = _summed("limited")
    schedules_stored: int = _summed("schedules")
    ticks_missed: int = _counted("missed")
    ticks_skipped: int = _counted("skipped")
    suspended: int = _summed("suspended")
    suspensions: int = _counted("suspended")
    cancelled: int = _counted("cancelled")
    history: int = _summed("history")
    states: int = _summed("states")
