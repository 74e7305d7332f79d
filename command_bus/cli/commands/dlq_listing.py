"""What `dlq list` reads and shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from command_bus.admin.dead_letters import LetterFilters
    from command_bus.admin.info import DeadLetter
    from command_bus.bus import CommandBus

__all__ = ["Listing", "count_line", "listed"]


@dataclass(frozen=True, slots=True)
class Listing:
    """The first letters that match.

    Attributes:
        letters: As many as were asked for.
        counts: How many match, by reason and command; None if they were not counted.
    """

    letters: list[DeadLetter]
    counts: Counter[tuple[str, str]] | None

    def facts(self) -> dict[str, Any]:
        """Return the same for JSON."""
        if self.counts is None:
            return {"letters": self.letters, "matching": None, "counts": None}
        counts = [{"reason": reason, "command": name, "count": count} for (reason, name), count in self.counts.most_common()]
        return {"letters": self.letters, "matching": self.counts.total(), "counts": counts}


async def listed(bus: CommandBus, filters: LetterFilters, limit: int, *, count: bool) -> Listing:
    """Read letters as far as the limit, and one further to see whether there are more; to the end only to count."""
    letters: list[DeadLetter] = []
    counts: Counter[tuple[str, str]] = Counter()
    async for letter in bus.dead_letters.list(limit=None if count else limit + 1, **filters):
        counts[letter.reason, letter.name] += 1
        if len(letters) < limit:
            letters.append(letter)
    return Listing(letters, counts if count or counts.total() <= limit else None)


def count_line(counts: Counter[tuple[str, str]]) -> str:
    """Return in a line how many letters match."""
    if not counts:
        return "no letter matches"
    from command_bus.cli.output import counted

    parts = ", ".join(f"{count:,} {name or '(unreadable)'} {reason}" for (reason, name), count in counts.most_common())
    return f"{counted(counts.total(), 'letter', 'letters')}: {parts}"
