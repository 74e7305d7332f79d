"""`command-bus dlq`: the dead letters. A command that changes several letters counts them first, then asks.

Dead letters that a command of `dlq` changes: named ones, all that match, or all. They are counted first, then it asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from command_bus.cli.completion import command_names, entity_types, letter_ids
from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import Answer, DryRun, Limit, Target, Yes, command_group, with_options, with_target
from command_bus.cli.output import format_fields, format_table, format_time, format_time_and_age, pluralize, to_json
from command_bus.cli.terminal import confirm_or_exit, counting, echo, format_value, usage_error, warn_if_unknown
from command_bus.cli.times import parse_time

if TYPE_CHECKING:
    from command_bus.admin.dead_letters import LetterFilters
    from command_bus.bus import CommandBus

    OnOne = Callable[[CommandBus, str], Awaitable[None]]
    OnAll = Callable[[CommandBus, int], Awaitable[None]]


if TYPE_CHECKING:
    from command_bus.admin.dead_letters import LetterFilters
    from command_bus.admin.info import DeadLetter
    from command_bus.bus import CommandBus
else:
    LetterFilters = dict[str, Any]  # annotations of commands are evaluated, and `--help` must not import the bus

dlq = command_group("Dead letters: list, show, replay, discard, purge.")


class DeadLetterReason(StrEnum):
    """Reasons for which a command becomes a dead letter."""

    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NO_HANDLER = "no_handler"
    INVALID = "invalid"
    UNDECODABLE = "undecodable"
    UNSUPPORTED_VERSION = "unsupported_version"
    BAD_SIGNATURE = "bad_signature"
    EXPIRED = "expired"
    COMPENSATION_FAILED = "compensation_failed"


_NEVER_STARTED = (DeadLetterReason.NO_HANDLER, DeadLetterReason.UNSUPPORTED_VERSION)

_ONE_LETTER = Argument(metavar="LETTER", autocompletion=letter_ids, help="Id of a letter, as in `dlq list`.")
LetterIds = Annotated[
    list[str] | None,
    Argument(metavar="LETTER", autocompletion=letter_ids, help="Ids of letters, as in `dlq list`."),
]
Everything = Annotated[bool, Option("--all", help="All dead letters.")]


def _filters(
    *,
    entity_type: Annotated[
        str | None,
        Option("--type", autocompletion=entity_types, help="Only letters of this entity type; TYPE:ID is one entity."),
    ] = None,
    entity_id: Annotated[str | None, Option("--id", help="Only letters of the entity with this id (with --type).")] = None,
    command: Annotated[
        str | None,
        Option("--command", autocompletion=command_names, help="Only letters of commands with this name."),
    ] = None,
    reason: Annotated[
        DeadLetterReason | None,
        Option(metavar="REASON", help=f"Only letters with this reason: {', '.join(DeadLetterReason)}."),
    ] = None,
    parked: Annotated[
        bool | None,
        Option("--parked/--not-parked", help="Only letters that park their entity, or that do not."),
    ] = None,
    since: Annotated[
        str | None,
        Option(help="Only letters written since: 90s, 30m, 2h, 7d ago, or a time such as 2026-11-21T10:00."),
    ] = None,
    until: Annotated[str | None, Option(help="Only letters written before; a time as for --since.")] = None,
) -> LetterFilters:
    """Read the options that select letters."""
    if entity_type is not None and entity_id is None:
        entity_type, _, found = entity_type.partition(":")
        entity_id = found or None
    if entity_id is not None and entity_type is None:
        raise usage_error("--id goes with --type: ids are unique within a type only")
    return {
        "entity_type": entity_type,
        "entity_id": entity_id,
        "name": command,
        "reason": reason,
        "parked": parked,
        "since": parse_time(since),
        "until": parse_time(until),
    }


@dlq.command("list")
@with_target
@with_options("filters", _filters)
def list_letters(
    *,
    filters: LetterFilters,
    limit: Limit = 50,
    count: Annotated[
        bool, Option("--count", help="Count all letters that match, also beyond the limit: reads each letter.")
    ] = False,
    target: Target,
) -> Answer:
    """List the letters that match, oldest first, and count them unless there are more than the limit.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301  # fmt: skip

    async def read(bus: CommandBus) -> _Listing:
        listing = await _read_letters(bus, filters, limit, count=count)
        if not listing.letters:
            await warn_if_names_unknown(bus, filters)
        return listing

    listing = on_bus(target, read)
    return Answer(listing.json_data(), listing.lines())


