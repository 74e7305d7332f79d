"""The text of an exception in a dead letter: type, text and frames, without what may be secret. It never costs the letter."""

from __future__ import annotations

import traceback

from pydantic import ValidationError

from command_bus.messages.error_groups import leaves
from command_bus.serialization.models import problems_of

_MAX_TRACEBACK = 16 * 1024
_MOST_CAUSES = 20


def named(error: BaseException) -> str:
    """Return the type of an exception, with its module where that says something."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception, capped; of a group, also its causes.

    Pydantic's errors quote their input, which may be secret: of those, places and reasons.
    """
    try:
        text = problems_of(error) if isinstance(error, ValidationError) else str(error)
        if isinstance(error, BaseExceptionGroup):
            text += "".join(f"; {named(each)}: {text_of(each)}" for each in leaves(error)[:_MOST_CAUSES])
        return text[:4096].encode(errors="replace").decode()
    except BaseException:  # noqa: BLE001 - a broken __str__ must not cost the command its dead letter
        return f"(the text of this {type(error).__name__} cannot be read)"


def trace_of(error: BaseException) -> str:
    """Return the frames without locals or input values, the innermost last, capped."""
    try:
        frames = "".join(traceback.format_tb(error.__traceback__))
        if isinstance(error, BaseExceptionGroup):
            for each in leaves(error)[:_MOST_CAUSES]:
                frames += f"{named(each)}:\n" + "".join(traceback.format_tb(each.__traceback__))
    except Exception:  # noqa: BLE001 - as above
        return ""
    return frames[-_MAX_TRACEBACK:]
