"""Acts on dead letters: replay, edit and replay, discard; one of them, or all that filters choose in a bounded part, oldest first."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.info import DeadLetter
from command_bus.dashboard.acts.act import Act, Input, Part, Performing, Plan, Planning, number_in
from command_bus.dashboard.pages.commands import FILTERS, filters_of
from command_bus.dashboard.visit import PICKED, Fields, Visit
from command_bus.dashboard.words import when
from command_bus.errors import BusClosed, CommandBusError, InvalidCommand, TransportUnavailable, UnknownDeadLetter
from command_bus.serialization.json_forms import read_json

MOST_AT_ONCE = 1000
"""Letters that a part of an act in bulk changes at most."""
_PAGES = 20
"""Pages that are looked through for them: some eight thousand letters of a shard."""
_SLACK_MS = 3_600_000
"""The clock of a worker, which says when a command was given up, may be wrong by so much against the server's, which orders letters."""
_TYPES = {
    "string": "text",
    "integer": "number",
    "object": "fields",
    "array": "list",
    "null": "nothing",
    "boolean": "true or false",
}
_PLACE = re.compile(r"([0-9]{1,16})-([0-9]{1,19})-([0-9]{1,4})")

Place = tuple[int, int, int]
"""The place of a letter among those of all shards: when it was written, by the server's clock, its number in that ms, its shard."""


class _Letter(NamedTuple):
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
        newest: The place of the newest that matches.
        looked: How many were looked at, from the newest on.
        back_to_ms: When the oldest of those was written.
        cursor: Behind which older ones may match; None if none can.
    """

    letters: deque[_Letter] = field(default_factory=lambda: deque(maxlen=MOST_AT_ONCE))
    matching: int = 0
    newest: Place = (0, 0, 0)
    looked: int = 0
    back_to_ms: int = 0
    cursor: str | None = None

    def bounds(self) -> dict[str, str]:
        """Return the fields of a form that say which letters were counted: the places of the newest and the oldest."""
        if not self.letters:
            return {}
        return {"asked": "-".join(map(str, self.newest)), "from": "-".join(map(str, self.letters[0].place))}

    def behind(self) -> dict[str, str]:
        """Return the field of a form that goes on behind these letters."""
        ms, number, shard = self.letters[-1].place
        return {"from": f"{ms}-{number}-{shard + 1}"}

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return how many there are of each command and reason, the most common twenty."""
        return tuple(Counter(each.kind for each in self.letters).most_common(20))

    def limits(self) -> str:
        """Return what was left out, as sentences; empty: nothing."""
        parts: list[str] = []
        if self.matching > len(self.letters):
            parts.append(f" They are changed {MOST_AT_ONCE:,} at a time, the oldest first. You can stop in between.")
        if self.cursor is not None:
            parts.append(f" {self._looked()}")
        return "".join(parts)

    def nothing(self) -> str:
        """Return why there is nothing to do; empty: there is."""
        if self.letters:
            return ""
        return "No dead letter matches." if self.cursor is None else f"None matches. {self._looked()}"

    def _looked(self) -> str:
        return f"Only {self.looked:,} were looked at, the newest first, back to {when(self.back_to_ms)} UTC."


async def chosen_letters(visit: Visit, fields: Fields) -> LetterSelection:
    """Return the letters that filters choose. `asked` and `from` are the places of the newest and the oldest that were counted before."""
    if fields[PICKED]:
        picked = await visit.bus.dead_letters.several(fields[PICKED].split("\n"))
        letters = sorted(map(_one, picked.values()), key=lambda each: each.place)
        return LetterSelection(deque(letters), len(letters), letters[-1].place if letters else (0, 0, 0), len(letters))
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
        found.newest = max([found.newest, *(each.place for each in matching)])
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


async def _letter(visit: Visit, fields: Fields) -> DeadLetter:
    if not fields["id"]:
        raise HTTPException(404, "the form names no dead letter")
    return await visit.bus.dead_letters.get(fields["id"])


def _named(letter: DeadLetter) -> str:
    return f"letter {letter.id} ({letter.name or 'unreadable'} of {letter.entity or 'no entity'})"


def _back(visit: Visit, letter: DeadLetter) -> str:
    if letter.entity_type is not None and letter.entity_id is not None:
        return visit.url("/entity", type=letter.entity_type, id=letter.entity_id)
    return visit.url("/letters")


async def _plan_replay(visit: Visit, fields: Fields) -> Plan:
    letter = await _letter(visit, fields)
    place = "before what waits behind it, and its entity goes on" if letter.parked else "behind what waits in its line"
    return Plan(_named(letter), f"1 command runs again under its old id, {place}.", _back(visit, letter), {"id": letter.id})


async def _replay(visit: Visit, fields: Fields) -> str:
    return f"command {await visit.bus.dead_letters.replay(fields['id'])} runs again"


async def _plan_edit(visit: Visit, fields: Fields) -> Plan:
    letter = await _letter(visit, fields)
    shown = await visit.apart(lambda: visit.state.masking.shown(letter.name, letter.payload))
    nothing = "" if letter.payload is not None else "Its payload cannot be read here: it is encrypted, or damaged."
    info = await visit.bus.fleet.command(letter.name)
    hint = "All fields, as JSON. Dots stand for masked values, which stay as they are."
    if info is not None:
        hint += f" Fields: {', '.join(_fields(info.schema))}."
    payload = Input("payload", "Payload", "json", fields["payload"] or shown, hint=hint)
    says = (
        "1 command runs again under its old id with these fields. Its entity stays the same. A worker's schema checks them first."
    )
    return Plan(
        _named(letter),
        says,
        _back(visit, letter),
        {"id": letter.id},
        (payload,),
        details=await visit.apart(lambda: _changes(shown, fields["payload"])),
        nothing=nothing,
    )


