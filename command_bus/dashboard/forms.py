"""Forms: their bodies are small, come soon, and are read as text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

_MOST_BYTES = 2 * 1024 * 1024
_MOST_FIELDS = 100
_WITHIN = 10.0


class Fields(Mapping[str, str]):
    """The fields of a form or of an address; of several with one name the last."""

    def __init__(self, pairs: list[tuple[str, str]] | Mapping[str, str]) -> None:
        self._values = {name: value.replace("\r\n", "\n") for name, value in dict(pairs).items()}

    def __getitem__(self, name: str) -> str:
        """Return the value of a field; empty if it was not sent."""
        return self._values.get(name, "")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that were sent."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return how many were sent."""
        return len(self._values)


async def read_form(request: Request) -> Fields:
    """Return the fields of a form.

    Raises:
        HTTPException: It is no form, is too large, or does not come in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "a form is expected")
    raw = bytearray()
    try:
        async with asyncio.timeout(_WITHIN):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > _MOST_BYTES:
                    raise HTTPException(413, f"the form has more than {_MOST_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, "the form did not arrive in time") from None
    except ClientDisconnect:
        raise HTTPException(400, "the form was broken off") from None
    try:
        return Fields(parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"))
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None
