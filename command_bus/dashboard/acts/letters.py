"""Acts on dead letters: replay, edit and replay, discard; one of them, or all that filters choose."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from starlette.exceptions import HTTPException

from command_bus.admin.info import DeadLetter
from command_bus.dashboard.acts.act import Act, Input, Plan
from command_bus.dashboard.forms import Fields
from command_bus.dashboard.pages.letters import FILTERS, filters_of
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.words import when
from command_bus.errors import InvalidCommand, UnknownDeadLetter

__all__ = ["LETTER_ACTS", "MOST_AT_ONCE"]

MOST_AT_ONCE = 1000
"""Letters that one act in bulk changes at most."""
_PAGES = 20
"""Pages that are looked through for them: some eight thousand letters of a shard."""


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
    shown = visit.state.masking.shown(letter.name, letter.payload)
    nothing = "" if letter.payload is not None else "Its payload cannot be read here: it is encrypted, or damaged."
    info = await visit.bus.fleet.command(letter.name)
    hint = "All fields, as JSON. Dots stand for masked values, which stay as they are."
    if info is not None:
        hint += f" Fields: {', '.join(_fields(info.schema))}."
    payload = Input("payload", "Payload", "json", fields["payload"] or shown, hint=hint)
    says = (
        "1 command runs again under its old id with these fields. Its entity stays the same. A worker's schema checks them first."
    )
    return Plan(_named(letter), says, _back(visit, letter), {"id": letter.id}, (payload,), details="edited", nothing=nothing)


async def _edit(visit: Visit, fields: Fields) -> str:
    letter = await _letter(visit, fields)
    try:
        given = json.loads(fields["payload"])
    except (ValueError, RecursionError) as error:
        raise InvalidCommand(f"the payload is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidCommand("the payload is an object of field names and values")
    edited = visit.state.masking.edited(letter.name, letter.payload or {}, given)
    return f"command {await visit.bus.dead_letters.replay(letter.id, payload=edited)} runs again with other fields"


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


async def _plan_replay_all(visit: Visit, fields: Fields) -> Plan:
    return await _plan_many(visit, fields, "run again under their old ids, the oldest first")


async def _replay_all(visit: Visit, fields: Fields) -> str:
    return await _each(visit, fields, "replayed", visit.bus.dead_letters.replay)


async def _plan_discard_all(visit: Visit, fields: Fields) -> Plan:
    return await _plan_many(
        visit, fields, "are deleted: they never run, and entities that they park go on. It cannot be undone", grave=True
    )


async def _discard_all(visit: Visit, fields: Fields) -> str:
    return await _each(visit, fields, "discarded", visit.bus.dead_letters.discard)


async def _plan_many(visit: Visit, fields: Fields, what: str, *, grave: bool = False) -> Plan:
    """Return the dry run: which letters there are now. What is dead-lettered later is left alone."""
    letters, complete = await _chosen(visit, fields)
    until = fields["asked"] if fields["asked"].isdecimal() else str(max((_written(each) for each in letters), default=0))
    kinds = Counter(f"{each.name or 'unreadable'}, {each.reason}" for each in letters)
    number = f"{len(letters):,}"
    rest = (
        ""
        if complete
        else f" These are not all that match: at most {MOST_AT_ONCE:,} are changed at a time. Ask again for the rest."
    )
    keeps = {name: fields[name] for name in FILTERS} | {"asked": until}
    filters = ", ".join(f"{name} {fields[name]}" for name in FILTERS if fields[name]) or "no filter"
    return Plan(
        f"{number} dead letters ({filters})",
        f"{number} dead letters {what}. Written until {when(int(until))}.{rest}",
        visit.url("/letters", **{name: fields[name] for name in FILTERS}),
        keeps,
        typed=number.replace(",", "") if grave else "",
        counts=tuple(kinds.most_common(20)),
        details=filters,
        nothing="" if letters else "No dead letter matches.",
    )


async def _chosen(visit: Visit, fields: Fields) -> tuple[list[DeadLetter], bool]:
    """Return the letters that filters choose, oldest first, and whether these are all. `asked` is the newest that was counted before."""
    until_ms = int(fields["asked"]) if fields["asked"].isdecimal() else None
    found: list[DeadLetter] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await visit.bus.dead_letters.page(limit=500, cursor=cursor, **filters_of(fields))
        found += [each for each in page.letters if until_ms is None or _written(each) <= until_ms]
        cursor = page.cursor
        if cursor is None or len(found) >= MOST_AT_ONCE:
            break
    complete = cursor is None and len(found) <= MOST_AT_ONCE
    return found[:MOST_AT_ONCE][::-1], complete


def _written(letter: DeadLetter) -> int:
    """Return when a letter was written, by the server's clock: its id says so."""
    return int(letter.id.split("-")[1])


async def _each(visit: Visit, fields: Fields, done: str, act: Any) -> str:
    """Do something with each of the letters that were counted."""
    letters, _ = await _chosen(visit, fields)
    changed = gone = 0
    for letter in letters:
        try:
            await act(letter.id)
        except UnknownDeadLetter:  # another operator decided first
            gone += 1
        else:
            changed += 1
    return f"{changed:,} dead letters {done}{f'; {gone:,} were gone already' if gone else ''}"


def _fields(schema: Any) -> list[str]:
    """Return the fields of a command, each with its type."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return [f"{name} ({each.get('type', 'any')})" if isinstance(each, dict) else str(name) for name, each in properties.items()]


LETTER_ACTS = {
    "letter.replay": Act("Replay", "operator", _plan_replay, _replay),
    "letter.edit": Act("Edit and replay", "operator", _plan_edit, _edit),
    "letter.discard": Act("Discard", "operator", _plan_discard, _discard, is_grave=True),
    "letters.replay": Act("Replay all that match", "operator", _plan_replay_all, _replay_all),
    "letters.discard": Act("Discard all that match", "admin", _plan_discard_all, _discard_all, is_grave=True),
}
"""These acts, by their names."""
