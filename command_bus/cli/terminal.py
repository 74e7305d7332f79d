"""All that the program prints goes through here, and nothing in it is obeyed by a terminal.

Names, ids and error texts come from whoever sends commands. What a terminal would act on, or show in another order, is escaped: control characters
(ESC, and U+0080 to U+009F, which some terminals take for it), marks that change the direction of writing, what has no width, half a surrogate pair.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import typer

from command_bus.cli import PROGRAM

__all__ = ["Shown", "confirmed", "escaped", "escaped_json", "print_error", "say", "shown"]

_TWO_STOPS = re.compile(r"(?<=[^\s./])\.\.(?=\s|$)")  # not an ellipsis, nor a folder


class Shown(str):
    """Text in which nothing is left to be escaped; it may have several lines, and styles of this program's own."""

    __slots__ = ()


def say(text: str = "", *, newline: bool = True, aside: bool = False) -> None:
    """Print to standard output, or aside to standard error: `Shown` as it is, any other text as one line."""
    typer.echo(_line(text), nl=newline, err=aside)


def print_error(message: str) -> None:
    """Print one line for people, to standard error. A sentence of a library's may end within ours: its full stop is not doubled."""
    text = _TWO_STOPS.sub(".", " ".join(message.split()))
    print(f"{PROGRAM}: {_line(text)}", file=sys.stderr)  # noqa: T201 - a program's answer


def confirmed(question: str) -> bool:
    """Ask whoever sits there."""
    return typer.confirm(_line(question))


def escaped(text: str, *, kept: str = "") -> Shown:
    """Return the text with what cannot be printed as Python would write it, but for the characters that are to be kept."""
    if text.isprintable():
        return Shown(text)
    return Shown("".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text))


def escaped_json(text: str) -> Shown:
    """Return JSON with what cannot be printed as JSON would write it: to a reader of JSON it is the same."""
    return Shown("".join(c if c.isprintable() or c == "\n" else _in_json(c) for c in text))


def shown(value: Any) -> Shown:
    """Return a value for people: numbers with separators, None as a dash, control characters escaped; lines are kept."""
    if value is None or value == "":
        return Shown("-")
    if isinstance(value, bool):
        return Shown("yes" if value else "no")
    return Shown(f"{value:,}") if isinstance(value, int) else escaped(str(value), kept="\n")


def _line(text: str) -> Shown:
    return text if isinstance(text, Shown) else escaped(text)


def _in_json(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
