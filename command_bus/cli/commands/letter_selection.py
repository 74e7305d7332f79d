"""Dead letters that a command of `dlq` changes: named ones, all that match, or all. They are counted first, then it asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from command_bus.cli.connection import open_bus, run_command
from command_bus.cli.options import Target
from command_bus.cli.output import pluralize
from command_bus.cli.terminal import confirm_or_exit, echo, usage_error, warn_if_unknown

if TYPE_CHECKING:
    from command_bus.admin.dead_letters import LetterFilters
    from command_bus.bus import CommandBus

    OnOne = Callable[[CommandBus, str], Awaitable[None]]
    OnAll = Callable[[CommandBus], Awaitable[None]]


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

    def check(self) -> None:
        """Check that exactly one of the three was given.

        Raises:
            typer.Exit: None was, or several.
        """
        filtered = any(value is not None for value in self.filters.values())
        if sum((bool(self.letters), filtered, self.everything)) != 1:
            raise usage_error("name letters, or filters, or --all")


def apply_to_letters(
    target: Target, selection: LetterSelection, question: str, on_one: OnOne | None, on_all: OnAll, *, yes: bool
) -> None:
    """Act on letters by id, or count all that match, ask, and act on all of them."""
    selection.check()

    async def act_on_each() -> None:
        async with open_bus(target) as bus:
            for letter in selection.letters:
                if selection.dry_run or on_one is None:
                    found = await bus.dead_letters.get(letter)
                    echo(f"{letter}: {found.reason} {found.name} {found.entity or ''}")
                else:
                    await on_one(bus, letter)

    async def count() -> Counter[tuple[str, str]]:
        async with open_bus(target) as bus:
            found = await bus.dead_letters.count(**selection.filters)
            if not found:
                await warn_if_names_unknown(bus, selection.filters)
            return found

    async def act_on_all() -> None:
        async with open_bus(target) as bus:
            await on_all(bus)

    if selection.letters:
        run_command(act_on_each)
        return
    counts = run_command(count)
    echo(format_counts(counts))
    if counts and not selection.dry_run:
        confirm_or_exit(question, yes=yes)
        run_command(act_on_all)


async def warn_if_names_unknown(bus: CommandBus, filters: LetterFilters) -> None:
    """Warn of filters by a type or command that nothing here knows."""
    await warn_if_unknown(bus, entity_type=filters.get("entity_type"), command=filters.get("name"))
