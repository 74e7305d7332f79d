"""Pages of commands: one with its attempts, dead letters, how commands ended, what operators did, and the search."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast, get_args

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from command_bus.admin.command_status import CommandStatus
from command_bus.admin.dead_letters import LetterFilters
from command_bus.admin.events import CommandEvent, EventPage
from command_bus.admin.history import HistoryEntry
from command_bus.admin.info import DeadLetter
from command_bus.admin.json_data import trace_id_of
from command_bus.dashboard.pages.entities import failure_text, letter_error
from command_bus.dashboard.visit import Fields, Visit
from command_bus.errors import CommandBusError, InvalidSettings, UnknownCommand
from command_bus.serialization.outcome import Status
from command_bus.transport.records import Failure

T = TypeVar("T")
FILTERS = ("name", "reason", "type", "id", "parked", "since", "until")
"""The fields of an address that choose letters."""
REASONS = ("failed", "interrupted", "no_handler", "undecodable", "invalid", "unsupported_version", "bad_signature", "expired")
_LETTERS_LIMIT = 50


async def letters_page(visit: Visit) -> Response:
    """List dead letters, newest first, with filters."""
    filters = filters_of(visit.query)
    page, stats = await asyncio.gather(
        visit.shared(
            "letters", lambda: visit.bus.dead_letters.page(limit=_LETTERS_LIMIT, cursor=visit.query["cursor"] or None, **filters)
        ),
        visit.stats(),
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
        _recent(visit, letter.entity_type, letter.entity_id),
        visit.bus.dead_letters.page(limit=6, name=letter.name, reason=letter.reason),
    )
    return visit.page(
        "letter.html",
        letter=letter,
        headers=visit.state.masking.headers(letter.headers),
        trace=visit.trace(trace_id_of(letter.headers)),
        **await visit.apart(
            lambda: _texts_of_letter(visit, letter, recent, [each for each in alike.letters if each.id != letter.id])
        ),
    )


def _texts_of_letter(visit: Visit, letter: DeadLetter, recent: EventPage | None, alike: list[DeadLetter]) -> dict[str, Any]:
    """Return what a page shows of payloads, masked."""
    masking = visit.state.masking
    return {
        "error": letter_error(visit, letter),
        "message": masking.text(letter.name, letter.payload, letter.error_message),
        "attempts": _attempts(visit, recent, letter.command_id, letter.name, letter.payload),
        "traceback": masking.text(letter.name, letter.payload, letter.traceback),
        "payload": masking.shown(letter.name, letter.payload),
        "alike": [(each, letter_error(visit, each)) for each in alike],
    }


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


_ENDS = (
    "completed", "rejected", "retried", "snoozed", "interrupted", "handed_back", "dead_lettered", "parked", "cancelled", "suspended",
)  # fmt: skip


@dataclass(slots=True)
class Attempt:
    """One start of a handler.

    Attributes:
        number: Counts the starts of the command.
        worker: Who ran it.
        started_ms: When; None if that is not kept.
        ended_ms: When it ended; None if that is not known.
        end: How it ended, as an event's kind; empty if that is not known.
        pause: Seconds until the next; None if that followed at once, or none did.
        error: How it failed, as far as that is kept.
    """

    number: int
    worker: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    end: str = ""
    pause: float | None = None
    error: str = ""

    @property
    def seconds(self) -> float | None:
        """How long it ran; None if that is not known."""
        return None if self.started_ms is None or self.ended_ms is None else (self.ended_ms - self.started_ms) / 1000


def attempts_of(events: Sequence[CommandEvent], command_id: str) -> list[Attempt]:
    """Return the attempts of a command, oldest first, as far as its events are kept. After a replay they are counted from one again."""
    found: list[Attempt] = []
    for event in sorted(events, key=lambda each: each.at_ms):
        if event.command_id != command_id or not event.attempt:
            continue
        if event.kind == "started":
            found.append(Attempt(event.attempt, event.worker, event.at_ms))
        elif event.kind in _ENDS:
            if not found or found[-1].end or found[-1].number != event.attempt:
                found.append(Attempt(event.attempt, event.worker))
            last = found[-1]
            last.ended_ms, last.end, last.pause, last.worker = event.at_ms, event.kind, event.delay, event.worker or last.worker
            last.error = event.reason
    return found


def _attempts(
    visit: Visit, recent: EventPage | None, command_id: str, name: str, payload: Mapping[str, Any] | None
) -> list[Attempt]:
    """Return the attempts of a command, with their errors masked."""
    found = [] if recent is None else attempts_of(recent.events, command_id)
    for each in found:
        each.error = failure_text(visit.state.masking, name, payload, Failure(0, each.error)) if each.error else ""
    return found


_TREE = 200
"""Commands that a tree has at most."""
STATUSES: tuple[str, ...] = get_args(Status)
_LIMIT = 50
_SCAN = 600


async def history_page(visit: Visit) -> Response:
    """List ends of commands, newest first, with filters."""
    query = visit.query
    wanted = query["status"]
    status = cast("Status", wanted) if wanted in STATUSES else None
    kind, entity_id = query["type"].strip(), query["id"].strip()
    times = filters_of(query)
    page, stats = await asyncio.gather(
        visit.shared(
            "history",
            lambda: visit.bus.history.search(
                name=query["name"].strip() or None,
                entity=(kind, entity_id) if kind and entity_id else None,
                entity_type=kind if kind and not entity_id else None,
                status=status,
                since=times.get("since"),
                until=times.get("until"),
                limit=_LIMIT,
                scan=_SCAN,
                cursor=query["cursor"] or None,
            ),
        ),
        visit.stats(),
    )
    chosen = {name: query[name] for name in ("name", "type", "id", "status", "since", "until")}
    errors = await visit.apart(lambda: [history_error(visit, each) for each in page.entries])
    return visit.page("history.html", page=page, errors=errors, statuses=STATUSES, chosen=chosen, stats=stats, scan=_SCAN)


def history_error(visit: Visit, end: HistoryEntry, payload: Mapping[str, Any] | None = None) -> str:
    """Return the error with which a command ended, masked by its payload, which may be known from elsewhere; empty if it ended well."""
    if end.error is None:
        return ""
    masking, known = visit.state.masking, payload if end.payload is None else end.payload
    return end.error.code if masking.is_used and known is None else masking.text(end.name, known, end.error.message)


_AUDIT_LIMIT = 100
_MOST_UNANNOUNCED = 50
"""Ids in an address; each is of an act of whose end the page before tells."""


async def audit_page(visit: Visit) -> Response:
    """List what operators did, newest first. What has ended stands there once, with its outcome."""
    page = await visit.bus.audit.page(limit=_AUDIT_LIMIT, cursor=visit.query["cursor"] or None)
    before = visit.query["ended"].split(",")[:_MOST_UNANNOUNCED]
    ended = sorted(each for each in page.unannounced(before) if each)[:_MOST_UNANNOUNCED]
    return visit.page("audit.html", entries=page.acts(before), cursor=page.cursor, ended=",".join(ended))


async def command_page(visit: Visit) -> Response:
    """Show the command that `?id=` names.

    Raises:
        HTTPException: The address names none.
        UnknownCommand: Nothing is known of it.
    """
    command_id = visit.query["id"]
    if not command_id:
        raise HTTPException(404, "the address names no command: ?id=…")
    entity = _named(visit)
    (status, end, recent), record, acts = await asyncio.gather(
        _known(visit, command_id),
        _unless_refused(visit.bus.commands.record(command_id, entity=entity)),
        _unless_refused(visit.bus.audit.about((command_id, ":".join(entity or ())))),
    )
    kind, entity_id = _entity_of(visit, status, end)
    grown = visit.bus.commands.tree(command_id, entity=entity, limit=_TREE) if visit.query["tree"] else None
    return visit.page(
        "command.html",
        acts=acts,
        tree=None if grown is None else await _unless_refused(grown),
        command_id=command_id,
        status=status,
        record=record,
        end=end,
        log=[(each.at_ms, each.text, visit.state.masking.headers(each.facts)) for each in reversed(record.log)]
        if record is not None
        else [],
        kind=kind,
        entity_id=entity_id,
        name=(status.name if status is not None else "") or (end.name if end is not None else ""),
        trace=visit.trace(status.trace_id if status is not None else ""),
        signals=[each.name for each in status.suspension.waits_for if each.kind == "signal"]
        if status is not None and status.suspension is not None
        else [],
        **await visit.apart(lambda: _texts(visit, command_id, status, end, recent)),
    )


def _texts(
    visit: Visit, command_id: str, status: CommandStatus | None, end: HistoryEntry | None, recent: EventPage | None
) -> dict[str, Any]:
    """Return what a page shows of payload, errors and reply, masked."""
    masking = visit.state.masking
    name, payload = ("", None) if status is None else (status.name, status.payload)
    if end is not None:
        name, payload = end.name, payload if end.payload is None else end.payload
    return {
        "reply": None if end is None or end.error is not None else _shown(visit, end),
        "error": "" if end is None else history_error(visit, end, payload),
        "payload": masking.shown(name, payload),
        "attempts": _attempts(visit, recent, command_id, name, payload),
        "failure": "" if status is None else failure_text(visit.state.masking, name, payload, status.failure),
    }


def _named(visit: Visit) -> tuple[str, str] | None:
    """Return the entity that the address names beside the command."""
    kind, entity_id = visit.query["type"], visit.query["entity"]
    return (kind, entity_id) if kind and entity_id else None


async def _known(visit: Visit, command_id: str) -> tuple[CommandStatus | None, HistoryEntry | None, EventPage | None]:
    """Return where a command is, how it ended, and the events of its entity.

    Raises:
        UnknownCommand: Nothing is known of it.
    """
    status, end = await asyncio.gather(
        _unless_refused(visit.bus.commands.status(command_id, entity=_named(visit)), (UnknownCommand,)),
        visit.bus.history.get(command_id),
    )
    if status is None and end is None:
        raise UnknownCommand(
            f"nothing is known of a command {command_id!r}: it has ended and is not remembered, or its id was generated and it stands behind the "
            "first 20,000 commands of the namespace: then open it from its entity"
        )
    return status, end, await _recent(visit, *_entity_of(visit, status, end))


async def _unless_refused(asked: Awaitable[T], refusal: tuple[type[CommandBusError], ...] = (CommandBusError,)) -> T | None:
    try:
        return await asked
    except refusal:
        return None


async def _recent(visit: Visit, kind: str | None, entity_id: str | None) -> EventPage | None:
    return await _unless_refused(visit.bus.events.recent(kind, entity_id, limit=200)) if kind and entity_id else None


def _entity_of(visit: Visit, status: CommandStatus | None, end: HistoryEntry | None) -> tuple[str, str]:
    """Return type and id of the command's entity, as far as they are known."""
    if end is not None and end.entity_type is not None and end.entity_id is not None:
        return end.entity_type, end.entity_id
    kind, colon, entity_id = (status.entity if status is not None else "").partition(":")
    if not colon or " " in kind:
        return visit.query["type"], visit.query["entity"]
    return kind, entity_id


