"""`command-bus dlq`: the dead letters. What changes something says first how many it concerns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_bus.cli.commands.dlq_listing import Listing, count_line, listed
from command_bus.cli.completion import command_names, entity_types, letter_ids
from command_bus.cli.connection import (
    Json,
    Place,
    Yes,
    confirm_or_exit,
    connected,
    execute,
    given_before,
    placed,
)
from command_bus.cli.json_output import plainly
from command_bus.cli.process.options import Outcome
from command_bus.cli.terminal import print_error, say, shown
from command_bus.cli.times import moment_of
from command_bus.cli.unknown_names import warn_of_unknown

if TYPE_CHECKING:
    from command_bus.admin.dead_letters import LetterFilters
    from command_bus.admin.info import DeadLetter
    from command_bus.bus import CommandBus

    OnOne = Callable[[CommandBus, str], Awaitable[None]]
    OnAll = Callable[[CommandBus], Awaitable[None]]

__all__ = ["Why", "dlq", "moment_of"]

dlq = typer.Typer(
    callback=given_before,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Dead letters: list, show, replay, discard, purge.",
)


class Why(StrEnum):
    """For what reason a command is given up."""

    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NO_HANDLER = "no_handler"
    INVALID = "invalid"
    UNDECODABLE = "undecodable"
    UNSUPPORTED_VERSION = "unsupported_version"
    BAD_SIGNATURE = "bad_signature"
    EXPIRED = "expired"


_NOT_STARTED = (Why.NO_HANDLER, Why.UNSUPPORTED_VERSION)


def _first(letter: DeadLetter) -> str:
    """Return what was first done with a command: one that no worker knows is offered to workers, not started."""
    return "first offered" if letter.reason in _NOT_STARTED else "first started"


Type = Annotated[
    str | None,
    typer.Option(
        "--type",
        show_default=False,
        autocompletion=entity_types,
        help="Of this entity type; TYPE:ID is one entity.",
    ),
]
Id = Annotated[str | None, typer.Option("--id", show_default=False, help="Of the entity with this id (with --type).")]
Command = Annotated[
    str | None,
    typer.Option(
        "--command",
        show_default=False,
        autocompletion=command_names,
        help="Of this command.",
    ),
]
Reason = Annotated[Why | None, typer.Option(metavar="REASON", show_default=False, help=f"Given up for this: {', '.join(Why)}.")]
Parked = Annotated[bool | None, typer.Option("--parked/--not-parked", show_default=False, help="That hold their entity, or not.")]
Since = Annotated[
    str | None, typer.Option(show_default=False, help="Given up since: 90s, 30m, 2h, 7d, or a time as 2026-11-21T10:00.")
]
Until = Annotated[str | None, typer.Option(show_default=False, help="Given up before; as --since.")]
Letters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LETTER",
        show_default=False,
        autocompletion=letter_ids,
        help="Ids, as `dlq list` shows them.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]


@dlq.command("list")
@placed
def list_letters(
    *,
    entity_type: Type = None,
    entity_id: Id = None,
    command: Command = None,
    reason: Reason = None,
    parked: Parked = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to show.")] = 50,
    count: Annotated[
        bool, typer.Option("--count", help="Count all that match, beyond the limit too: reads every letter.")
    ] = False,
    place: Place,
    as_json: Json = False,
) -> None:
    """The letters that match, oldest first, and how many there are, unless there are more than the limit.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301  # fmt: skip
    filters = _filters(entity_type, entity_id, command, reason, parked, since, until)

    async def work() -> Listing:
        async with connected(place) as bus:
            listing = await listed(bus, filters, limit, count=count)
            if not listing.letters:
                await warn_of_unknown(bus, entity_type=filters.get("entity_type"), command=command)
        return listing

    listing = execute(work)
    if as_json:
        say(plainly(listing.facts()))
        return
    from command_bus.cli.output import moment, table

    if listing.letters:
        rows = [
            (each.id, each.reason, each.name, each.entity, f"{each.error_type}: {each.error_message}" if each.error_type else "",
             each.attempts, moment(each.failed_ms), "parked" if each.parked else "")
            for each in listing.letters
        ]  # fmt: skip
        say(table(["letter", "reason", "command", "entity", "error", "attempts#", "given up", "entity is"], rows))
    if listing.counts is None:
        say(f"the first {len(listing.letters):,}; there are more: --count counts all that match")
    else:
        say(count_line(listing.counts))


@dlq.command()
@placed
def show(
    letter: Annotated[str, typer.Argument(metavar="LETTER", show_default=False, autocompletion=letter_ids)],
    *,
    place: Place,
    as_json: Json = False,
) -> None:
    """One letter with its payload, headers and traceback.

    \b
    Exit codes: 0 shown, 1 there is no such letter, 2 wrong usage, 4 no server.
    """  # noqa: D301  # fmt: skip

    async def work() -> DeadLetter:
        async with connected(place) as bus:
            return await bus.dead_letters.get(letter)

    found = execute(work)
    if as_json:
        say(plainly(found))
        return
    from command_bus.cli.output import fields, since

    held = " (parked: it waits for a decision about this letter)" if found.parked else ""
    lines: list[tuple[str, Any]] = [
        ("letter", found.id), ("reason", found.reason), ("command", f"{found.name} {found.command_id}"),
        ("entity", f"{found.entity}{held}" if found.entity else None), ("attempts", found.attempts),
        ("accepted", since(found.accepted_ms)), (_first(found), since(found.first_started_ms)),
        ("given up", f"{since(found.failed_ms)} by worker {found.worker}"),
        ("error", f"{found.error_type}: {found.error_message}" if found.error_type else found.error_message or None),
        ("headers", plainly(found.headers) if found.headers else None),
        ("payload", "cannot be read" if found.payload is None else plainly(found.payload)),
    ]  # fmt: skip
    say(fields(lines))
    if found.traceback:
        say(shown(found.traceback.rstrip()))


