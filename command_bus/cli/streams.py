"""Standard streams that take any text: what their encoding lacks is written as JSON's escapes, so that JSON stays JSON."""

from __future__ import annotations

import codecs
import io
import sys

_ESCAPES = "command_bus.json_escapes"


def take_any_text() -> None:
    """Make standard output and standard error escape what they cannot encode, instead of failing in the middle of a table."""
    codecs.register_error(_ESCAPES, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)


def json_escape(letter: str) -> str:
    """Return a character as JSON's escapes."""
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(json_escape, error.object[error.start : error.end])), error.end