def _changes(shown: str, given: str) -> str:
    """Return the names of the fields that an edit changes, for the audit log; never a value."""
    try:
        before, after = json.loads(shown or "{}"), json.loads(given or "{}")
    except (ValueError, RecursionError):
        return "edited"
    if not isinstance(before, dict) or not isinstance(after, dict):
        return "edited"
    texts = [{name: json.dumps(each, sort_keys=True) for name, each in payload.items()} for payload in (before, after)]
    names = [name for name in {**before, **after} if texts[0].get(name) != texts[1].get(name)]
    return f"edited: {', '.join(names)}" if names else "nothing was edited"


async def _edit(visit: Visit, fields: Fields) -> str:
    letter = await _letter(visit, fields)
    edited = await visit.apart(lambda: _edited(visit, letter, fields["payload"]))
    return f"command {await visit.bus.dead_letters.replay(letter.id, payload=edited)} runs again with other fields"


def _edited(visit: Visit, letter: DeadLetter, text: str) -> dict[str, Any]:
    try:
        given = read_json(text)
    except ValueError as error:
        raise InvalidCommand(f"the payload is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidCommand("the payload is an object of field names and values")
    return visit.state.masking.edited(letter.name, letter.payload or {}, given)


async def _plan_discard(visit: Visit, fields: Fields) -> Plan:
    letter = await _letter(visit, fields)
    goes_on = " Its entity goes on with its next command." if letter.parked else ""
    return Plan(
        _named(letter),
        f"1 dead letter is deleted: its command never runs.{goes_on} It cannot be undone.",
        _back(visit, letter),
        {"id": letter.id},
    )


async def _discard(visit: Visit, fields: Fields) -> str:
    await visit.bus.dead_letters.discard(fields["id"])
    return f"letter {fields['id']} is discarded"


def _planned_many(what: str, *, grave: bool = False) -> Planning:
    """Return the planning of an act in bulk, a dry run: which letters there are now. What is dead-lettered later is left alone."""

    async def plan(visit: Visit, fields: Fields) -> Plan:
        chosen = await chosen_letters(visit, fields)
        number = f"{chosen.matching:,}"
        asked = {name: fields[name] for name in FILTERS}
        keeps = {PICKED: fields[PICKED]} if fields[PICKED] else asked | chosen.bounds()
        filters = ", ".join(f"{name} {value}" for name, value in asked.items() if value) or "no filter"
        filters = ", ".join(fields[PICKED].split("\n")) if fields[PICKED] else filters
        further = keeps | {"act": fields["act"], "asked": chosen.cursor, "from": ""}
        return Plan(
            f"{number} dead letters" + ("" if fields[PICKED] else f" ({filters})"),
            f"{number} dead letters {what}. Only letters up to {when(chosen.newest[0])} UTC.{chosen.limits()}",
            visit.url("/letters", **asked),
            keeps,
            typed=number.replace(",", "") if grave else "",
            counts=chosen.counts(),
            details=filters,
            nothing=chosen.nothing(),
            total=chosen.matching,
            further="" if chosen.cursor is None else visit.url("/act", **further),
        )

    return plan


def _each(done: str, act: Callable[[DeadLetters, str], Awaitable[Any]]) -> Performing:
    """Return what does something with each of the letters that were counted.

    One that is refused holds up no other; the answer says what was done in any case.
    """

    async def perform(visit: Visit, fields: Fields) -> str | Part:
        changed = gone = refused = 0
        first = stopped = ""
        chosen = await chosen_letters(visit, fields)
        for letter in chosen.letters:
            try:
                await act(visit.bus.dead_letters, letter.id)
            except UnknownDeadLetter:  # another operator decided first
                gone += 1
            except (TransportUnavailable, BusClosed) as error:
                unclear = " (of one it is not known)" if isinstance(error, TransportUnavailable) and error.outcome_unknown else ""
                stopped = f", then stopped{unclear}: {error.message}"
                break
            except CommandBusError as error:
                refused, first = refused + 1, first or f"{letter.id}: {error.message}"
            else:
                changed += 1
        total = number_in(fields, "done") + changed
        parts = [f"{total:,} dead letters {done}"]
        parts += [f"{gone:,} were gone already"] if gone else []
        parts += [f"{refused:,} were refused, the first, {first}"] if refused else []
        text = "; ".join(parts) + stopped
        return Part(text, total, chosen.behind()) if chosen.matching > len(chosen.letters) and not stopped else text

    return perform


def _fields(schema: Any) -> list[str]:
    """Return the fields of a command, each with its type."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return [f"{name} ({_type(each)})" if isinstance(each, dict) else str(name) for name, each in properties.items()]


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a field as people say it: `text or number`."""
    kinds = [each.get("type") for each in schema.get("anyOf", [schema]) if isinstance(each, dict)]
    words = dict.fromkeys(_TYPES.get(str(each), str(each or "any")) for each in kinds)
    return " or ".join(words)


LETTER_ACTS = {
    "letter.replay": Act("Replay", "operator", _plan_replay, _replay),
    "letter.edit": Act("Edit and replay", "operator", _plan_edit, _edit),
    "letter.discard": Act("Discard", "operator", _plan_discard, _discard, is_grave=True),
    "letters.replay": Act(
        "Replay dead letters",
        "operator",
        _planned_many("run again under their old ids, the oldest first"),
        _each("replayed", lambda letters, letter_id: letters.replay(letter_id)),
    ),
    "letters.discard": Act(
        "Discard dead letters",
        "admin",
        _planned_many("are deleted: they never run, and entities that they park go on. It cannot be undone", grave=True),
        _each("discarded", lambda letters, letter_id: letters.discard(letter_id)),
        is_grave=True,
    ),
}
"""These acts, by their names."""
