"""Payloads for people: plain JSON, with fields masked that are not everybody's business, and back."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from command_bus.dashboard.masked_texts import MOST_BYTES, MOST_VALUES, without
from command_bus.errors import InvalidCommand
from command_bus.serialization.json_forms import json_form, key_form
from command_bus.spelling import several_names

MASK = "••••••"
CROWDED = "(hidden: fields are masked, and there are too many values of theirs to look for them in it)"
LARGE = "(hidden: fields are masked, and its payload is too large to look for their values in a list: open the letter)"
HIDDEN = "(hidden: fields are masked, and without its payload their values cannot be found in it)"


class Masking:
    """Masks fields by their names, at any depth of a payload.

    Args:
        fields: Their names, in any case; `Charge.card` only of the command `Charge`.

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
        return "" if payload is None else json.dumps(self._plain(name, payload), ensure_ascii=False, indent=2)

    def text(self, name: str, payload: Mapping[str, Any] | None, text: str) -> str:
        """Return a text (an error, a traceback) without the values of masked fields: nothing of it if these are not known, or very many."""
        if not text or not self._fields:
            return text
        if payload is None:
            return HIDDEN
        values = list(islice(self._hidden(name, payload), MOST_VALUES + 1))
        is_long = sum(len(each) for each in values if isinstance(each, str | bytes)) > MOST_BYTES
        return CROWDED if is_long or len(values) > MOST_VALUES else without(text, values, MASK)

    def headers(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        """Return headers, or facts of a log, masked by the same names."""
        return {key: MASK if key.casefold() in self._fields else value for key, value in headers.items()}

    def edited(self, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        """Return a payload that was edited as JSON: what was not changed keeps its value, also what was masked.

        Raises:
            InvalidCommand: A mask stands where no value of before belongs, or where it is not clear which.
        """
        merged: dict[str, Any] = self._restored(name, before, after, "")
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
        if _is_same(self._plain(name, before), after):
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
        if held := _mask_in(after, place):
            raise _not_restored(held)
        return after

    def _item(self, before: Sequence[Any], shown: Mapping[str, list[int]], given: Any, place: str) -> Any:
        """Return an item of a list: that which was shown so, if it was one. Its place says nothing: others may have been removed or moved."""
        same = shown.get(_text_of(given), [])
        if len(same) == 1:
            return before[same[0]]
        if held := _mask_in(given, place):
            raise _not_restored(held)
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


def _is_same(shown: Any, given: Any) -> bool:
    """Return whether two values are the same as JSON: in Python `1 == True`, too."""
    return _text_of(shown) == _text_of(given)


def _text_of(value: Any) -> str:
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


def _not_restored(place: str) -> InvalidCommand:
    return InvalidCommand(
        f"{place} has {MASK}, which stands for a masked value, but not in its place: write the value there, or leave the item and the "
        "field that have it as they were"
    )
