"""Commands that only read: stats, entities, workers, introspect."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from command_bus.admin.json_data import to_jsonable
from command_bus.cli.completion import command_names, entity_types
from command_bus.cli.connection import on_bus
from command_bus.cli.options import Answer, Target, with_target
from command_bus.cli.output import format_fields, format_table, format_time, format_time_and_age, table, to_json
from command_bus.cli.terminal import SafeText, failure, print_error, usage_error, warn_if_unknown
from command_bus.clock import format_duration
from command_bus.spelling import did_you_mean, some_of

if TYPE_CHECKING:
    from command_bus.admin.info import EntityInfo, EntityPage, Stats
    from command_bus.bus import CommandBus
    from command_bus.serialization.announcements import CommandInfo, WorkerStatus
    from command_bus.transport.records import HoldInfo


class State(StrEnum):
    """States of an entity."""

    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    SNOOZED = "snoozed"
    LIMITED = "limited"
    SUSPENDED = "suspended"
    BLOCKED = "blocked"
    PAUSED = "paused"
    PARKED = "parked"
    DRAINING = "draining"


class Order(StrEnum):
    """Orders of a list of entities."""

    DEPTH = "depth"
    AGE = "age"
    ATTEMPT = "attempt"
    NAME = "name"


@with_target
def stats(*, target: Target) -> Answer:
    """Show figures of the whole namespace: commands that wait, run, are held or were settled, and what is paused or drained.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301 - \b makes typer keep the lines

    async def read(bus: CommandBus) -> tuple[Stats, list[HoldInfo]]:
        return await bus.stats(), await bus.entities.holds()

    found, holds = on_bus(target, read)
    return Answer({**to_jsonable(found), "holds": holds}, format_fields(stats_lines(found, holds)))


def stats_lines(found: Stats, holds: list[HoldInfo]) -> list[tuple[str, Any]]:
    """Return the figures as lines, the most important first."""
    lines: list[tuple[str, Any]] = [
        ("commands", f"{found.depth:,} accepted and not settled, {found.delayed:,} of them delayed or waiting for a retry"),
        ("entities", f"{found.entities:,} with work: {found.in_flight:,} held, {found.ready:,} ready; {found.parked:,} parked"
         + (f"; {found.limited:,} wait for a limit" if found.limited else "")
         + (f"; {found.suspended:,} suspended" if found.suspended else "")),
        ("longest", f"{format_duration(found.oldest_age)} waiting for a worker, {format_duration(found.longest_running)} running"),
        ("dead letters", found.dead_letters),
        ("workers", f"{len(found.workers)} live, running {sum(worker.running for worker in found.workers):,}"),
        ("since the start", (f"{found.accepted:,} accepted, {found.settled:,} settled: {found.completed:,} completed, "
         f"{found.rejected:,} rejected, {found.expired:,} expired, {found.dead_lettered:,} dead-lettered; {found.retried:,} retries, "
         f"{found.snoozed:,} snoozes, {found.handed_back:,} handed back")),
    ]  # fmt: skip
    if found.priorities:
        told = ", ".join(f"{each.priority} {each.waiting:,} in line, {each.started:,} started" for each in found.priorities)
        lines.append(("priorities", told))
    if found.schedules_stored or found.fired:
        overdue = f", the latest overdue for {format_duration(found.schedule_overdue)}" if found.schedule_overdue > 1 else ""
        missed, skipped = found.ticks_missed, found.ticks_skipped
        left_out = f"; {missed:,} ticks missed, {skipped:,} skipped" if missed or skipped else ""
        fired = f"{found.fired:,} fired, {found.fired_late:,} of them late{left_out}{overdue}"
        lines.append(("schedules", f"{found.schedules_stored:,}, {found.schedules:,} to come; {fired}"))
    if found.states:
        lines.append(("states", f"{found.states:,}"))
    for hold in holds:
        spread = "" if hold.everywhere else " (not on every shard: ask again)"
        lines.append(
            (
                hold.mode,
                f"{hold.what}{spread}, since {format_time_and_age(hold.since_ms)}{_until(hold)}{': ' if hold.reason else ''}{hold.reason}",
            )
        )
    if found.paused > len(holds):
        lines.append(("paused", "single entities: `command-bus entities --state paused` shows which, and why"))
    return lines


