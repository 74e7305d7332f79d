"""`command-bus entity`: show one entity, or act on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from command_bus.cli.commands.entity_view import print_details
from command_bus.cli.completion import entity_words
from command_bus.cli.connection import on_bus, open_bus, run_command
from command_bus.cli.options import Action, Json, PauseFor, PauseUntil, Target, Yes, with_target
from command_bus.cli.output import pluralize, to_json
from command_bus.cli.terminal import (
    ExitCode,
    confirm_or_exit,
    echo,
    failure,
    print_error,
    undo_hint,
    usage_error,
    warn_if_unknown,
)
from command_bus.cli.times import parse_end
from command_bus.spelling import did_you_mean

if TYPE_CHECKING:
    from datetime import datetime

    from command_bus.admin.entity import EntityScope
    from command_bus.admin.info import EntityDetails

_LEFT_RUNNING = "; the one that runs is left alone"


@with_target
def entity(
    words: Annotated[
        list[str],
        Argument(
            metavar="TYPE:ID",
            autocompletion=entity_words,
            help="The entity, also as TYPE ID; then an action [default: show].",
        ),
    ],
    *,
    reason: Annotated[str, Option("--reason", "-m", help="A note that `entity` and `stats` show.")] = "",
    waiting: Annotated[int, Option(min=0, max=1000, help="How many waiting commands to show.")] = 10,
    dry_run: Annotated[bool, Option("--dry-run", help="With purge: only count.")] = False,
    wait: Annotated[float, Option(min=0.1, help="With abort: seconds to wait for the end of the attempt.")] = 10.0,
    force: Annotated[
        bool,
        Option("--force", help="With abort: go on without a handler that cannot be ended; it may run beside its successor."),
    ] = False,
    key: Annotated[str, Option(help="With forget: the unique key.")] = "",
    until: PauseUntil = None,
    duration: PauseFor = None,
    yes: Yes = False,
    target: Target,
    as_json: Json = False,
) -> None:
    """Show one entity: its worker, the command at its head, what waits, and why it does not go on. Or act on it.

    \b
    Actions:
    show    all of that
    pause   start none of its commands until `resume` (or --until, --for); what runs is not touched
    drain   refuse new commands and finish those it has, until `resume`
    resume  undo `pause` or `drain` of this entity
    purge   remove its waiting commands; asks first
    abort   end the attempt that runs: it counts as interrupted, so another follows, or a dead letter; asks first
    forget  release the unique key --key: the next command that has it is accepted; what holds it stays in line
    keys    show the unique keys that are held, also by the window of a settled command
    \b
    Exit codes: 0 done, 1 there was nothing to resume, abort or forget, what runs cannot be ended, or not confirmed, 2 wrong usage, or no terminal
    to ask on, 3 no answer to abort in time, 4 no server.
    """  # noqa: D301
    entity_type, entity_id, action = parse_entity_words(words)
    _check_options(action, dry_run=dry_run, force=force, key=bool(key), ends=bool(until or duration))
    one = _OneEntity(target, entity_type, entity_id)
    match action:
        case Action.SHOW:
            print_details(one.read(waiting), target, as_json=as_json)
        case Action.ABORT:
            from command_bus.cli.commands.abort import abort

            abort(target, entity_type, entity_id, reason=reason, wait=wait, force=force, yes=yes, as_json=as_json)
        case Action.PURGE:
            one.purge(dry_run=dry_run, yes=yes)
        case Action.RESUME:
            one.resume()
        case Action.FORGET:
            one.forget(key, as_json=as_json)
        case Action.KEYS:
            one.keys(as_json=as_json)
        case _:
            one.hold(action, reason, parse_end(until, duration))


def parse_entity_words(words: list[str]) -> tuple[str, str, Action]:
    """Parse `TYPE:ID [ACTION]` or `TYPE ID [ACTION]` into type, id and action; a type has no colon.

    Raises:
        typer.Exit: The words have neither form.
    """
    entity_type, colon, entity_id = words[0].partition(":")
    rest = words[1:]
    if not colon and rest:
        entity_id, *rest = rest
    if not entity_id or len(rest) > 1:
        raise usage_error(
            "name one entity as TYPE:ID or TYPE ID, then an action or none, as in: command-bus entity account:a-17 pause"
        )
    action = rest[0] if rest else Action.SHOW
    if action not in {*Action}:
        raise usage_error(f"{action!r} is no action: {', '.join(Action)}{did_you_mean(action, [each.value for each in Action])}")
    return entity_type, entity_id, Action(action)


def _check_options(action: Action, *, dry_run: bool, force: bool, key: bool, ends: bool) -> None:
    if action is Action.FORGET and not key:
        raise usage_error("name the unique key: --key, what Unique(key) said, else the wire name of the command")
    for given, option, fits in (
        (dry_run, "--dry-run", Action.PURGE),
        (force, "--force", Action.ABORT),
        (key, "--key", Action.FORGET),
        (ends, "--until or --for", Action.PAUSE),
    ):
        if given and action is not fits:
            raise usage_error(f"{option} goes with {fits}")


class _OneEntity:
    """Actions on one entity: each method opens a bus, acts, and prints the result."""

    def __init__(self, target: Target, entity_type: str, entity_id: str) -> None:
        self._target = target
        self._type, self._id = entity_type, entity_id
        self._name = f"{entity_type}:{entity_id}"

    def read(self, waiting: int = 0) -> EntityDetails:
        """Read the entity, and warn if it has no commands and its type is unknown."""

        async def read() -> EntityDetails:
            async with open_bus(self._target) as bus:
                found = await bus.entity(self._type, self._id).show(waiting=waiting)
                if not found.entity.depth:
                    await warn_if_unknown(bus, entity_type=self._type)
                return found

        return run_command(read)

    def hold(self, action: Action, reason: str, until: datetime | float | None) -> None:
        """Pause or drain the entity."""

        async def act() -> str:
            async with open_bus(self._target) as bus:
                result = await _hold(bus.entity(self._type, self._id), action, reason, until)
                state = "paused" if action is Action.PAUSE else "drained"
                done = undo_hint(state, self._target.command("entity", self._name, "resume"))
                await warn_if_unknown(bus, entity_type=self._type, done=done)
                return result

        echo(f"{self._name}: {run_command(act)}")

    def resume(self) -> None:
        """Undo pause or drain.

        Raises:
            typer.Exit: The entity itself was neither paused nor drained.
        """
        if not on_bus(self._target, lambda bus: bus.entity(self._type, self._id).resume()):
            raise failure(f"{self._name} was neither paused nor drained itself{_other_obstacle(self.read())}")
        echo(f"{self._name}: resumed")

    def forget(self, key: str, *, as_json: bool) -> None:
        """Release a unique key.

        Raises:
            typer.Exit: No command held it.
        """
        released = on_bus(self._target, lambda bus: bus.entity(self._type, self._id).forget(key))
        if as_json:
            echo(to_json({"entity": self._name, "key": key, "released": released}))
        elif released:
            echo(f"{self._name}: the key {key!r} is free; what held it stays in line")
        if not released:
            if not as_json:
                print_error(f"{self._name}: no command holds the key {key!r}")
            raise Exit(ExitCode.FAILED)

    def keys(self, *, as_json: bool) -> None:
        """Show the unique keys that are held."""
        from command_bus.cli.commands.entity_view import key_table

        found = on_bus(self._target, lambda bus: bus.entity(self._type, self._id).unique_keys())
        if as_json:
            echo(to_json(found))
            return
        echo(key_table(found.keys, entities=False))
        if not found.complete:
            echo("there may be more: not all keys were looked at")

    def purge(self, *, dry_run: bool, yes: bool) -> None:
        """Count the waiting commands, ask, and remove them."""
        found = self.read()
        count = found.entity.depth - (found.entity.state == "running")
        echo(f"{self._name}: {pluralize(count, 'waiting command', 'waiting commands')}")
        if dry_run or not count:
            return
        confirm_or_exit("Remove them? It cannot be undone.", yes=yes)

        async def act() -> tuple[int, bool]:
            async with open_bus(self._target) as bus:
                scope = bus.entity(self._type, self._id)
                return await scope.purge(), (await scope.show(waiting=0)).entity.state == "running"

        removed, runs = run_command(act)
        echo(f"{self._name}: {pluralize(removed, 'command', 'commands')} removed{_LEFT_RUNNING if runs else ''}")


async def _hold(scope: EntityScope, action: Action, reason: str, until: datetime | float | None) -> str:
    if action is Action.PAUSE:
        return "paused" if await scope.pause(reason, until=until) else "was paused already"
    return "draining" if await scope.drain(reason) else "was draining already"


def _other_obstacle(found: EntityDetails) -> str:
    """Return what else keeps the entity from going on, as the end of a sentence; empty if nothing does."""
    if found.letter is not None:
        return f": it is parked by dead letter {found.letter.id}, `command-bus dlq replay` or `dlq discard` that"
    hold = found.entity.hold
    return f": {hold.what} is {hold.mode}" if hold is not None else ""
