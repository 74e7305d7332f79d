"""Values that must not be shown, found in texts: an error quotes them as `str`, `repr`, JSON or base64 have them, or cuts them off."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from command_bus.serialization.json_forms import json_form

MOST_VALUES = 200
MOST_BYTES = 64 * 1024
"""Values that are looked for in one text, and their size: a hostile payload has 80,000, and each takes a while. With more nothing is shown."""
_SHORT = 4
"""Characters from which on a value is found within a word, too. A shorter one, found everywhere, is looked for as a word of its own."""


def without(text: str, values: Iterable[Any], mask: str) -> str:
    """Return a text with a mask in the place of values, and of one that the end of the text cuts off."""
    forms = {form for value in values for form in _forms(value) if form}
    there = sorted((form for form in forms if form in text), key=len, reverse=True)
    if there:
        text = re.sub("|".join(map(_pattern, there)), lambda _: mask, text)
    cut = min((at for form in forms if (at := _cut_off(text, form)) is not None), default=None)
    return text if cut is None else text[:cut] + mask


def _forms(value: Any) -> Iterator[str]:
    """Yield the forms in which a text may have a value. That there is none is no secret."""
    if value is None:
        return
    if isinstance(value, bool):
        yield from (str(value), str(value).lower())
    elif isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        yield from (repr(raw)[2:-1], raw.hex(), *_encoded(raw))
        yield from _text_forms(raw.decode(errors="replace"))
    elif isinstance(value, str):
        yield from _text_forms(value)
        yield from _encoded(value.encode(errors="replace"))
    else:
        form = json_form(value)  # a time as JSON has it, and as `repr` does
        yield from (str(value), repr(value), *([value.isoformat()] if hasattr(value, "isoformat") else []))
        yield from (form,) if isinstance(form, str) else ()


def _text_forms(text: str) -> Iterator[str]:
    safe = text.encode(errors="replace").decode()
    yield from (text, text.strip(), safe, repr(text)[1:-1], ascii(text)[1:-1])
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    yield from (quote(safe), quote(safe, safe=""), quote_plus(safe))


def _encoded(raw: bytes) -> Iterator[str]:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(raw).decode()
        yield from (text, text.rstrip("="))


def _pattern(form: str) -> str:
    found = re.escape(form)
    return found if len(form) >= _SHORT and form not in ("True", "true", "False", "false") else rf"(?<!\w){found}(?!\w)"


def _cut_off(text: str, form: str) -> int | None:
    """Return where the beginning of a form stands at the end of a text, if it does: errors are cut at some length."""
    if len(form) <= _SHORT:
        return None
    at = text.find(form[:_SHORT], max(len(text) - len(form) + 1, 0))
    while at >= 0:
        if form.startswith(text[at:]):
            return at
        at = text.find(form[:_SHORT], at + 1)
    return None
