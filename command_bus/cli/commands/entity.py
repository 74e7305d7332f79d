"""`command-bus entity`: show one entity, or act on it.

`entity TYPE:ID abort`: ask, end the attempt that runs, and report the result in a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from typer import Argument, Exit, Option

from command_bus.cli import PROGRAM
from command_bus.cli.commands.entity_view import details, key_table
from command_bus.cli.completion import entity_words
from command_bus.cli.connection import act_on_bus, on_bus, operator_name
from command_bus.cli.options import Action, Answer, Json, PauseFor, PauseUntil, PriorityName, Reason, Target, Yes, with_target
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
from command_bus.clock import format_duration
from command_bus.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from command_bus.admin.entity import EntityScope
    from command_bus.admin.info import AbortReport, EntityDetails
    from command_bus.bus import CommandBus


T = TypeVar("T")
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
    reason: Reason = "",
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
    prioritize high, normal or low: give all that waits in its line now this priority
    purge   remove its waiting commands; asks first
    abort   end the attempt that runs: it counts as interrupted, so another follows, or a dead letter; asks first
    forget  release the unique key --key: the next command that has it is accepted; what holds it stays in line
    keys    show the unique keys that are held, also by the window of a settled command
    \b
    Exit codes: 0 done, 1 there was nothing to resume, prioritize, abort or forget, what runs cannot be ended, or not confirmed, 2 wrong usage, or no
    terminal to ask on, 3 no answer to abort in time, 4 no server.
    """  # noqa: D301
    entity_type, entity_id, action = parse_entity_words(words)
    _check_options(action, dry_run=dry_run, force=force, key=bool(key), ends=bool(until or duration))
    one = _OneEntity(target, entity_type, entity_id)
    match action:
        case Action.SHOW:
            details(one.read(waiting), target).show(as_json=as_json)
        case Action.ABORT:
            abort(target, entity_type, entity_id, reason=reason, wait=wait, force=force, yes=yes, as_json=as_json)
        case Action.PURGE:
            one.purge(dry_run=dry_run, yes=yes)
        case Action.RESUME:
            one.resume()
        case Action.PRIORITIZE:
            one.prioritize(words[-1], as_json=as_json)
        case Action.FORGET:
            one.forget(key, as_json=as_json)
        case Action.KEYS:
            one.keys(as_json=as_json)
        case _:
            one.hold(action, reason, parse_end(until, duration))


def parse_entity_words(words: list[str]) -> tuple[str, str, Action]:
    """Parse `TYPE:ID [ACTION]` or `TYPE ID [ACTION]` into type, id and action; a type has no colon. A priority may follow `prioritize`.

    Raises:
        typer.Exit: The words have neither form.
    """
    entity_type, colon, entity_id = words[0].partition(":")
    rest = words[1:]
    if not colon and rest:
        entity_id, *rest = rest
    if not entity_id or len(rest) > 1 + (rest[:1] == [Action.PRIORITIZE]):
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

        async def read(bus: CommandBus) -> EntityDetails:
            found = await bus.entity(self._type, self._id).show(waiting=waiting)
            if not found.entity.depth:
                await warn_if_unknown(bus, entity_type=self._type)
            return found

        return on_bus(self._target, read)

    def _ask(self, act: Callable[[EntityScope], Awaitable[T]]) -> T:
        return on_bus(self._target, lambda bus: act(bus.entity(self._type, self._id)))

    def _act(self, title: str, act: Callable[[EntityScope], Awaitable[T]]) -> T:
        return act_on_bus(self._target, title, self._name, lambda bus: act(bus.entity(self._type, self._id)))

    def hold(self, action: Action, reason: str, until: datetime | float | None) -> None:
        """Pause or drain the entity."""

        async def act(bus: CommandBus) -> str:
            result = await _hold(bus.entity(self._type, self._id), action, reason, until)
            state = "paused" if action is Action.PAUSE else "drained"
            done = undo_hint(state, self._target.command("entity", self._name, "resume"))
            await warn_if_unknown(bus, entity_type=self._type, done=done)
            return result

        title = "Pause entity" if action is Action.PAUSE else "Drain entity"
        echo(f"{self._name}: {act_on_bus(self._target, title, self._name, act, why=reason)}")

    def resume(self) -> None:
        """Undo pause or drain.

        Raises:
            typer.Exit: The entity itself was neither paused nor drained.
        """
        if not self._act("Resume entity", lambda scope: scope.resume()):
            raise failure(f"{self._name} was neither paused nor drained itself{_other_obstacle(self.read())}")
        echo(f"{self._name}: resumed")

    def prioritize(self, word: str, *, as_json: bool) -> None:
        """Give all that waits in its line now another priority.

        Raises:
            typer.Exit: The word is no priority, or nothing is in the line.
        """
        if word not in {*PriorityName}:
            raise usage_error(f"name the priority: command-bus entity {self._name} prioritize {'|'.join(PriorityName)}")
        priority = PriorityName(word)
        done = self._act("Prioritize entity", lambda scope: scope.prioritize(priority.value))
        if not (done or as_json):
            raise failure(f"{self._name}: nothing waits or runs")
        Answer({"entity": self._name, "priority": word, "prioritized": done}, f"{self._name}: {word}", done).show(as_json=as_json)

    def forget(self, key: str, *, as_json: bool) -> None:
        """Release a unique key.

        Raises:
            typer.Exit: No command held it.
        """
        released = self._act("Release unique key", lambda scope: scope.forget(key))
        if not (released or as_json):
            raise failure(f"{self._name}: no command holds the key {key!r}")
        freed = f"{self._name}: the key {key!r} is free; what held it stays in line"
        Answer({"entity": self._name, "key": key, "released": released}, freed, released).show(as_json=as_json)

    def keys(self, *, as_json: bool) -> None:
        """Show the unique keys that are held."""
        found = self._ask(lambda scope: scope.unique_keys())
        more = [] if found.complete else ["there may be more: not all keys were looked at"]
        Answer(found, [key_table(found.keys, entities=False), *more]).show(as_json=as_json)

    def purge(self, *, dry_run: bool, yes: bool) -> None:
        """Count the waiting commands, ask, and remove them."""
        found = self.read()
        count = found.entity.depth - (found.entity.state == "running")
        echo(f"{self._name}: {pluralize(count, 'waiting command', 'waiting commands')}")
        if dry_run or not count:
            return
        confirm_or_exit("Remove them? It cannot be undone.", yes=yes)

        async def act(scope: EntityScope) -> tuple[int, bool]:
            return await scope.purge(), (await scope.show(waiting=0)).entity.state == "running"

        removed, runs = self._act("Purge entity", act)
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