def _until(hold: HoldInfo) -> str:
    """Return until when a pause holds, if it ends by itself."""
    return "" if hold.until_ms is None else f", until {format_time(hold.until_ms)}"


@with_target
def entities(
    entity_type: Annotated[
        str | None,
        Argument(
            metavar="TYPE",
            autocompletion=entity_types,
            help="Only entities of this type; ~ is for commands without an entity.",
        ),
    ] = None,
    *,
    state: Annotated[
        list[State] | None,
        Option(help="Only entities in this state; may be repeated. Delayed entities are waiting."),
    ] = None,
    sort: Annotated[Order, Option(help="Order: most commands first, longest waiting, most attempts, or by name.")] = Order.DEPTH,
    limit: Annotated[int, Option(min=1, max=10_000, help="How many to show.")] = 20,
    cursor: Annotated[str | None, Option(help="Continue after an earlier page, which printed the cursor.")] = None,
    keys: Annotated[bool, Option("--keys", help="List the unique keys that are held instead, by entity and key.")] = False,
    target: Target,
) -> Answer:
    """List entities that have work, or are paused or drained themselves, those with the most commands first.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    if keys:
        from command_bus.cli.commands.entity_view import key_page

        if state or sort is not Order.DEPTH or entity_type == "~":
            raise usage_error("--keys lists by entity and key: leave out --state, --sort and ~")
        return key_page(target, entity_type, limit, cursor)

    async def work(bus: CommandBus) -> tuple[EntityPage, frozenset[str]]:
        chosen = bus.entities if entity_type is None else bus.entities.of(None if entity_type == "~" else entity_type)
        states: Any = {each.value for each in state or ()}
        order: Any = sort.value
        page = await chosen.list(states=states, order=order, limit=limit, cursor=cursor)
        if not page.matching:
            await warn_if_unknown(bus, entity_type=entity_type)
        from command_bus.doctor.examination import without_handler

        return page, await without_handler(bus, page.entities)

    page, unhandled = on_bus(target, work)

    def text() -> Iterator[str]:
        if not page.entities:
            yield "no entity has work" if not state and entity_type is None else "no entity matches"
            return
        yield entity_table(page, unhandled)
        if page.cursor is not None:
            chosen = ["--sort", sort, "--limit", str(limit), *(word for each in state or () for word in ("--state", each))]
            words = ["entities", *([] if entity_type is None else [entity_type]), *chosen, "--cursor", page.cursor]
            yield f"{page.matching:,} match; more: {target.command(*words)}"
        if not page.complete:
            print_error("there are more entities than were read: only those were sorted")

    return Answer(page, text())


def entity_table(page: EntityPage, unhandled: Collection[str] = ()) -> SafeText:
    """Return a page of entities as a table; `unhandled` are the names of those whose command no live worker handles."""
    return format_table(
        ["entity", "state", "depth#", "head age#", "attempt#", "worker", "why, how long"],
        [
            (
                each.name,
                _state(each),
                each.depth,
                format_duration(each.age),
                each.attempt,
                each.worker,
                _why(each, each.name in unhandled),
            )
            for each in page.entities
        ],
    )


def _state(entity: EntityInfo) -> str:
    """Return the state of an entity as it is shown."""
    return "delayed" if entity.state == "waiting" and entity.due_ms is not None else entity.state


def _waits(entity: EntityInfo) -> Iterator[str]:
    """Yield for what the command at an entity's head waits."""
    if entity.limit is not None:
        yield str(entity.limit)
    if entity.home is not None:
        yield f"for {entity.home}, whose command is first here"
    if entity.suspension is not None:
        waited = max(time.time() - entity.suspension.since_ms / 1000, 0.0)
        yield f"for {format_duration(waited)}  {entity.suspension}"


