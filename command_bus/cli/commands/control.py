"""Commands that act on the entities of a type, or on all: pause, drain, resume, purge. And `cancel`, which acts on single commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from command_bus.cli import PROGRAM
from command_bus.cli.completion import entity_types
from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import (
    Answer,
    CommandIds,
    DryRun,
    PauseFor,
    PauseUntil,
    Reason,
    Target,
    Yes,
    entity_type_named,
    with_target,
)
from command_bus.cli.output import pluralize, split
from command_bus.cli.terminal import (
    ExitCode,
    confirm_or_exit,
    counting,
    echo,
    print_error,
    undo_hint,
    usage_error,
    warn_if_unknown,
)
from command_bus.cli.times import parse_end

if TYPE_CHECKING:
    from command_bus.admin.entities import Entities
    from command_bus.admin.info import Stats
    from command_bus.bus import CommandBus

OneType = Annotated[
    str | None,
    Argument(
        metavar="TYPE",
        autocompletion=entity_types,
        help="Entity type; ~ is for commands without an entity.",
    ),
]
Everything = Annotated[bool, Option("--all", help="Act on the whole bus.")]


@with_target
def pause(
    entity_type: OneType = None,
    *,
    everything: Everything = False,
    reason: Reason = "",
    until: PauseUntil = None,
    duration: PauseFor = None,
    target: Target,
) -> None:
    """Start no command of a type, or of the whole bus (--all), until `resume`. Running commands are not touched; new ones are accepted.

    It takes effect at once in all workers, also for entities that have no work yet, and lasts across restarts. With --until or --for it ends
    by itself.

    \b
    Exit codes: 0 paused (or was), 2 wrong usage, 4 no server: with several shards some may be paused; repeat it.
    """  # noqa: D301  # fmt: skip
    name = _selection_name(entity_type, everything)
    end = parse_end(until, duration)
    changed = _change_entities(
        target, entity_type, lambda chosen: chosen.pause(reason, until=end), "Pause", done="paused", why=reason
    )
    echo(f"{name}: {'paused' if changed else 'was paused already'}")


@with_target
def resume(entity_type: OneType = None, *, everything: Everything = False, target: Target) -> None:
    """Undo `pause` or `drain` of exactly this: a type, or the whole bus (--all). A single type or entity that was paused stays paused.

    \b
    Exit codes: 0 resumed, 1 it was neither paused nor drained, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    name = _selection_name(entity_type, everything)
    changed = _change_entities(target, entity_type, lambda chosen: chosen.resume(), "Resume")
    echo(f"{name}: {'resumed' if changed else 'was neither paused nor drained'}")
    raise Exit(ExitCode.DONE if changed else ExitCode.FAILED)


@with_target
def drain(
    entity_type: OneType = None,
    *,
    everything: Everything = False,
    reason: Reason = "",
    target: Target,
) -> None:
    """Refuse new commands of a type, or of the whole bus (--all), and finish the accepted ones, until `resume`.

    Senders get the error Draining. Retries, delayed commands and replayed dead letters were accepted before: they run.

    \b
    Exit codes: 0 draining (or was), 2 wrong usage, 4 no server: with several shards some may be draining; repeat it.
    """  # noqa: D301  # fmt: skip
    name = _selection_name(entity_type, everything)
    changed = _change_entities(target, entity_type, lambda chosen: chosen.drain(reason), "Drain", done="drained", why=reason)
    echo(f"{name}: {'draining' if changed else 'was draining already'}")
    stored = 0 if entity_type is not None else on_bus(target, lambda bus: bus.stats()).schedules_stored
    if stored:
        echo(f"its schedules stay ({stored:,}): {target.command('schedules', 'export', '--stop')} takes them along")


@with_target
def purge(
    entity_type: OneType = None,
    *,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target,
) -> None:
    """Remove all waiting commands of a type, or of the whole bus (--all). Running commands are left; callers get an error.

    \b
    Exit codes: 0 purged, 1 not confirmed, 2 wrong usage, or no terminal to ask on, 4 no server.
    """  # noqa: D301  # fmt: skip
    name = _selection_name(entity_type, everything)
    depth, entities = on_bus(target, lambda bus: _count_waiting(bus, entity_type))
    echo(f"{name}: {pluralize(depth, 'waiting command', 'waiting commands')} of {pluralize(entities, 'entity', 'entities')}")
    if dry_run or not depth:
        return
    confirm_or_exit("Remove them? It cannot be undone.", yes=yes)

    async def purge_all(chosen: Entities) -> int:
        with counting(depth, "removed") as tell:
            return await chosen.purge(on_done=tell)

    removed: int = _change_entities(target, entity_type, purge_all, "Purge")
    echo(f"{name}: {pluralize(removed, 'command', 'commands')} removed")


@with_target
def cancel(
    command_ids: CommandIds,
    *,
    running: Annotated[bool, Option("--running", help="End commands that have started, too.")] = False,
    reason: Annotated[str, Option("--reason", "-m", help="Reason that callers and handlers see.")] = "",
    wait: Annotated[
        float, Option("--wait", min=0.1, max=3600.0, help="With --running: seconds to wait for the end of a handler.")
    ] = 10.0,
    target: Target,
) -> Answer:
    """Remove commands that have not started; with --running end those that have. Callers that wait for their reply get an error.

    What a handler has done until then stays done; a durable command is compensated.

    \b
    Exit codes: 0 all cancelled, or told to end, 1 one of them is not there any more, runs, is compensated, or was settled, 2 wrong usage,
    3 no answer from the worker in time, 4 no server.
    """  # noqa: D301

    async def cancel_each(bus: CommandBus) -> dict[str, bool]:
        return {each: await bus.cancel(each, running=running, reason=reason, wait=wait) for each in command_ids}

    done = act_on_bus(target, "Cancel command", ", ".join(command_ids), cancel_each, why=reason)
    other = "its end is decided and being compensated" if running else "it has started"
    return split(done, "cancelled", "not_cancelled", f"not cancelled: {other}, it is settled, or was never accepted")


