"""Commands that look at one command, and tell it something: `command` and `signal`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from command_bus.cli.commands.entity_view import failure_lines, suspension_lines
from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import Answer, Target, with_target
from command_bus.cli.output import format_fields, format_table, format_time, format_time_and_age, to_json
from command_bus.cli.terminal import usage_error
from command_bus.errors import CommandBusError

if TYPE_CHECKING:
    from command_bus.admin.audit import AuditEntry
    from command_bus.admin.command_status import CommandStatus
    from command_bus.admin.records import CommandRecord, CommandTree, StepInfo
    from command_bus.bus import CommandBus

CommandId = Annotated[str, Argument(metavar="ID", help="The command's id.")]


@with_target
def command(
    command_id: CommandId,
    entity: Annotated[
        str | None, Option("--entity", metavar="TYPE:ID", help="Its entity, whose line is looked through first.")
    ] = None,
    *,
    tree: Annotated[bool, Option("--tree", help="Show what it has called, and what that has called, instead.")] = False,
    target: Target,
) -> Answer:
    """Show one command: where it is, what it carries, its last error, how far it is, its log, and the steps of a durable one.

    A command that was dispatched with an id or with keep_result, called, or durable is found at once. Any other is looked for among the first
    20,000 commands of the namespace, in the line of its --entity, among the newest dead letters, and in the history.

    \b
    Exit codes: 0 shown, 1 it is not known (any more), 2 wrong usage, 4 no server.
    """  # noqa: D301
    kind, _, entity_id = (entity or "").partition(":")
    if entity is not None and not (kind and entity_id):
        raise usage_error("--entity is TYPE:ID, as account:a-17")
    likely = (kind, entity_id) if entity else None

    if tree:
        found = on_bus(target, lambda bus: bus.commands.tree(command_id, entity=likely))
        rows = [
            (f"{'  ' * depth}{each.name or 'unknown'}", each.state, each.entity, each.command_id) for depth, each in _rows(found)
        ]
        more = [] if found.complete else ["there is more: the first thousand commands"]
        return Answer(found, [format_table(["command", "state", "entity", "id"], rows), *more])

    async def read(bus: CommandBus) -> tuple[CommandStatus, CommandRecord, tuple[AuditEntry, ...]]:
        status = await bus.commands.status(command_id, entity=likely)
        names = (command_id, status.entity, status.letter_id or "")
        record = await bus.commands.record(command_id, entity=likely)
        try:
            return status, record, await bus.audit.about(names)
        except CommandBusError:  # a user that may not read the log
            return status, record, ()

    status, record, acts = on_bus(target, read)
    data = {"status": status, "progress": record.progress, "log": record.log, "steps": record.steps, "acts": acts}
    return Answer(data, _lines(status, record, acts))


def _rows(tree: CommandTree, depth: int = 0) -> Iterator[tuple[int, CommandStatus]]:
    """Yield the commands of a tree, each with its depth."""
    yield depth, tree.status
    for each in tree.calls:
        yield from _rows(each, depth + 1)


def _lines(status: CommandStatus, record: CommandRecord, acts: Sequence[AuditEntry]) -> Iterator[str]:
    payload = None if status.payload is None else to_json(status.payload, indent=None)
    yield format_fields([*_status_lines(status), ("payload", payload), *_progress_lines(record)])
    if record.steps:
        yield ""
        steps = [(each.kind, each.name, _state_of(each), each.command_id, each.entity) for each in record.steps]
        yield format_table(["stored", "name", "state", "command id", "entity"], steps)
    if record.log:
        yield ""
        facts = [" ".join(f"{name}={value}" for name, value in each.facts.items()) for each in record.log]
        rows = [(format_time(each.at_ms), each.text, told) for each, told in zip(record.log, facts, strict=True)]
        yield format_table(["log", "text", "facts"], rows)
    if acts:
        yield ""
        told = [(each.at, each.who, each.act, each.target, each.why, each.outcome) for each in acts]
        yield format_table(["when", "who", "act", "on", "why", "outcome"], told)


@with_target
def signal(
    command_id: CommandId,
    name: Annotated[str, Argument(metavar="NAME", help="The name that its handler waits for.")],
    value: Annotated[str, Argument(metavar="[JSON]", help="The value.")] = "null",
    *,
    signal_id: Annotated[str | None, Option("--id", help="An id under which the signal is taken once.")] = None,
    target: Target,
) -> Answer:
    """Bring a signal to a durable command. It is kept until the command's handler asks for it.

    \b
    Exit codes: 0 taken, or taken before under this --id, 1 no such command waits or runs, 2 wrong usage, 4 no server.
    """  # noqa: D301
    from command_bus.serialization.json_forms import read_json

    try:
        data: Any = read_json(value)
    except ValueError as error:
        raise usage_error(f"the value is no JSON: {error}. Quote a text: '\"yes\"'") from None
    taken = act_on_bus(
        target,
        "Send signal",
        f"command {command_id}",
        lambda bus: bus.commands.signal(command_id, name, data, signal_id=signal_id),
    )
    text = f"{command_id}: {f'signal {name} taken' if taken else f'a signal with the id {signal_id} was taken before'}"
    return Answer({"command_id": command_id, "signal": name, "taken": taken}, text)


def _status_lines(status: CommandStatus) -> Iterator[tuple[str, Any]]:
    yield "command", f"{status.name} {status.command_id}".strip()
    yield "entity", status.entity or None
    yield "state", f"{status.state}: {status.outcome}" if status.outcome else status.state
    if status.state not in ("settled", "delayed"):
        yield "place", "behind the first thousand" if status.position is None else status.position
    yield "attempt", status.attempt or None
    yield from failure_lines(status.failure)
    yield "worker", status.worker
    yield "cancelling", status.cancelling or None
    if status.suspension is not None:
        yield from suspension_lines(status.suspension)
    else:
        yield "since", None if status.since_ms is None else format_time_and_age(status.since_ms)
        yield "until", None if status.until_ms is None else format_time_and_age(status.until_ms)
    yield "waits for", None if status.limit is None else str(status.limit)
    if status.hold is not None:
        yield status.hold.mode, f"{status.hold.what}{': ' if status.hold.reason else ''}{status.hold.reason}"
    yield "parked by" if status.state == "parked" else "dead letter", status.letter_id
    yield "caused by", status.causation_id or None
    yield "trace id", status.trace_id or None


def _progress_lines(record: CommandRecord) -> Iterator[tuple[str, Any]]:
    progress = record.progress
    if progress.share is not None:
        note = f": {progress.note}" if progress.note else ""
        yield "progress", f"{progress.share:.0%}{note}, {format_time_and_age(progress.at_ms)}"


def _state_of(step: StepInfo) -> str:
    if step.done:
        return "done"
    return "under way" if step.command_id else "named"
