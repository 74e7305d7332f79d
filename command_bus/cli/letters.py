"""`command-bus dlq`: the dead letters. What changes something says first how many it concerns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_bus.cli.names import warn_of_unknown
from command_bus.cli.options import Outcome
from command_bus.cli.places import (
    App,
    Json,
    Namespace,
    Place,
    Url,
    Yes,
    complain,
    connected,
    execute,
    plainly,
    refuse_unless_sure,
)

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.dead_letters import LetterFilters
    from command_bus.receipts import DeadLetter

    OnOne = Callable[[CommandBus, str], Awaitable[None]]
    OnAll = Callable[[CommandBus], Awaitable[None]]

__all__ = ["Why", "dlq", "moment_of"]

dlq = typer.Typer(
    name="dlq", rich_markup_mode=None, no_args_is_help=True, help="Dead letters: list, show, replay, discard, purge."
)

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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


Type = Annotated[str | None, typer.Option("--type", show_default=False, help="Of this entity type.")]
Id = Annotated[str | None, typer.Option("--id", show_default=False, help="Of the entity with this id (with --type).")]
Command = Annotated[str | None, typer.Option("--command", show_default=False, help="Of this command.")]
Reason = Annotated[Why | None, typer.Option(metavar="REASON", show_default=False, help=f"Given up for this: {', '.join(Why)}.")]
Parked = Annotated[bool | None, typer.Option("--parked/--not-parked", show_default=False, help="That hold their entity, or not.")]
Since = Annotated[
    str | None, typer.Option(show_default=False, help="Given up since: 90s, 30m, 2h, 7d, or a time as 2026-11-21T10:00.")
]
Until = Annotated[str | None, typer.Option(show_default=False, help="Given up before; as --since.")]
Letters = Annotated[list[str] | None, typer.Argument(metavar="LETTER", show_default=False, help="Ids, as `dlq list` shows them.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]


def moment_of(text: str | None) -> datetime | None:
    """The moment that an option names: an age (`2h`), or a time in ISO form, local without a zone.

    Raises:
        typer.Exit: It is neither.
    """
    if text is None:
        return None
    if age := _AGE.fullmatch(text.strip()):
        return datetime.now(UTC) - timedelta(seconds=float(age[1]) * _UNITS[age[2]])
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        complain(f"{text!r} is no age such as 30m, 2h or 7d, and no time such as 2026-11-21T10:00")
        raise typer.Exit(Outcome.USAGE) from None


@dlq.command("list")
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
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """The letters that match, oldest first, and how many there are.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301  # fmt: skip
    filters = _filters(entity_type, entity_id, command, reason, parked, since, until)

    async def work() -> tuple[list[DeadLetter], Counter[tuple[str, str]]]:
        found: list[DeadLetter] = []
        counts: Counter[tuple[str, str]] = Counter()
        async with connected(Place(url, namespace, app)) as bus:
            async for letter in bus.dead_letters.list(**filters):
                counts[letter.reason, letter.name] += 1
                if len(found) < limit:
                    found.append(letter)
            if not counts:
                await warn_of_unknown(bus, entity_type=entity_type, command=command)
        return found, counts

    found, counts = execute(work)
    if as_json:
        summary = [{"reason": reason, "command": name, "count": count} for (reason, name), count in counts.most_common()]
        typer.echo(plainly({"letters": found, "matching": counts.total(), "counts": summary}))
        return
    from command_bus.cli.tables import console, moment, table

    if found:
        rows = [
            (each.id, each.reason, each.name, each.entity, f"{each.error_type}: {each.error_message}" if each.error_type else "",
             each.attempts, moment(each.failed_ms), "parked" if each.parked else "")
            for each in found
        ]  # fmt: skip
        console().print(table(["letter", "reason", "command", "entity", "error", "attempts#", "given up", "entity is"], rows))
    typer.echo(_counted(counts))


