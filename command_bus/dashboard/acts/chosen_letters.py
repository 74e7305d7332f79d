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

MOST_AT_ONCE = 1000
"""Letters that one act in bulk changes at most."""
_PAGES = 20
"""Pages that are looked through for them: some eight thousand letters of a shard."""
_SLACK_MS = 3_600_000
"""The clock of a worker, which says when a command was given up, may be wrong by so much against the server's, which orders letters."""
_PLACE = re.compile(r"([0-9]{1,16})-([0-9]{1,19})-([0-9]{1,4})")

Place = tuple[int, int, int]
"""The place of a letter among those of all shards: when it was written, by the server's clock, its number in that ms, its shard."""


@dataclass(frozen=True, slots=True)
class _Letter:
    """The facts that are kept of a letter, which may have megabytes."""

    id: str
    kind: str
    place: Place


@dataclass(slots=True)
class LetterSelection:
    """The letters that were chosen.

    Attributes:
        letters: The oldest of those that match, the oldest first.
        matching: How many match, of those that were looked at.
        looked: How many were looked at, from the newest on.
        back_to_ms: When the oldest of those was written.
        cursor: Behind which older ones may match; None if none can.
    """

    letters: deque[_Letter] = field(default_factory=lambda: deque(maxlen=MOST_AT_ONCE))
    matching: int = 0
    looked: int = 0
    back_to_ms: int = 0
    cursor: str | None = None

    @property
    def newest_ms(self) -> int:
        """When the newest of these was written; 0 if there is none."""
        return self.letters[-1].place[0] if self.letters else 0

    def bounds(self) -> dict[str, str]:
        """Return the fields of a form that say which letters were counted: the places of the newest and the oldest."""
        if not self.letters:
            return {}
        return {"asked": "-".join(map(str, self.letters[-1].place)), "from": "-".join(map(str, self.letters[0].place))}

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
        if self.cursor is not None:
            parts.append(f" {self._looked()}")
        return "".join(parts)

    def nothing(self) -> str:
        """Return why there is nothing to do; empty: there is."""
        if self.letters:
            return ""
        return "No dead letter matches." if self.cursor is None else f"None matches. {self._looked()}"

    def _looked(self) -> str:
        return f"Only {self.looked:,} were looked at, the newest first, back to {when(self.back_to_ms)}."


async def chosen_letters(visit: Visit, fields: Fields) -> LetterSelection:
    """Return the letters that filters choose. `asked` and `from` are the places of the newest and the oldest that were counted before."""
    filters = filters_of(fields)
    since, until = filters.get("since"), filters.get("until")
    lasts = [(max(int(until.timestamp() * 1000) + _SLACK_MS, 1), 0, 0)] if until is not None else []
    firsts = [(int(since.timestamp() * 1000) - _SLACK_MS, 0, 0)] if since is not None else []
    lasts += [(ms, number, shard + 1) for ms, number, shard in _counted(fields["asked"])]  # the newest is one of them
    first = max([*firsts, *_counted(fields["from"])], default=(0, 0, 0))
    cursor = "-".join(map(str, min(lasts))) if lasts else None
    found = LetterSelection()
    for _ in range(_PAGES):
        page = await visit.bus.dead_letters.page(limit=500, cursor=cursor, **filters)
        found.looked += page.looked
        found.back_to_ms = page.oldest_ms or found.back_to_ms
        matching = [one for one in map(_one, page.letters) if one.place >= first]
        found.matching += len(matching)
        found.letters.extendleft(matching)
        cursor = found.cursor = page.cursor if found.back_to_ms >= first[0] else None
        if cursor is None:
            break
    return found


def _counted(field: str) -> list[Place]:
    """Return the place that a form has, if it has one."""
    found = _PLACE.fullmatch(field)
    return [(int(found[1]), int(found[2]), int(found[3]))] if found is not None else []


def _one(letter: DeadLetter) -> _Letter:
    shard, written_ms, number = map(int, letter.id.split("-"))
    return _Letter(letter.id, f"{letter.name or 'unreadable'}, {letter.reason}", (written_ms, number, shard))