def _shown(visit: Visit, end: HistoryEntry) -> str:
    """Return a reply as JSON, masked."""
    if isinstance(end.reply, dict):
        return visit.state.masking.shown(end.name, end.reply)
    text: str = json.loads(visit.state.masking.shown(end.name, {"reply": end.reply}))["reply"]
    return json.dumps(text, ensure_ascii=False, indent=2)


_LETTER = re.compile(r"\d{1,4}-\d{13,}-\d+")


async def search_page(visit: Visit) -> Response:
    """Lead to what `?q=` names as a whole, else to the entities whose ids contain it."""
    text = visit.query["q"].strip()
    if not text:
        return _to(visit.url("/entities"))
    if _LETTER.fullmatch(text) and await visit.bus.dead_letters.several([text]):
        return _to(visit.url("/letter", id=text))
    status, end, types = await asyncio.gather(
        _unless_refused(visit.bus.commands.status(text)), visit.bus.history.get(text), visit.types()
    )
    if status is not None or end is not None:
        return _to(visit.url("/command", id=text))
    kind, colon, rest = text.partition(":")
    if colon and rest and kind in {each.name for each in types}:
        return _to(visit.url("/entity", type=kind, id=rest))
    return _to(visit.url("/entities", q=text))


def _to(url: str) -> Response:
    return RedirectResponse(url, status_code=303)
