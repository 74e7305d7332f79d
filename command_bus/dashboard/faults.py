"""Errors as pages: what went wrong, and what to do."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from command_bus.dashboard.options import State
from command_bus.dashboard.visit import root_of, theme_of
from command_bus.dashboard.words import render
from command_bus.errors import (
    CommandBusError,
    InvalidCommand,
    InvalidSettings,
    TransportUnavailable,
    UnknownCommand,
    UnknownDeadLetter,
    UnknownLimit,
    UnknownSchedule,
)

_UNKNOWN = (UnknownCommand, UnknownDeadLetter, UnknownLimit, UnknownSchedule)
_WORDS = {400: "This cannot be read", 403: "Not allowed", 404: "Not found", 503: "The server does not answer"}
_log = logging.getLogger("command_bus.dashboard")


def status_of(error: CommandBusError) -> int:
    """Return the status of an answer that an error leads to."""
    if isinstance(error, _UNKNOWN):
        return 404
    if isinstance(error, TransportUnavailable):
        return 503
    return 400 if isinstance(error, InvalidSettings | InvalidCommand) else 409


async def answer_fault(state: State, request: Request, error: Exception) -> Response:
    """Return the page of an error. What is not ours is logged, and not shown."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, error.detail, dict(error.headers or {})
    elif isinstance(error, CommandBusError):
        status, message = status_of(error), error.message or type(error).__name__
    else:
        _log.error("a page failed", exc_info=error)
        status, message = 500, "This page failed. The log of the dashboard says why."
    if status == 503:
        headers.setdefault("Retry-After", "5")
    text = render(
        "fault.html",
        status=status,
        words=_WORDS.get(status, "This did not work"),
        message=message,
        root=root_of(request),
        theme=theme_of(request),
        title_of_all=state.options.title,
        namespace=state.bus.settings.namespace,
    )
    return HTMLResponse(text, status_code=status, headers=headers)