async def _count_waiting(bus: CommandBus, entity_type: str | None) -> tuple[int, int]:
    """Count the waiting commands, and the entities that have some."""
    depth = entities = 0
    cursor: str | None = None
    while True:
        page = await _select_entities(bus, entity_type).list(order="name", limit=1000, cursor=cursor)
        depth += sum(each.depth - (each.state == "running") for each in page.entities)
        entities += sum(each.depth > (each.state == "running") for each in page.entities)
        cursor = page.cursor
        if cursor is None:
            break
    if not depth:
        await warn_if_unknown(bus, entity_type=entity_type)
    return depth, entities


def _change_entities(
    target: Target,
    entity_type: str | None,
    change: Callable[[Entities], Awaitable[Any]],
    title: str,
    *,
    done: str = "",
    why: str = "",
) -> Any:
    """Apply a change to the selected entities and return its result. Warn if their type is unknown.

    Args:
        target: The bus.
        entity_type: As it was typed; None is the whole bus.
        change: Makes it; a false result means that there was nothing to change.
        title: Its name in the audit log.
        done: The new state, such as `paused`, for a change that applies to unknown types, too; empty for others.
        why: The reason that was given.
    """

    async def work(bus: CommandBus) -> Any:
        changed = await change(_select_entities(bus, entity_type))
        if done or not changed:
            hint = undo_hint(done, target.command("resume", entity_type or "--all")) if done else ""
            await warn_if_unknown(bus, entity_type=entity_type, done=hint)
        return changed

    what = "everything" if entity_type is None else f"all {entity_type}"
    return act_on_bus(target, title, what, work, why=why)


def _select_entities(bus: CommandBus, entity_type: str | None) -> Entities:
    return bus.entities if entity_type is None else bus.entities.of(entity_type_named(entity_type))


def _selection_name(entity_type: str | None, everything: bool) -> str:
    """Return the words for a type or the whole bus.

    Raises:
        typer.Exit: Neither was given, or both, or a single entity.
    """
    if (entity_type is None) != everything:
        raise usage_error("name an entity type, or --all for the whole bus")
    if entity_type is not None and ":" in entity_type:
        print_error(
            f"{entity_type} is one entity, not a type: write `{PROGRAM} entity {entity_type} pause` (or resume, drain, purge)"
        )
        raise Exit(ExitCode.USAGE)
    return "the whole bus" if entity_type is None else "what has no entity" if entity_type == "~" else f"all {entity_type}"


@with_target
def obliterate(
    confirm: Annotated[str, Argument(metavar="NAMESPACE", help="The namespace's name, so that no other is deleted.")],
    *,
    force: Annotated[bool, Option("--force", help="Delete even while workers live; they can settle nothing any more.")] = False,
    yes: Yes = False,
    target: Target,
) -> Answer:
    """Delete a namespace: all commands, dead letters, schedules, states, command ids and outcomes, and what its clients agreed on.

    Refused while workers live, unless --force. Stop what sends to it, too: the next command of a process that still has it open begins a new
    one. If it breaks off, the namespace is drained: repeat it.

    \b
    Exit codes: 0 deleted, 1 refused, or not confirmed, 2 wrong usage or name, or no terminal to ask on, 4 no server: repeat it.
    """  # noqa: D301

    async def waiting(bus: CommandBus) -> tuple[str, Stats]:
        return bus.settings.namespace, await bus.stats()

    namespace, stats = on_bus(target, waiting)
    if confirm == namespace:
        held = (
            f"{pluralize(stats.depth, 'command', 'commands')} and {pluralize(stats.dead_letters, 'dead letter', 'dead letters')}"
        )
        if stats.schedules_stored:
            held += f" and {pluralize(stats.schedules_stored, 'schedule', 'schedules')}"
        if stats.states:
            held += f" and {pluralize(stats.states, 'state', 'states')}"
        confirm_or_exit(f"Delete namespace {namespace} with {held}? It cannot be undone.", yes=yes)
    deleted = on_bus(target, lambda bus: bus.entities.obliterate(confirm=confirm, force=force))
    return Answer({"namespace": namespace, "keys": deleted}, f"{namespace}: {pluralize(deleted, 'key', 'keys')} deleted")


@with_target
def recount(*, dry_run: DryRun = False, target: Target) -> Answer:
    """Count the commands that wait or run, and the delayed ones of each entity, and set wrong counters right.

    Each shard is one step, so it is exact while commands come and go. Counters are wrong after keys were deleted by hand, say.

    \b
    Exit codes: 0 the counters are right (now), 1 there was too much to count, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: bus.entities.recount(correct=not dry_run))
    lines = [
        f"depth: {found.stored:,} stored, {found.counted:,} counted",
        f"delayed commands: the number of {found.delayed:,} entities was wrong",
    ]
    if not found.complete:
        lines.append(
            "not all was counted: a shard has more than 20,000 entities with work, or that many or large delayed commands"
        )
    return Answer(found, lines, found.complete)
