"""Dead letters: the list with its filters, and one of them with its attempts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from command_bus.admin.dead_letters import LetterFilters
from command_bus.admin.events import EventPage
from command_bus.admin.info import DeadLetter
from command_bus.admin.json_data import trace_id_of
from command_bus.dashboard.forms import Fields
from command_bus.dashboard.pages.attempts import attempts_of
from command_bus.dashboard.pages.standing import letter_error
from command_bus.dashboard.visit import Visit
from command_bus.errors import CommandBusError, InvalidSettings

FILTERS = ("name", "reason", "type", "id", "parked", "since", "until")
"""The fields of an address that choose letters."""
REASONS = ("failed", "interrupted", "no_handler", "undecodable", "invalid", "unsupported_version", "bad_signature", "expired")
_LIMIT = 50


async def letters_page(visit: Visit) -> Response:
    """List dead letters, newest first, with filters."""
    filters = filters_of(visit.query)
    page, stats = await asyncio.gather(
        visit.shared(
            "letters", lambda: visit.bus.dead_letters.page(limit=_LIMIT, cursor=visit.query["cursor"] or None, **filters)
        ),
        visit.state.reads.get("stats", visit.bus.stats),
    )
    return visit.page(
        "letters.html",
        letters=await visit.apart(lambda: [(each, letter_error(visit, each)) for each in page.letters]),
        page=page,
        stats=stats,
        reasons=REASONS,
        chosen={name: visit.query[name] for name in FILTERS},
        is_filtered=any(visit.query[name] for name in FILTERS),
    )


async def letter_page(visit: Visit) -> Response:
    """Show the dead letter that `?id=` names: its cause, its payload, its attempts, and others like it."""
    letter = await visit.bus.dead_letters.get(visit.query["id"])
    recent, alike = await asyncio.gather(
        _events(visit, letter), visit.bus.dead_letters.page(limit=6, name=letter.name, reason=letter.reason)
    )
    return visit.page(
        "letter.html",
        letter=letter,
        headers=visit.state.masking.headers(letter.headers),
        attempts=attempts_of(recent.events, letter.command_id) if recent is not None else [],
        trace=visit.trace(trace_id_of(letter.headers)),
        **await visit.apart(lambda: _texts(visit, letter, [each for each in alike.letters if each.id != letter.id])),
    )


def _texts(visit: Visit, letter: DeadLetter, alike: list[DeadLetter]) -> dict[str, Any]:
    """Return what a page shows of payloads, masked."""
    masking = visit.state.masking
    return {
        "error": letter_error(visit, letter),
        "message": masking.text(letter.name, letter.payload, letter.error_message),
        "traceback": masking.text(letter.name, letter.payload, letter.traceback),
        "payload": masking.shown(letter.name, letter.payload),
        "alike": [(each, letter_error(visit, each)) for each in alike],
    }


async def _events(visit: Visit, letter: DeadLetter) -> EventPage | None:
    if letter.entity_type is None or letter.entity_id is None:
        return None
    try:
        return await visit.bus.events.recent(letter.entity_type, letter.entity_id, limit=200)
    except CommandBusError:
        return None


def filters_of(fields: Fields) -> LetterFilters:
    """Return the filters that an address or a form has.

    Raises:
        InvalidSettings: A time is none.
    """
    return {
        "name": fields["name"].strip() or None,
        "reason": fields["reason"] or None,
        "entity_type": fields["type"].strip() or None,
        "entity_id": fields["id"].strip() or None,
        "parked": {"yes": True, "no": False}.get(fields["parked"]),
        "since": _moment("since", fields["since"]),
        "until": _moment("until", fields["until"]),
    }


def _moment(name: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSettings(f"{name}={text!r}: a date or time as 2026-11-23 or 2026-11-23T08:30, in UTC") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