@dlq.command()
@placed
def replay(
    letters: Letters = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    entity_type: Type = None,
    entity_id: Id = None,
    command: Command = None,
    reason: Reason = None,
    parked: Parked = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    place: Place,
) -> None:
    """Run commands again under their old ids: these letters, or all that match, or --all.

    A parked command runs before its followers, any other at the end of its entity's line.

    \b
    Exit codes: 0 replayed, 1 no such letter, or not wanted, 2 wrong usage, or nobody to ask, 4 no server.
    """  # noqa: D301  # fmt: skip
    filters = _filters(entity_type, entity_id, command, reason, parked, since, until)

    async def one(bus: CommandBus, letter: str) -> None:
        say(f"{letter}: replayed {await bus.dead_letters.replay(letter)}")

    async def all_of_them(bus: CommandBus) -> None:
        say(f"{await bus.dead_letters.replay_all(**filters):,} replayed")

    choice = _Choice(letters or (), filters, everything, dry_run)
    _settle(place, choice, "Run them again?", one, all_of_them, yes=yes)


@dlq.command()
@placed
def discard(
    letters: Annotated[list[str], typer.Argument(metavar="LETTER", show_default=False, autocompletion=letter_ids)],
    *,
    yes: Yes = False,
    place: Place,
) -> None:
    """Delete letters. An entity that is parked by one goes on with its next command.

    \b
    Exit codes: 0 discarded, 1 no such letter, or not wanted, 2 wrong usage, or nobody to ask, 4 no server.
    """  # noqa: D301  # fmt: skip

    async def look() -> list[DeadLetter]:
        async with connected(place) as bus:
            return [await bus.dead_letters.get(letter) for letter in letters]

    for found in execute(look):
        say(f"{found.id}: {found.name} {found.command_id} of {found.entity or 'no entity'}, {found.reason}")
    confirm_or_exit("Discard them? It cannot be undone.", yes=yes)

    async def work() -> None:
        async with connected(place) as bus:
            for letter in letters:
                await bus.dead_letters.discard(letter)
                say(f"{letter}: discarded")

    execute(work)


@dlq.command()
@placed
def purge(
    *,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    entity_type: Type = None,
    entity_id: Id = None,
    command: Command = None,
    reason: Reason = None,
    parked: Parked = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    place: Place,
) -> None:
    """Delete all letters that match, or --all. Entities that are parked by them go on with their next command.

    \b
    Exit codes: 0 purged, 1 not wanted, 2 wrong usage, or nobody to ask, 4 no server.
    """  # noqa: D301  # fmt: skip
    filters = _filters(entity_type, entity_id, command, reason, parked, since, until)

    async def all_of_them(bus: CommandBus) -> None:
        say(f"{await bus.dead_letters.purge(**filters):,} deleted")

    choice = _Choice((), filters, everything, dry_run)
    _settle(place, choice, "Delete them? It cannot be undone.", None, all_of_them, yes=yes)


def _nothing() -> LetterFilters:
    return {}


@dataclass(frozen=True, slots=True)
class _Choice:
    """Letters by id, or all that match, or all."""

    letters: Sequence[str] = ()
    filters: LetterFilters = field(default_factory=_nothing)
    everything: bool = False
    dry_run: bool = False

    def check(self) -> None:
        """Exactly one of the three.

        Raises:
            typer.Exit: It is none or several.
        """
        narrowed = any(value is not None for value in self.filters.values())
        if sum((bool(self.letters), narrowed, self.everything)) != 1:
            print_error("name letters, or filters, or --all")
            raise typer.Exit(Outcome.USAGE)


def _settle(place: Place, choice: _Choice, question: str, one: OnOne | None, on_all: OnAll, *, yes: bool) -> None:
    """Count, ask, do."""
    choice.check()

    async def count() -> Counter[tuple[str, str]]:
        async with connected(place) as bus:
            found = await bus.dead_letters.count(**choice.filters)
            if not found:
                await warn_of_unknown(bus, entity_type=choice.filters.get("entity_type"), command=choice.filters.get("name"))
            return found

    async def each() -> None:
        async with connected(place) as bus:
            for letter in choice.letters:
                if choice.dry_run or one is None:
                    found = await bus.dead_letters.get(letter)
                    say(f"{letter}: {found.reason} {found.name} {found.entity or ''}")
                else:
                    await one(bus, letter)

    async def together() -> None:
        async with connected(place) as bus:
            await on_all(bus)

    if choice.letters:
        execute(each)
        return
    counts = execute(count)
    say(count_line(counts))
    if counts and not choice.dry_run:
        confirm_or_exit(question, yes=yes)
        execute(together)


def _filters(
    entity_type: str | None, entity_id: str | None, command: str | None, reason: Why | None, parked: bool | None,
    since: str | None, until: str | None,
) -> LetterFilters:  # fmt: skip
    if entity_type is not None and entity_id is None:
        entity_type, _, found = entity_type.partition(":")
        entity_id = found or None
    if entity_id is not None and entity_type is None:
        print_error("--id goes with --type: ids are unique within a type only")
        raise typer.Exit(Outcome.USAGE)
    return {
        "entity_type": entity_type,
        "entity_id": entity_id,
        "name": command,
        "reason": reason,
        "parked": parked,
        "since": moment_of(since),
        "until": moment_of(until),
    }
