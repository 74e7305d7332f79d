"""Commands that act on entities: one of them, a type, or all. Nothing here is destructive but `purge`, which asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_bus.cli import PROGRAM
from command_bus.cli.commands.one_entity import Action, entity_and_action, ways_on
from command_bus.cli.completion import entity_types, entity_words
from command_bus.cli.connection import (
    Json,
    Place,
    Yes,
    confirm_or_exit,
    connected,
    execute,
    placed,
)
from command_bus.cli.json_output import plainly
from command_bus.cli.process.options import Outcome
from command_bus.cli.terminal import print_error, say
from command_bus.cli.unknown_names import warn_of_unknown

if TYPE_CHECKING:
    from command_bus.admin.entities import Entities
    from command_bus.admin.entity import EntityScope
    from command_bus.admin.info import EntityDetails, EntityInfo, WaitingCommand
    from command_bus.bus import CommandBus

__all__ = ["cancel", "drain", "entity", "pause", "purge", "resume"]

Chosen = Annotated[
    str | None,
    typer.Argument(
        metavar="TYPE",
        show_default=False,
        autocompletion=entity_types,
        help="Entity type; ~ is what has no entity.",
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="The whole bus.")]
Reason = Annotated[str, typer.Option("--reason", "-m", show_default=False, help="Shown to whoever looks.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
_LEFT = "; the one that runs is left alone"


@placed
def pause(
    entity_type: Chosen = None,
    *,
    everything: Everything = False,
    reason: Reason = "",
    place: Place,
) -> None:
    """Start no command of a type, or of the whole bus (--all), until `resume`. What runs is not touched; commands are accepted.

    It holds at once in the whole fleet, for entities that have no work yet too, and across restarts.

    \b
    Exit codes: 0 paused (or was), 2 wrong usage, 4 no server: with several shards some may be paused; ask again.
    """  # noqa: D301  # fmt: skip
    what = _what(entity_type, everything)
    changed = _act(place, entity_type, lambda chosen: chosen.pause(reason), done="paused")
    say(f"{what}: {'paused' if changed else 'was paused already'}")


@placed
def resume(entity_type: Chosen = None, *, everything: Everything = False, place: Place) -> None:
    """Take back `pause` or `drain` of exactly this: a type, or the whole bus (--all). What was paused more narrowly stays paused.

    \b
    Exit codes: 0 resumed, 1 it was neither paused nor drained, 2 wrong usage, 4 no server: ask again.
    """  # noqa: D301
    what = _what(entity_type, everything)
    changed = _act(place, entity_type, lambda chosen: chosen.resume())
    say(f"{what}: {'resumed' if changed else 'was neither paused nor drained'}")
    raise typer.Exit(Outcome.DONE if changed else Outcome.FAILED)


@placed
def drain(
    entity_type: Chosen = None,
    *,
    everything: Everything = False,
    reason: Reason = "",
    place: Place,
) -> None:
    """Refuse new commands of a type, or of the whole bus (--all), and work off what was accepted, until `resume`.

    Senders get the error Draining. Retries, delayed commands and replayed dead letters were accepted before: they run.

    \b
    Exit codes: 0 draining (or was), 2 wrong usage, 4 no server: with several shards some may be draining; ask again.
    """  # noqa: D301  # fmt: skip
    what = _what(entity_type, everything)
    changed = _act(place, entity_type, lambda chosen: chosen.drain(reason), done="drained")
    say(f"{what}: {'draining' if changed else 'was draining already'}")


@placed
def purge(
    entity_type: Chosen = None,
    *,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    place: Place,
) -> None:
    """Remove all waiting commands of a type, or of the whole bus (--all). What runs is left; callers are told.

    \b
    Exit codes: 0 purged, 1 not wanted, 2 wrong usage, or nobody to ask, 4 no server.
    """  # noqa: D301  # fmt: skip
    what = _what(entity_type, everything)

    async def count() -> tuple[int, int]:
        async with connected(place) as bus:
            depth = entities = 0
            cursor: str | None = None
            while True:
                page = await _chosen(bus, entity_type).list(order="name", limit=1000, cursor=cursor)
                depth += sum(each.depth - (each.state == "running") for each in page.entities)
                entities += sum(each.depth > (each.state == "running") for each in page.entities)
                cursor = page.cursor
                if cursor is None:
                    break
            if not depth:
                await warn_of_unknown(bus, entity_type=entity_type)
            return depth, entities

    from command_bus.cli.output import counted

    depth, entities = execute(count)
    say(f"{what}: {counted(depth, 'waiting command', 'waiting commands')} of {counted(entities, 'entity', 'entities')}")
    if dry_run or not depth:
        return
    confirm_or_exit("Remove them? It cannot be undone.", yes=yes)
    removed: int = _act(place, entity_type, lambda chosen: chosen.purge())
    say(f"{what}: {counted(removed, 'command', 'commands')} removed")


@placed
def cancel(
    command_ids: Annotated[list[str], typer.Argument(metavar="ID", help="Command ids.", show_default=False)],
    *,
    place: Place,
) -> None:
    """Take commands out of line that have not started. Whoever waits for their reply is told.

    \b
    Exit codes: 0 all cancelled, 1 one of them is not there any more, runs, or was settled, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def work() -> bool:
        done = True
        async with connected(place) as bus:
            for command_id in command_ids:
                cancelled = await bus.cancel(command_id)
                say(
                    f"{command_id}: {'cancelled' if cancelled else 'not cancelled: it has started, is settled, or was never accepted'}"
                )
                done = done and cancelled
        return done

    raise typer.Exit(Outcome.DONE if execute(work) else Outcome.FAILED)


