"""`answer`: data as JSON, with the headers that every answer has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from command_bus.serialization.json_forms import json_form

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