@dlq.command()
def show(
    letter: Annotated[str, typer.Argument(metavar="LETTER", show_default=False)],
    *,
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """One letter with its payload, headers and traceback.

    \b
    Exit codes: 0 shown, 1 there is no such letter, 2 wrong usage, 4 no server.
    """  # noqa: D301  # fmt: skip

    async def work() -> DeadLetter:
        async with connected(Place(url, namespace, app)) as bus:
            return await bus.dead_letters.get(letter)

    found = execute(work)
    if as_json:
        typer.echo(plainly(found))
        return
    from command_bus.cli.tables import console, fields, shown, since

    out = console()
    held = " (parked: it waits for a decision about this letter)" if found.parked else ""
    lines: list[tuple[str, Any]] = [
        ("letter", found.id), ("reason", found.reason), ("command", f"{found.name} {found.command_id}"),
        ("entity", f"{found.entity}{held}" if found.entity else None), ("attempts", found.attempts),
        ("accepted", since(found.accepted_ms)), ("first started", since(found.first_started_ms)),
        ("given up", f"{since(found.failed_ms)} by worker {found.worker}"),
        ("error", f"{found.error_type}: {found.error_message}" if found.error_type else found.error_message or None),
        ("headers", plainly(found.headers) if found.headers else None),
        ("payload", "cannot be read" if found.payload is None else plainly(found.payload)),
    ]  # fmt: skip
    out.print(fields(lines))
    if found.traceback:
        typer.echo(shown(found.traceback.rstrip()))


@dlq.command()
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
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
) -> None:
    """Run commands again under their old ids: these letters, or all that match, or --all.

    A parked command runs before its followers, any other at the end of its entity's line.

    \b
    Exit codes: 0 replayed, 1 no such letter, or not wanted, 2 wrong usage, or nobody to ask, 4 no server.
    """  # noqa: D301  # fmt: skip
    filters = _filters(entity_type, entity_id, command, reason, parked, since, until)

    async def one(bus: CommandBus, letter: str) -> None:
        typer.echo(f"{letter}: replayed {await bus.dead_letters.replay(letter)}")

    async def all_of_them(bus: CommandBus) -> None:
        typer.echo(f"{await bus.dead_letters.replay_all(**filters):,} replayed")

    choice = _Choice(letters or (), filters, everything, dry_run)
    _settle(Place(url, namespace, app), choice, "Run them again?", one, all_of_them, yes=yes)


@dlq.command()
def discard(
    letters: Annotated[list[str], typer.Argument(metavar="LETTER", show_default=False)],
    *,
    yes: Yes = False,
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
) -> None:
    """Delete letters. An entity that is parked by one goes on with its next command.

    \b
    Exit codes: 0 discarded, 1 no such letter, or not wanted, 2 wrong usage, or nobody to ask, 4 no server.
    """  # noqa: D301  # fmt: skip

    async def look() -> list[DeadLetter]:
        async with connected(Place(url, namespace, app)) as bus:
            return [await bus.dead_letters.get(letter) for letter in letters]

    for found in execute(look):
        typer.echo(f"{found.id}: {found.name} {found.command_id} of {found.entity or 'no entity'}, {found.reason}")
    refuse_unless_sure("Discard them? It cannot be undone.", yes=yes)

    async def work() -> None:
        async with connected(Place(url, namespace, app)) as bus:
            for letter in letters:
                await bus.dead_letters.discard(letter)
                typer.echo(f"{letter}: discarded")

    execute(work)


@dlq.command()
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
    url: Url = None,
    namespace: Namespace = None,
    app: App = None,
) -> None:
    """Delete all letters that match, or --all. Entities that are parked by them go on with their next command.

    \b
    Exit codes: 0 purged, 1 not wanted, 2 wrong usage, or nobody to ask, 4 no server.
    """  # noqa: D301  # fmt: skip
    filters = _filters(entity_type, entity_id, command, reason, parked, since, until)

    async def all_of_them(bus: CommandBus) -> None:
        typer.echo(f"{await bus.dead_letters.purge(**filters):,} deleted")

    choice = _Choice((), filters, everything, dry_run)
    _settle(Place(url, namespace, app), choice, "Delete them? It cannot be undone.", None, all_of_them, yes=yes)


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
            complain("name letters, or filters, or --all")
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
                    typer.echo(f"{letter}: {found.reason} {found.name} {found.entity or ''}")
                else:
                    await one(bus, letter)

    async def together() -> None:
        async with connected(place) as bus:
            await on_all(bus)

    if choice.letters:
        execute(each)
        return
    counts = execute(count)
    typer.echo(_counted(counts))
    if counts and not choice.dry_run:
        refuse_unless_sure(question, yes=yes)
        execute(together)


def _filters(
    entity_type: str | None, entity_id: str | None, command: str | None, reason: Why | None, parked: bool | None,
    since: str | None, until: str | None,
) -> LetterFilters:  # fmt: skip
    if entity_id is not None and entity_type is None:
        complain("--id goes with --type: ids are unique within a type only")
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


def _counted(counts: Counter[tuple[str, str]]) -> str:
    if not counts:
        return "no letter matches"
    from command_bus.cli.tables import counted

    parts = ", ".join(f"{count:,} {name or '(unreadable)'} {reason}" for (reason, name), count in counts.most_common())
    return f"{counted(counts.total(), 'letter', 'letters')}: {parts}"