@dlq.command()
@with_target
def show(
    letter: Annotated[str, _ONE_LETTER],
    *,
    target: Target,
) -> Answer:
    """Show one letter with its payload, headers and traceback.

    \b
    Exit codes: 0 shown, 1 there is no such letter, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = on_bus(target, lambda bus: bus.dead_letters.get(letter))
    traceback = [format_value(found.traceback.rstrip())] if found.traceback else []
    return Answer(found, [format_fields(_letter_fields(found)), *traceback])


@dlq.command()
@with_target
@with_options("filters", _filters)
def replay(
    letters: LetterIds = None,
    *,
    everything: Everything = False,
    filters: LetterFilters,
    payload: Annotated[
        str | None,
        Option(help="Run one letter with these fields instead of its own: a JSON object, or - to read it."),
    ] = None,
    limit: Annotated[int | None, Option(min=1, help="Of those that match the oldest, at most so many.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target,
) -> None:
    """Run commands again under their old ids: these letters, all that match, or --all.

    A parked command runs before the commands that wait behind it, any other at the end of its entity's mailbox.

    \b
    Exit codes: 0 replayed, 1 no such letter, or not confirmed, 2 wrong usage, or no terminal to ask on, 4 no server.
    """  # noqa: D301
    fields = _payload(payload, letters)

    async def replay_one(bus: CommandBus, letter: str) -> None:
        edited = ", edited" if fields is not None else ""
        echo(f"{letter}: replayed {await bus.dead_letters.replay(letter, payload=fields)}{edited}")

    async def replay_all(bus: CommandBus, matching: int) -> None:
        with counting(min(matching, limit or matching), "replayed") as tell:
            replayed = await bus.dead_letters.replay_all(limit=limit, on_done=tell, **filters)
        echo(f"{replayed:,} replayed")

    selection = LetterSelection(letters or (), filters, everything, dry_run, limit)
    which = "them" if limit is None else f"the oldest {limit:,} of them"
    apply_to_letters(target, selection, f"Run {which} again?", replay_one, replay_all, yes=yes)


def _payload(text: str | None, letters: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the fields of --payload; None if it was not given."""
    if text is None:
        return None
    if len(letters or ()) != 1:
        raise usage_error("--payload goes with one letter")
    from command_bus.cli.commands.send import fields_from

    return fields_from(text)


@dlq.command()
@with_target
def discard(
    letters: Annotated[list[str], _ONE_LETTER],
    *,
    yes: Yes = False,
    target: Target,
) -> None:
    """Delete letters. An entity that is parked by one goes on with its next command.

    \b
    Exit codes: 0 discarded, 1 no such letter, or not confirmed, 2 wrong usage, or no terminal to ask on, 4 no server.
    """  # noqa: D301

    async def read(bus: CommandBus) -> list[DeadLetter]:
        return [await bus.dead_letters.get(letter) for letter in letters]

    for found in on_bus(target, read):
        echo(f"{found.id}: {found.name} {found.command_id} of {found.entity or 'no entity'}, {found.reason}")
    confirm_or_exit("Discard them? It cannot be undone.", yes=yes)

    async def delete(bus: CommandBus) -> None:
        for letter in letters:
            await bus.dead_letters.discard(letter)
            echo(f"{letter}: discarded")

    act_on_bus(target, "Discard dead letter", ", ".join(letters), delete)


@dlq.command()
@with_target
@with_options("filters", _filters)
def purge(
    *,
    everything: Everything = False,
    filters: LetterFilters,
    dry_run: DryRun = False,
    yes: Yes = False,
    target: Target,
) -> None:
    """Delete all letters that match, or --all. Entities that are parked by them go on with their next command.

    \b
    Exit codes: 0 purged, 1 not confirmed, 2 wrong usage, or no terminal to ask on, 4 no server.
    """  # noqa: D301

    async def purge_all(bus: CommandBus, matching: int) -> None:
        with counting(matching, "deleted") as tell:
            deleted = await bus.dead_letters.purge(on_done=tell, **filters)
        echo(f"{deleted:,} deleted")

    selection = LetterSelection((), filters, everything, dry_run)
    apply_to_letters(target, selection, "Delete them? It cannot be undone.", None, purge_all, yes=yes)


class _Listing(NamedTuple):
    """The first letters that match.

    Attributes:
        letters: As many as were asked for.
        counts: How many match, by reason and command; None if they were not counted.
    """

    letters: list[DeadLetter]
    counts: Counter[tuple[str, str]] | None

    def json_data(self) -> dict[str, Any]:
        """Return the listing as data for JSON."""
        if self.counts is None:
            return {"letters": self.letters, "matching": None, "counts": None}
        counts = [{"reason": reason, "command": name, "count": count} for (reason, name), count in self.counts.most_common()]
        return {"letters": self.letters, "matching": self.counts.total(), "counts": counts}

    def lines(self) -> Iterator[str]:
        """Yield the listing for people."""
        if self.letters:
            rows = [
                (each.id, each.reason, each.name, each.entity, f"{each.error_type}: {each.error_message}" if each.error_type else "",
                 each.attempts, format_time(each.failed_ms), "parked" if each.parked else "")
                for each in self.letters
            ]  # fmt: skip
            yield format_table(["letter", "reason", "command", "entity", "error", "attempts#", "given up", "entity is"], rows)
        if self.counts is None:
            yield f"the first {len(self.letters):,}; there are more: --count counts all that match"
        else:
            yield format_counts(self.counts)


