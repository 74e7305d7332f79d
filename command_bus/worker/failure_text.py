"""The text of an exception in a dead letter: type, text and frames, without what may be secret. It never costs the letter."""

from __future__ import annotations

import traceback

from pydantic import ValidationError

from command_bus.serialization.models import problems_of

__all__ = ["named", "text_of", "trace_of"]

_MAX_TRACEBACK = 16 * 1024


def named(error: BaseException) -> str:
    """Return the type of an exception, with its module where that says something."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception, capped. Pydantic's errors quote their input, which may be secret: of those, places and reasons."""
    try:
        text = problems_of(error) if isinstance(error, ValidationError) else str(error)
        return text[:4096].encode(errors="replace").decode()
    except BaseException:  # noqa: BLE001 - a broken __str__ must not cost the command its dead letter
        return f"(the text of this {type(error).__name__} cannot be read)"


def trace_of(error: BaseException) -> str:
    """Return the frames without locals or input values, the innermost last, capped."""
    try:
        frames = "".join(traceback.format_tb(error.__traceback__))
    except Exception:  # noqa: BLE001 - as above
        return ""
    return frames[-_MAX_TRACEBACK:]