_RISK = " If its handler cannot be ended, it goes on beside its successor."


def abort(
    target: Target, entity_type: str, entity_id: str, *, reason: str, wait: float, force: bool, yes: bool, as_json: bool
) -> None:
    """Run `command-bus entity TYPE:ID abort`.

    Raises:
        typer.Exit: Nothing was ended; the exit code says why.
    """
    name = f"{entity_type}:{entity_id}"

    if not yes:
        question = _question(on_bus(target, lambda bus: bus.entity(entity_type, entity_id).show(waiting=0)))
        if question is None:
            raise failure(f"{name}: nothing runs, so nothing was ended")
        confirm_or_exit(question + (_RISK if force else ""), yes=yes)
    name = f"{entity_type}:{entity_id}"
    by = operator_name()
    report = act_on_bus(
        target,
        "Abort attempt",
        name,
        lambda bus: bus.entity(entity_type, entity_id).abort(reason, by=by, wait=wait, force=force),
        why=reason,
    )
    if as_json:
        echo(to_json(report))
    elif report.result == "ended":
        echo(f"{report.entity}: {_result_sentence(report)}")
    else:
        print_error(f"{report.entity}: {_result_sentence(report)}")
    if report.result != "ended":
        raise Exit(ExitCode.UNKNOWN if report.result == "unanswered" else ExitCode.FAILED)


def _question(found: EntityDetails) -> str | None:
    """Return the question to ask first; None if nothing runs."""
    entity, head = found.entity, found.head
    if entity.state != "running" or head is None:
        return None
    attempt = f"attempt {entity.attempt} of {head.name} {head.command_id}"
    return (
        f"End {attempt}, which has run for {format_duration(entity.running_for)} on worker {entity.worker}?"
        " It counts as interrupted: another attempt follows, or a dead letter if this was its last."
    )


def _result_sentence(report: AbortReport) -> str:
    where = f"{report.host}, process {report.pid}" if report.pid is not None else "unknown host"
    attempt = f"attempt {report.attempt} of {report.name} {report.command_id}"
    what = f"{attempt}, which had run for {format_duration(report.running_for)} on worker {report.worker} ({where})"
    match report.result:
        case "ended":
            return f"ended {what}. {_FOLLOWS[report.again]}"
        case "finished":
            return f"{what}, ended by itself, or its worker was lost: nothing was aborted"
        case "nothing":
            return "nothing runs, so nothing was ended"
        case "runs_on" if report.in_thread:
            return (
                f"{attempt} still runs: its handler is in a thread, which nothing can stop. context.cancelled is set, and its entity waits "
                f"for its end. --force gives the entity up beside it, restarting worker {report.worker} ({where}) ends it"
            )
        case "runs_on":
            return (
                f"{attempt} still runs: its handler has been cancelled and goes on. --force gives the entity up beside it, restarting worker "
                f"{report.worker} ({where}) ends it"
            )
        case "blocked":
            return (
                f"{attempt} cannot be ended: the event loop of its worker is blocked at {report.where}. It is cancelled when the loop goes on; "
                f"else restart worker {report.worker} ({where})"
            )
        case _:
            return (
                f"no answer in time from worker {report.worker} ({where}): {attempt} may still be ended. The worker is of an earlier release, "
                f"stopped or cut off; look again with `{PROGRAM} entity`, or restart it"
            )


_FOLLOWS = {
    True: "It is started again, as its next attempt",
    False: "It is a dead letter now (interrupted): see `command-bus dlq list --reason interrupted`",
    None: "It is started again if it has attempts left, else it is a dead letter (interrupted)",
}
