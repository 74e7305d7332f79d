"""`answer`: data as JSON, with the headers that every answer has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

__all__ = ["HEADERS", "answer", "encoded"]

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer."""


def encoded(value: Any) -> bytes:
    """Return a value as JSON. What JSON lacks is written as pydantic would write it, bytes that are no text as base64, the rest as text."""
    try:
        return to_json(value, inf_nan_mode="null", fallback=str)
    except ValueError:
        return to_json(value, inf_nan_mode="null", bytes_mode="base64", fallback=str)


def answer(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, *, media_type: str = "application/json"
) -> Response:
    """Return an answer with JSON."""
    return Response(encoded(value), status, {**HEADERS, **headers} if headers else HEADERS, media_type)