@placed
def entity(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TYPE:ID",
            show_default=False,
            autocompletion=entity_words,
            help="The entity, also as TYPE ID; then an action [default: show].",
        ),
    ],
    *,
    reason: Reason = "",
    waiting: Annotated[int, typer.Option(min=0, max=1000, help="How many waiting commands to show.")] = 10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With purge: only count.")] = False,
    wait: Annotated[float, typer.Option(min=0.1, help="With abort: seconds to wait for the end of the attempt.")] = 10.0,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With abort: go on without a handler that cannot be ended; it may run beside its successor."
        ),
    ] = False,
    yes: Yes = False,
    place: Place,
    as_json: Json = False,
) -> None:
    """Look at one entity: who holds it, what is at its head, what waits, why it stands still. Or act on it.

    \b
    Actions:
    show    all of that
    pause   start none of its commands until `resume`; what runs is not touched
    drain   refuse new commands and work off what it has, until `resume`
    resume  take back `pause` or `drain` of this entity
    purge   remove its waiting commands; asks first
    abort   end the attempt that runs: it counts as interrupted, so another follows, or a dead letter; asks first
    \b
    Exit codes: 0 done, 1 there was nothing to resume or abort, what runs cannot be ended, or not wanted, 2 wrong usage, or nobody to
    ask, 3 no answer to abort in time, 4 no server.
    """  # noqa: D301
    entity_type, entity_id, action = entity_and_action(words)
    name = f"{entity_type}:{entity_id}"
    _refuse_misfits(action, dry_run=dry_run, force=force)
    if action is Action.ABORT:
        from command_bus.cli.commands.abort import abort

        abort(place, entity_type, entity_id, reason=reason, wait=wait, force=force, yes=yes, as_json=as_json)
        return

    async def details() -> EntityDetails:
        async with connected(place) as bus:
            found = await bus.entity(entity_type, entity_id).show(waiting=waiting)
            if not found.entity.depth:
                await warn_of_unknown(bus, entity_type=entity_type)
            return found

    async def act() -> str | None:
        async with connected(place) as bus:
            told = await _act_on_one(bus.entity(entity_type, entity_id), action, reason)
            if action in (Action.PAUSE, Action.DRAIN):
                done = "paused" if action is Action.PAUSE else "drained"
                done = _nevertheless(done, place.command("entity", name, "resume"))
                await warn_of_unknown(bus, entity_type=entity_type, done=done)
            return told

    if action is Action.SHOW:
        _show(execute(details), place, as_json=as_json)
        return
    if action is Action.PURGE:
        from command_bus.cli.output import counted

        found = execute(details)
        count = found.entity.depth - (found.entity.state == "running")
        say(f"{name}: {counted(count, 'waiting command', 'waiting commands')}")
        if dry_run or not count:
            return
        confirm_or_exit("Remove them? It cannot be undone.", yes=yes)
    done = execute(act)
    if done is None:
        print_error(f"{name} was neither paused nor drained itself{_why_not(execute(details))}")
        raise typer.Exit(Outcome.FAILED)
    say(f"{name}: {done}")


def _refuse_misfits(action: Action, *, dry_run: bool, force: bool) -> None:
    for given, option, fits in ((dry_run, "--dry-run", Action.PURGE), (force, "--force", Action.ABORT)):
        if given and action is not fits:
            print_error(f"{option} goes with {fits}")
            raise typer.Exit(Outcome.USAGE)


async def _act_on_one(scope: EntityScope, action: Action, reason: str) -> str | None:
    """What was done, for people; None if there was nothing to resume."""
    match action:
        case Action.PAUSE:
            return "paused" if await scope.pause(reason) else "was paused already"
        case Action.DRAIN:
            return "draining" if await scope.drain(reason) else "was draining already"
        case Action.RESUME:
            return "resumed" if await scope.resume() else None
        case _:
            from command_bus.cli.output import counted

            removed = await scope.purge()
            runs = (await scope.show(waiting=0)).entity.state == "running"
            return f"{counted(removed, 'command', 'commands')} removed{_LEFT if runs else ''}"