async def _read_letters(bus: CommandBus, filters: LetterFilters, limit: int, *, count: bool) -> _Listing:
    """Read letters up to the limit, and one more to see whether there are more; all of them only to count."""
    letters: list[DeadLetter] = []
    counts: Counter[tuple[str, str]] = Counter()
    async for letter in bus.dead_letters.list(limit=None if count else limit + 1, **filters):
        counts[letter.reason, letter.name] += 1
        if len(letters) < limit:
            letters.append(letter)
    return _Listing(letters, counts if count or counts.total() <= limit else None)


def _letter_fields(found: DeadLetter) -> list[tuple[str, Any]]:
    parked = " (parked: it waits for a decision about this letter)" if found.parked else ""
    # A command that no worker knows is offered to workers, and not started.
    first = "first offered" if found.reason in _NEVER_STARTED else "first started"
    return [
        ("letter", found.id),
        ("reason", found.reason),
        ("command", f"{found.name} {found.command_id}"),
        ("entity", f"{found.entity}{parked}" if found.entity else None),
        ("attempts", found.attempts),
        ("accepted", format_time_and_age(found.accepted_ms)),
        (first, format_time_and_age(found.first_started_ms)),
        ("given up", f"{format_time_and_age(found.failed_ms)} by worker {found.worker}"),
        ("error", f"{found.error_type}: {found.error_message}" if found.error_type else found.error_message or None),
        ("headers", to_json(found.headers) if found.headers else None),
        ("payload", "cannot be read" if found.payload is None else to_json(found.payload)),
    ]


def format_counts(counts: Counter[tuple[str, str]]) -> str:
    """Return in one line how many letters match."""
    if not counts:
        return "no letter matches"
    parts = ", ".join(f"{count:,} {name or '(unreadable)'} {reason}" for (reason, name), count in counts.most_common())
    return f"{pluralize(counts.total(), 'letter', 'letters')}: {parts}"


def _no_filters() -> LetterFilters:
    return {}


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Letters by id, or all that match, or all."""

    letters: Sequence[str] = ()
    filters: LetterFilters = field(default_factory=_no_filters)
    everything: bool = False
    dry_run: bool = False
    limit: int | None = None

    def check(self) -> None:
        """Check that exactly one of the three was given.

        Raises:
            typer.Exit: None was, or several.
        """
        filtered = any(value is not None for value in self.filters.values())
        if sum((bool(self.letters), filtered, self.everything)) != 1:
            raise usage_error("name letters, or filters, or --all")
        if self.limit is not None and self.letters:
            raise usage_error("--limit goes with filters or --all: letters that are named are all meant")


def apply_to_letters(
    target: Target, selection: LetterSelection, question: str, on_one: OnOne | None, on_all: OnAll, *, yes: bool
) -> None:
    """Act on letters by id, or count all that match, ask, and act on all of them."""
    selection.check()

    async def act_on_each(bus: CommandBus) -> None:
        for letter in selection.letters:
            if selection.dry_run or on_one is None:
                found = await bus.dead_letters.get(letter)
                echo(f"{letter}: {found.reason} {found.name} {found.entity or ''}")
            else:
                await on_one(bus, letter)

    async def count(bus: CommandBus) -> Counter[tuple[str, str]]:
        found = await bus.dead_letters.count(**selection.filters)
        if not found:
            await warn_if_names_unknown(bus, selection.filters)
        return found

    if selection.letters:
        if selection.dry_run or on_one is None:
            on_bus(target, act_on_each)
        else:
            act_on_bus(target, "Replay dead letter", ", ".join(selection.letters), act_on_each)
        return
    counts = on_bus(target, count)
    echo(format_counts(counts))
    if counts and not selection.dry_run:
        confirm_or_exit(question, yes=yes)
        title = "Replay dead letters" if on_one is not None else "Purge dead letters"
        chosen = ", ".join(f"{name}={value}" for name, value in selection.filters.items() if value is not None)
        few = "" if selection.limit is None else f", the oldest {selection.limit:,} of them"
        act_on_bus(
            target,
            title,
            chosen or "all dead letters",
            lambda bus: on_all(bus, counts.total()),
            why=f"{counts.total():,} matched{few}",
        )


async def warn_if_names_unknown(bus: CommandBus, filters: LetterFilters) -> None:
    """Warn of filters by a type or command that nothing here knows."""
    await warn_if_unknown(bus, entity_type=filters.get("entity_type"), command=filters.get("name"))
