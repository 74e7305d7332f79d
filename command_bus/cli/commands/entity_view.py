"""Output of `entity TYPE:ID`: the details of one entity, and commands to paste where it does not go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from command_bus.cli.connection import on_bus
from command_bus.cli.options import Answer, Target
from command_bus.cli.output import format_fields, format_table, format_time_and_age, pluralize
from command_bus.cli.terminal import SafeText, print_error, warn_if_unknown
from command_bus.clock import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from command_bus.admin.info import EntityDetails, EntityInfo, UniqueKeyInfo, UniqueKeyPage, WaitingCommand
    from command_bus.bus import CommandBus
    from command_bus.transport.records import Failure, SuspensionInfo

_LONG = 30.0  # seconds that a handler has run
_UNREADABLE = "(its bytes cannot be read)"


def details(found: EntityDetails, target: Target) -> Answer:
    """Answer with the details of an entity."""
    return Answer(found, _texts(found, target))


def _texts(found: EntityDetails, target: Target) -> Iterator[str]:
    yield format_fields([*_detail_lines(found), *suggest_commands(found, target)])
    if found.waiting:
        yield ""
        keyed = any(each.unique for each in found.waiting)
        head = ["waiting", "command id", "accepted", *(["unique key"] if keyed else [])]
        yield format_table(head, [_waiting_row(each, keyed=keyed) for each in found.waiting])
        more = found.entity.depth - 1 - len(found.waiting)
        if found.head is not None and more > 0:
            yield f"and {more:,} more"


def suggest_commands(found: EntityDetails, target: Target) -> list[tuple[str, str]]:
    """Return commands to paste that get an entity going again, each with a label."""
    entity, hold = found.entity, found.entity.hold
    if found.letter is not None:
        return [
            ("to go on", f"{target.command('dlq', 'replay', found.letter.id)}  (runs it again)"),
            ("or", f"{target.command('dlq', 'discard', found.letter.id)}  (skips it)"),
        ]
    ways: list[tuple[str, str]] = []
    if (entity.running_for or 0.0) >= _LONG:
        ways.append(("if it hangs", f"{target.command('entity', entity.name, 'abort')}  (ends this attempt)"))
        if hold is None:
            ways.append(("before", f"{target.command('entity', entity.name, 'pause')}  (to keep the next attempt from starting)"))
    if hold is not None and hold.what == entity.name:
        ways.append(("to go on", target.command("entity", entity.name, "resume")))
    elif hold is not None:
        ways.append(("to go on", target.command("resume", *(["--all"] if hold.entity_type is None else [hold.entity_type]))))
    return ways


def _detail_lines(found: EntityDetails) -> Iterator[tuple[str, Any]]:
    entity, hold = found.entity, found.entity.hold
    yield from (("entity", entity.name), ("state", _state(entity)), ("depth", entity.depth))
    if entity.priority != "normal":
        yield "priority", entity.priority
    if entity.tenant is not None:
        yield "tenant", entity.tenant
    if entity.due_ms is not None and entity.state != "waiting":
        yield "delayed", f"until {format_time_and_age(entity.due_ms)}"
    if hold is not None:
        ends = "" if hold.until_ms is None else f", until {format_time_and_age(hold.until_ms)}"
        yield (
            hold.mode,
            f"{hold.what}, since {format_time_and_age(hold.since_ms)}{ends}{': ' if hold.reason else ''}{hold.reason}",
        )
    if entity.limit is not None:
        yield "waits for", str(entity.limit)
    if entity.home is not None:
        yield "waits for", f"a command of {entity.home}, which is to run at the head of both"
    for each in found.waits_for:
        yield "waits for", f"{each.name}, which is {each.state}"
    if entity.suspension is not None:
        yield from suspension_lines(entity.suspension)
    yield from _head_lines(found)
    if entity.retry_at_ms is not None:
        yield "snoozed until" if entity.state == "snoozed" else "retry", format_time_and_age(entity.retry_at_ms)
    yield from _worker_lines(found)
    yield from _letter_lines(found)


def suspension_lines(suspension: SuspensionInfo) -> Iterator[tuple[str, Any]]:
    """Yield for how long, and for what, a command is suspended."""
    yield "suspended", f"since {format_time_and_age(suspension.since_ms)}"
    yield "because it", str(suspension)
    if suspension.until_ms is not None:
        yield "goes on", format_time_and_age(suspension.until_ms)


def failure_lines(failure: Failure | None) -> Iterator[tuple[str, Any]]:
    """Yield how the last attempt of a command failed, if one did."""
    if failure is not None:
        yield "last error", f"{failure.text.strip()}, {format_time_and_age(failure.at_ms)}"


def _head_lines(found: EntityDetails) -> Iterator[tuple[str, Any]]:
    entity, head = found.entity, found.head
    if head is None:
        return
    yield "head", f"{head.name or _UNREADABLE} {head.command_id}"
    if head.unique is not None:
        yield "unique key", head.unique
    yield "accepted", format_time_and_age(head.accepted_ms)
    first = f"{entity.attempt}, first started {format_time_and_age(found.first_started_ms)}"
    yield "attempt", first if entity.attempt else "not started yet"
    if entity.snoozes:
        yield "snoozes", f"{entity.snoozes:,}"
    yield from failure_lines(entity.failure)
    if not found.handlers:
        yield "handled by", "no live worker: start one that knows it"


def _worker_lines(found: EntityDetails) -> Iterator[tuple[str, Any]]:
    entity, holder = found.entity, found.holder
    if entity.worker is None:
        return
    where = "unknown" if holder is None else f"{holder.host}, process {holder.pid}{'' if holder.alive else ', LOST'}"
    yield "held by", f"worker {entity.worker} ({where})"
    yield "running for", format_duration(entity.running_for)
    yield "lease", f"last renewed {format_duration(found.lease_age)} ago"


def _letter_lines(found: EntityDetails) -> Iterator[tuple[str, Any]]:
    letter = found.letter
    if letter is None:
        return
    attempts = pluralize(letter.attempts, "attempt", "attempts")
    yield "parked by", f"dead letter {letter.id}: {letter.reason} after {attempts}, {format_time_and_age(letter.failed_ms)}"
    yield "error", f"{letter.error_type}: {letter.error_message}"


def _state(entity: EntityInfo) -> str:
    if not entity.depth and entity.hold is None:
        return "idle: nothing of it waits or runs, or it was never used"
    delayed = entity.due_ms is not None and entity.state == "waiting"
    return f"delayed until {format_time_and_age(entity.due_ms)}" if delayed else entity.state


def _waiting_row(command: WaitingCommand, *, keyed: bool) -> tuple[str, ...]:
    due = command.due_ms
    when = f"due {format_time_and_age(due)}" if due is not None else format_time_and_age(command.accepted_ms)
    row = (command.name or _UNREADABLE, command.command_id, when)
    return (*row, command.unique or "") if keyed else row


def key_table(keys: Sequence[UniqueKeyInfo], *, entities: bool) -> SafeText:
    """Return keys as a table, with their entities if these differ."""
    head = [*(["entity"] if entities else []), "unique key", "its command", "name", "command id", "window until"]
    rows = [
        (
            *([_entity(each)] if entities else []),
            each.key,
            each.state,
            each.name,
            each.command_id,
            format_time_and_age(each.window_ms),
        )
        for each in keys
    ]
    return format_table(head, rows)


def key_page(target: Target, entity_type: str | None, limit: int, cursor: str | None) -> Answer:
    """Answer with a page of keys, and how to get the next."""

    async def work(bus: CommandBus) -> UniqueKeyPage:
        chosen = bus.entities if entity_type is None else bus.entities.of(entity_type)
        page = await chosen.unique_keys(limit=limit, cursor=cursor)
        if not page.keys:
            await warn_if_unknown(bus, entity_type=entity_type)
        return page

    page = on_bus(target, work)

    def text() -> Iterator[str]:
        yield key_table(page.keys, entities=True) if page.keys else "no unique key is held"
        if page.cursor is not None:
            words = [*([] if entity_type is None else [entity_type]), "--limit", str(limit), "--cursor", page.cursor]
            yield f"more: {target.command('entities', '--keys', *words)}"
        if not page.complete:
            print_error("there are more keys than were read: only those were sorted")

    return Answer(page, text())


def _entity(key: UniqueKeyInfo) -> str:
    return f"{key.entity_type}:{'(a long id)' if key.entity_id is None else key.entity_id}"
