"""The dead letters that an act in bulk is for: all that filters choose, looked for in a bounded part of them, oldest first."""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field

from command_bus.admin.info import DeadLetter
from command_bus.dashboard.forms import Fields
from command_bus.dashboard.pages.letters import filters_of
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.words import when

__all__ = ["MOST_AT_ONCE", "Chosen", "chosen_letters"]

MOST_AT_ONCE = 1000
"""Letters that one act in bulk changes at most."""
_PAGES = 20
"""Pages that are looked through for them: some eight thousand letters of a shard."""
_SLACK_MS = 3_600_000
"""The clock of a worker, which says when a command was given up, may be wrong by so much against the server's, which orders letters."""


@dataclass(frozen=True, slots=True)
class _One:
    """What is kept of a letter: it may have megabytes."""

    id: str
    kind: str
    written_ms: int


@dataclass(slots=True)
class Chosen:
    """The letters that were chosen.

    Attributes:
        letters: The oldest of those that match, the oldest first.
        matching: How many match, of those that were looked at.
        looked: How many were looked at, from the newest on.
        back_to_ms: When the oldest of those was written.
        complete: Whether no older one can match.
    """

    letters: deque[_One] = field(default_factory=lambda: deque(maxlen=MOST_AT_ONCE))
    matching: int = 0
    looked: int = 0
    back_to_ms: int = 0
    complete: bool = False

    @property
    def newest_ms(self) -> int:
        """When the newest of these was written; 0 if there is none."""
        return self.letters[-1].written_ms if self.letters else 0

    @property
    def oldest_ms(self) -> int:
        """When the oldest of these was written; 0 if there is none."""
        return self.letters[0].written_ms if self.letters else 0

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return how many there are of each command and reason, the most common twenty."""
        return tuple(Counter(each.kind for each in self.letters).most_common(20))

    def limits(self) -> str:
        """Return what was left out, as sentences; empty: nothing."""
        parts: list[str] = []
        if self.matching > len(self.letters):
            parts.append(
                f" These are the oldest of {self.matching:,} that match: at most {MOST_AT_ONCE:,} are changed at a time. Ask again for the rest."
            )
        if not self.complete:
            parts.append(f" {self._looked()}")
        return "".join(parts)

    def nothing(self) -> str:
        """Return why there is nothing to do; empty: there is."""
        if self.letters:
            return ""
        return "No dead letter matches." if self.complete else f"None matches. {self._looked()}"

    def _looked(self) -> str:
        back = when(self.back_to_ms)
        return f"Only the newest {self.looked:,} were looked at, back to {back}: for older ones filter by Until {back.replace(' ', 'T')}."


async def chosen_letters(visit: Visit, fields: Fields) -> Chosen:
    """Return the letters that filters choose. `asked` and `from` are when the newest and oldest were written that were counted before."""
    filters = filters_of(fields)
    since, until = filters.get("since"), filters.get("until")
    lasts = [] if until is None else [int(until.timestamp() * 1000) + _SLACK_MS]
    firsts = [] if since is None else [int(since.timestamp() * 1000) - _SLACK_MS]
    lasts += _counted(fields["asked"])
    firsts += _counted(fields["from"])
    first_ms = max(firsts, default=0)
    cursor = f"{max(min(lasts), 0) + 1}-0-0" if lasts else None
    found = Chosen()
    for _ in range(_PAGES):
        page = await visit.bus.dead_letters.page(limit=500, cursor=cursor, **filters)
        found.looked += page.looked
        found.back_to_ms = page.oldest_ms or found.back_to_ms
        matching = [one for one in map(_one, page.letters) if one.written_ms >= first_ms]
        found.matching += len(matching)
        found.letters.extendleft(matching)
        cursor = page.cursor
        if cursor is None or found.back_to_ms < first_ms:
            found.complete = True
            break
    return found


def _counted(field: str) -> list[int]:
    return [int(field)] if re.fullmatch("[0-9]{1,15}", field) else []


def _one(letter: DeadLetter) -> _One:
    written_ms = int(letter.id.split("-")[1])  # by the server's clock: its id says so
    return _One(letter.id, f"{letter.name or 'unreadable'}, {letter.reason}", written_ms)
