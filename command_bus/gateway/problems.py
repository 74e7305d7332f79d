"""`Problem`: what went wrong, as `application/problem+json` (RFC 9457) with the codes of this library."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.responses import Response

from command_bus.errors import (
    BusClosed,
    CallCycle,
    CommandBusError,
    CommandCancelled,
    CommandExpired,
    CommandFailed,
    CommandOutcomeError,
    CommandRejected,
    CommandTimeout,
    IdempotencyConflict,
    InvalidCommand,
    InvalidSettings,
    PayloadTooLarge,
    PublishedInPart,
    QueueFull,
    TransportUnavailable,
    Unconfirmed,
    UniqueKeyTaken,
    UnknownCommand,
    UnknownDeadLetter,
    UnknownSchedule,
)
from command_bus.serialization.json_forms import json_form
from command_bus.serialization.models import located_problems, problems_of

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer."""


def encoded(value: Any) -> bytes:
    """Return a value as JSON; what JSON lacks as `json_form` says."""
    return to_json(json_form(value))


def answer(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, *, media_type: str = "application/json"
) -> Response:
    """Return an answer with JSON."""
    return Response(encoded(value), status, {**HEADERS, **headers} if headers else HEADERS, media_type)


PROBLEM_TYPE = "application/problem+json"
_STATUS: dict[type[CommandBusError], int] = {
    CommandRejected: 409,
    CommandCancelled: 409,
    IdempotencyConflict: 409,
    UniqueKeyTaken: 409,
    PayloadTooLarge: 413,
    InvalidCommand: 422,
    InvalidSettings: 400,
    UnknownCommand: 404,
    UnknownDeadLetter: 404,
    UnknownSchedule: 404,
    QueueFull: 503,
    PublishedInPart: 503,
    TransportUnavailable: 503,
    Unconfirmed: 503,
    BusClosed: 503,
    CommandExpired: 504,
    CommandTimeout: 504,
    CommandOutcomeError: 502,
    CallCycle: 502,
}
"""The status of each error; a subclass comes before its base. Any other error is internal: 500."""
_SERVER_AWAY = "the server of the bus does not answer"
_TOLD = (CommandRejected, CommandCancelled, CommandExpired, QueueFull)
"""Errors whose own message says nothing of what is behind the gateway, though their status may be 500 or more."""
_WORDS = {
    CommandTimeout: "the outcome is not known yet: ask for the command later",
    CommandFailed: "the handler failed, and its retries are used up",
    CommandOutcomeError: "the command was not carried out",
    CallCycle: "the command was not carried out",
    Unconfirmed: "too few replicas have confirmed it in time; with an Idempotency-Key asking again is safe",
    PublishedInPart: "some subscriptions have the event, others refused it: publish it again with this idempotency_key",
    TransportUnavailable: _SERVER_AWAY,
    BusClosed: _SERVER_AWAY,
}
_AFTER_OUTAGE = 5


class Problem(Exception):
    """An answer that says what went wrong.

    Args:
        status: HTTP status of the answer.
        code: Stable, in snake case.
        detail: What happened, and what to do about it.
        headers: Those that the answer gets besides; None: none.
        members: Further facts.
    """

    def __init__(self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members

    def facts(self) -> dict[str, Any]:
        """Return the body of the answer."""
        facts = {"title": HTTPStatus(self.status).phrase, "status": self.status, "code": self.code, "detail": self.detail}
        return {**facts, **self.members}

    def response(self) -> Response:
        """Return the answer."""
        return answer(self.facts(), self.status, self.headers, media_type=PROBLEM_TYPE)


def retry_later(status: int, code: str, detail: str, seconds: float, **members: Any) -> Problem:
    """Return a problem that is gone after some seconds."""
    return Problem(status, code, detail, headers={"Retry-After": str(max(1, math.ceil(seconds)))}, **members)


def problem_of(error: CommandBusError) -> Problem:
    """Return an error of the bus as a problem. What is behind the gateway is not named: hosts, types of exceptions, traces."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    if status < 500 or isinstance(error, _TOLD):
        detail = error.message or type(error).__name__
    else:
        detail = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), "the gateway could not do this")
    members = _members(error)
    if isinstance(error, QueueFull):
        return retry_later(status, error.code, detail, error.retry_after, **members)
    if status == 503:
        return retry_later(status, error.code, detail, _AFTER_OUTAGE, **members)
    return Problem(status, error.code, detail, **members)


def failed_fields(name: str, error: ValidationError, prefix: str = "") -> Problem:
    """Return what is wrong with fields, without their values."""
    errors = [{"field": prefix + place, "problem": reason} for place, reason in located_problems(error)]
    return Problem(422, "invalid_command", f"{name}: {problems_of(error)}", errors=errors)


_MEMBERS: tuple[tuple[type[CommandBusError], str], ...] = (
    (CommandRejected, "details"),
    (CommandOutcomeError, "command_id"),
    (IdempotencyConflict, "command_id"),
    (CommandFailed, "attempts"),
    (CommandTimeout, "state"),
    (QueueFull, "limit"),
    (UniqueKeyTaken, "other"),
    (PublishedInPart, "event_id"),
    (PublishedInPart, "subscriptions"),
    (TransportUnavailable, "outcome_unknown"),
)
"""Attributes of errors that are members of their problems, unless they are empty."""


def _members(error: CommandBusError) -> dict[str, Any]:
    found = {name: getattr(error, name) for kind, name in _MEMBERS if isinstance(error, kind)}
    if isinstance(error, PublishedInPart):
        found["refused"] = {name: problem_of(each).facts() for name, each in error.refused.items()}
    return {name: value for name, value in found.items() if value not in (None, "", {})}