def _why_not(found: EntityDetails) -> str:
    if found.letter is not None:
        return f": it is parked by dead letter {found.letter.id}, `command-bus dlq replay` or `dlq discard` that"
    hold = found.entity.hold
    return f": {hold.what} is {hold.mode}" if hold is not None else ""


def _show(found: EntityDetails, place: Place, *, as_json: bool) -> None:
    if as_json:
        say(plainly(found))
        return
    from command_bus.cli.output import fields, table

    say(fields([*_lines(found), *ways_on(found, place)]))
    if found.waiting:
        say()
        say(table(["waiting", "command id", "accepted"], [_waiting(each) for each in found.waiting]))
        more = found.entity.depth - 1 - len(found.waiting)
        if found.head is not None and more > 0:
            say(f"and {more:,} more")


def _lines(found: EntityDetails) -> list[tuple[str, Any]]:
    from command_bus.cli.output import counted, duration, since

    entity, head, letter, hold, holder = found.entity, found.head, found.letter, found.entity.hold, found.holder
    lines: list[tuple[str, Any]] = [("entity", entity.name), ("state", _state(entity)), ("depth", entity.depth)]
    if entity.due_ms is not None and entity.state != "waiting":
        lines.append(("delayed", f"until {since(entity.due_ms)}"))
    if hold is not None:
        lines.append((hold.mode, f"{hold.what}, since {since(hold.since_ms)}{': ' if hold.reason else ''}{hold.reason}"))
    if head is not None:
        lines += [
            ("head", f"{head.name or '(its bytes cannot be read)'} {head.command_id}"),
            ("accepted", since(head.accepted_ms)),
            (
                "attempt",
                f"{entity.attempt}, first started {since(found.first_started_ms)}" if entity.attempt else "not started yet",
            ),
        ]
        if not found.handlers:
            lines.append(("handled by", "no live worker: start one that knows it"))
    if entity.retry_at_ms is not None:
        lines.append(("retry", since(entity.retry_at_ms)))
    if entity.worker is not None:
        where = "unknown" if holder is None else f"{holder.host}, process {holder.pid}{'' if holder.alive else ', LOST'}"
        lines += [
            ("held by", f"worker {entity.worker} ({where})"),
            ("running for", duration(entity.running_for)),
            ("lease", f"last renewed {duration(found.lease_age)} ago"),
        ]
    if letter is not None:
        lines += [
            (
                "parked by",
                f"dead letter {letter.id}: {letter.reason} after {counted(letter.attempts, 'attempt', 'attempts')}, {since(letter.failed_ms)}",
            ),
            ("error", f"{letter.error_type}: {letter.error_message}"),
        ]
    return lines


def _state(entity: EntityInfo) -> str:
    from command_bus.cli.output import since

    if not entity.depth and entity.hold is None:
        return "idle: nothing of it waits or runs, or it was never used"
    return f"delayed until {since(entity.due_ms)}" if entity.due_ms is not None and entity.state == "waiting" else entity.state


def _waiting(command: WaitingCommand) -> tuple[str, str, str]:
    from command_bus.cli.output import since

    when = f"due {since(command.due_ms)}" if command.due_ms is not None else since(command.accepted_ms)
    return command.name or "(its bytes cannot be read)", command.command_id, when


def _act(place: Place, entity_type: str | None, act: Callable[[Entities], Awaitable[Any]], *, done: str = "") -> Any:
    """Do it; of a type that nobody knows is said that it was `done`, or, where nothing was, that nobody knows it."""

    async def work() -> Any:
        async with connected(place) as bus:
            changed = await act(_chosen(bus, entity_type))
            if done or not changed:
                await warn_of_unknown(
                    bus, entity_type=entity_type, done=_nevertheless(done, place.command("resume", entity_type or "--all"))
                )
            return changed

    return execute(work)


def _nevertheless(done: str, back: str) -> str:
    return done and f"It is {done} all the same: `{back}` takes that back"


def _chosen(bus: CommandBus, entity_type: str | None) -> Entities:
    return bus.entities if entity_type is None else bus.entities.of(None if entity_type == "~" else entity_type)


def _what(entity_type: str | None, everything: bool) -> str:
    """The words for it; a type or `--all`, and not both."""
    if (entity_type is None) != everything:
        print_error("name an entity type, or --all for the whole bus")
        raise typer.Exit(Outcome.USAGE)
    if entity_type is not None and ":" in entity_type:
        print_error(
            f"{entity_type} is one entity, not a type: write `{PROGRAM} entity {entity_type} pause` (or resume, drain, purge)"
        )
        raise typer.Exit(Outcome.USAGE)
    return "the whole bus" if entity_type is None else "what has no entity" if entity_type == "~" else f"all {entity_type}"