def _why(entity: EntityInfo, is_unhandled: bool) -> str:
    """Return why an entity is in its state, and for how long."""
    if entity.letter_id is not None:
        return f"dead letter {entity.letter_id}"
    facts: list[str] = []
    if entity.running_for is not None:
        facts.append(f"for {format_duration(entity.running_for)}")
    if entity.hold is not None:
        facts.append(
            f"{entity.hold.what} {entity.hold.mode}{_until(entity.hold)}{': ' if entity.hold.reason else ''}{entity.hold.reason}"
        )
    elif entity.retry_at_ms is not None:
        was_started = entity.attempt or entity.state == "snoozed"
        reason = "no worker knows the command, asked " if is_unhandled else "" if was_started else "not started yet, offered "
        facts.append(f"{reason}again in {format_duration(max(entity.retry_at_ms / 1000 - time.time(), 0.0))}")
    if entity.failure is not None:
        facts.append(entity.failure.text.partition("\n")[0])
    facts += _waits(entity)
    if entity.due_ms is not None:
        facts.append(f"{'' if _state(entity) == 'delayed' else 'delayed '}until {format_time_and_age(entity.due_ms)}")
    if entity.priority != "normal" or entity.tenant is not None:
        facts.append(entity.priority if entity.tenant is None else f"{entity.priority}, of {entity.tenant}")
    return "; ".join(facts)


@with_target
def workers(*, target: Target) -> Answer:
    """List live workers, and workers that were lost in the last hour (ten leases, if that is longer).

    \b
    Exit codes: 0 at least one is live, 1 none is, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: bus.fleet.workers())
    text = worker_table(found) if found else "no worker has been seen"
    return Answer({"workers": found}, text, any(worker.alive for worker in found))


def _running(worker: WorkerStatus) -> str:
    """Return how many entities a worker runs, its limit, and what it waits for."""
    text = f"{worker.running - worker.awaiting_reply}/{worker.concurrency}"
    if worker.paused:
        text += ", paused"
    if worker.awaiting_reply:
        text += f" + {worker.awaiting_reply} in calls"
    return text + (f", {worker.awaiting_thread} wait for a thread" if worker.awaiting_thread else "")


def worker_table(found: list[WorkerStatus]) -> SafeText:
    """Return workers as a table."""
    return format_table(
        ["worker", "state", "host", "pid", "started", "last sign#", "running#", "commands"],
        [
            (
                each.name, "live" if each.alive else "lost", each.host, str(each.pid), format_time(each.started_ms), format_duration(each.silent_for),
                _running(each), ", ".join(each.commands),
            )
            for each in found
        ],
    )  # fmt: skip


@with_target
def introspect(
    name: Annotated[
        str | None,
        Argument(
            metavar="COMMAND",
            autocompletion=command_names,
            help="Show this command, or event, with its schema.",
        ),
    ] = None,
    *,
    target: Target,
) -> Answer:
    """List commands as the workers announce them, with their policies and the number of workers that handle them.

    \b
    Exit codes: 0 shown, 1 there is no such command, 2 wrong usage, 4 no server.
    """  # noqa: D301
    if name is None:
        found = on_bus(target, lambda bus: bus.fleet.commands())
    else:
        found = on_bus(target, announced_commands)
        chosen = next((each for each in found if each.name == name), None)
        if chosen is None:
            known = [each.name for each in found]
            raise failure(f"no worker has announced {name!r}; announced are: {some_of(known)}{did_you_mean(name, known)}")
        return Answer(chosen, to_json(chosen))
    rows = [
        (each.name, each.kind, each.entity, ", ".join(_field(each, field) for field in each.schema.get("properties", {})),
         each.delivery, _policy(each), len(each.workers))
        for each in found
    ]  # fmt: skip
    return Answer({"commands": found}, table(["command", "kind", "entity", "fields", "delivery", "policy", "workers#"], rows))


async def announced_commands(bus: CommandBus) -> list[CommandInfo]:
    """Return the commands and the events that workers announce."""
    return [*await bus.fleet.commands(), *await bus.fleet.events()]


def _field(command: CommandInfo, field: str) -> str:
    return f"{field}*" if field == command.key else field if field in command.schema.get("required", ()) else f"{field}?"


def _policy(command: CommandInfo) -> str:
    policy = command.policy
    words = [
        f"{policy.get('attempts', '?')} attempts",
        policy.get("on_poison"),
        policy.get("attempt_timeout") and f"{policy['attempt_timeout']:g} s",
    ]
    return ", ".join(word for word in words if word)
