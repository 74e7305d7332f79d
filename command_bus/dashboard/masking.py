"""Payloads for people: plain JSON, with fields masked that are not everybody's business, and back."""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote, quote_plus

from command_bus.errors import InvalidCommand
from command_bus.messages.event import Publish
from command_bus.messages.policies import parts_of_delivery
from command_bus.serialization.json_forms import json_form, key_form
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.msgpack import unpack
from command_bus.spelling import several_names

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


MASK = "••••••"
_LINE = 2000
CROWDED = "(hidden: fields are masked, and there are too many values of theirs to look for them in it)"
LARGE = "(hidden: fields are masked, and its payload is too large to look for their values in a list: open the letter)"
HIDDEN = "(hidden: fields are masked, and without its payload their values cannot be found in it)"


class Masking:
    """Masks fields by their names, at any depth of a payload.

    Args:
        fields: Their names, in any case; `Charge.card` only of the command, or event, `Charge`.

    Raises:
        InvalidSettings: One is no name.
    """

    def __init__(self, fields: Collection[str] = ()) -> None:
        self._fields = frozenset(each.casefold() for each in several_names("mask", fields))

    @property
    def is_used(self) -> bool:
        """Whether any field is masked."""
        return bool(self._fields)

    def shown(self, name: str, payload: Mapping[str, Any] | None) -> str:
        """Return a payload as JSON, masked."""
        return "" if payload is None else json.dumps(self._plain(*_opened(name, payload)), ensure_ascii=False, indent=2)

    def line(self, name: str, payload: Mapping[str, Any] | None) -> str:
        """Return a payload as JSON in one line, masked, cut at 2,000 characters."""
        text = "" if payload is None else json.dumps(self._plain(*_opened(name, payload)), ensure_ascii=False)
        return text if len(text) <= _LINE else f"{text[:_LINE]}…"

    def text(self, name: str, payload: Mapping[str, Any] | None, text: str) -> str:
        """Return a text (an error, a traceback) without the values of masked fields: nothing of it if these are not known, or very many."""
        if not text or not self._fields:
            return text
        if payload is None:
            return HIDDEN
        values = list(islice(self._hidden(*_opened(name, payload)), MOST_VALUES + 1))
        is_long = sum(len(each) for each in values if isinstance(each, str | bytes)) > MOST_BYTES
        return CROWDED if is_long or len(values) > MOST_VALUES else without(text, values, MASK)

    def hides(self, field: str) -> bool:
        """Return whether a field of this name is masked, in any command."""
        return any(each.rpartition(".")[2] == field.casefold() for each in self._fields)

    def headers(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        """Return headers, or facts of a log, masked by the same names."""
        return {key: MASK if key.casefold() in self._fields else value for key, value in headers.items()}

    def edited(self, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        """Return a payload that was edited as JSON: what was not changed keeps its value, also what was masked.

        Raises:
            InvalidCommand: A mask stands where no value of before belongs, or where it is not clear which.
        """
        merged: dict[str, Any] = self._restored(parts_of_delivery(name)[0], before, after, "")
        return merged

    def _is_masked(self, name: str, field: str) -> bool:
        return field.casefold() in self._fields or f"{name}.{field}".casefold() in self._fields

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {
                key_form(key): MASK if self._is_masked(name, str(key)) else self._plain(name, each) for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._plain(name, each) for each in value]
        return json_form(value)

    def _restored(self, name: str, before: Any, after: Any, place: str) -> Any:
        """Return what was shown and given back, with the values of before where they belong."""
        if _text_of(self._plain(name, before)) == _text_of(after):
            return before
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            keys = {key_form(key): key for key in before}
            return {
                keys.get(text, text): before[keys[text]]
                if text in keys and self._is_masked(name, text) and value == MASK
                else self._restored(name, before.get(keys.get(text, text)), value, f"{place}.{text}" if place else text)
                for text, value in after.items()
            }
        if isinstance(before, list | tuple) and isinstance(after, list):
            shown: dict[str, list[int]] = {}
            for index, each in enumerate(before):
                shown.setdefault(_text_of(self._plain(name, each)), []).append(index)
            return [self._item(before, shown, each, f"{place}[{index}]") for index, each in enumerate(after)]
        _check_unmasked(after, place)
        return after

    def _item(self, before: Sequence[Any], shown: Mapping[str, list[int]], given: Any, place: str) -> Any:
        """Return an item of a list: that which was shown so, if it was one. Its place says nothing: others may have been removed or moved."""
        same = shown.get(_text_of(given), [])
        if len(same) == 1:
            return before[same[0]]
        _check_unmasked(given, place)
        return before[same[0]] if same else given

    def _hidden(self, name: str, value: Any, *, masked: bool = False) -> Iterator[Any]:
        """Yield masked values."""
        if isinstance(value, Mapping):
            for key, each in value.items():
                if masked:
                    yield from self._hidden(name, key, masked=True)
                yield from self._hidden(name, each, masked=masked or self._is_masked(name, str(key)))
        elif isinstance(value, list | tuple | set | frozenset | deque):
            for each in value:
                yield from self._hidden(name, each, masked=masked)
        elif masked:
            yield value


def _opened(name: str, payload: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name whose fields are masked, that of an event for its delivery, and the payload, in which no field is packed."""
    if name != Publish.spec().name:
        return parts_of_delivery(name)[0], payload
    try:
        fields = unpack(payload.get("payload", b""))
    except (Undecodable, TypeError):
        fields = MASK
    return str(payload.get("event")), {**payload, "payload": fields}


def _text_of(value: Any) -> str:
    """Return a value as JSON, to be compared: in Python `1 == True`, too."""
    return json.dumps(value, sort_keys=True)


def unknown_masks(fields: Iterable[str], schemas: Mapping[str, Any]) -> list[str]:
    """Return the names of fields to mask that no command has, given the schemas of commands by their names."""
    there = {
        name.casefold()
        for command, schema in schemas.items()
        for field in _fields_in(schema)
        for name in (field, f"{command}.{field}")
    }
    return [each for each in fields if each.casefold() not in there]


def _fields_in(schema: Any) -> Iterator[str]:
    """Yield the names of fields in a JSON Schema, at any depth."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        yield from properties if isinstance(properties, Mapping) else ()
        for each in schema.values():
            yield from _fields_in(each)
    elif isinstance(schema, Sequence) and not isinstance(schema, str):
        for each in schema:
            yield from _fields_in(each)


def _mask_in(value: Any, place: str) -> str:
    """Return where a mask stands in a value; empty: nowhere."""
    if isinstance(value, str):
        return (place or "the payload") if MASK in value else ""
    if isinstance(value, Mapping):
        return next((held for key, each in value.items() if (held := _mask_in(each, f"{place}.{key}"))), "")
    if isinstance(value, list):
        return next((held for index, each in enumerate(value) if (held := _mask_in(each, f"{place}[{index}]"))), "")
    return ""


def _check_unmasked(value: Any, place: str) -> None:
    """Check that no mask stands in a value.

    Raises:
        InvalidCommand: One does.
    """
    if held := _mask_in(value, place):
        raise InvalidCommand(
            f"{held} has {MASK}, which stands for a masked value, but not in its place: write the value there, or leave the item and the "
            "field that have it as they were"
        )
