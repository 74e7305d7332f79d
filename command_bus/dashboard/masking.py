"""Payloads for people: plain JSON, with fields masked that are not everybody's business, and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

__all__ = ["HIDDEN", "MASK", "Masking"]

MASK = "••••••"
HIDDEN = "(hidden: fields are masked, and without its payload their values cannot be found in it)"
_SHORTEST = 4
"""Characters of a masked value that is taken out of other texts, too: a shorter one would be found everywhere."""


class Masking:
    """Masks fields by their names, at any depth of a payload.

    Args:
        fields: Their names, in any case; `Charge.card` only of the command `Charge`.
    """

    def __init__(self, fields: Collection[str] = ()) -> None:
        self._fields = frozenset(each.casefold() for each in fields)

    @property
    def is_used(self) -> bool:
        """Whether any field is masked."""
        return bool(self._fields)

    def shown(self, name: str, payload: Mapping[str, Any] | None) -> str:
        """Return a payload as JSON, masked."""
        return "" if payload is None else json.dumps(self._plain(name, payload), ensure_ascii=False, indent=2)

    def text(self, name: str, payload: Mapping[str, Any] | None, text: str) -> str:
        """Return a text (an error, a traceback) without the values of masked fields: nothing of it if these are not known."""
        if self._fields and payload is None:
            return HIDDEN if text else ""
        for value in sorted(set(self._hidden(name, payload)), key=len, reverse=True):
            text = text.replace(value, MASK)
        return text

    def headers(self, headers: Mapping[str, Any]) -> dict[str, Any]:
        """Return headers, or facts of a log, masked by the same names."""
        return {key: MASK if key.casefold() in self._fields else value for key, value in headers.items()}

    def edited(self, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        """Return a payload that was edited as JSON: what was not changed keeps its value, also what was masked."""
        merged: dict[str, Any] = self._restored(name, before, after)
        return merged

    def _is_masked(self, name: str, field: str) -> bool:
        return field.casefold() in self._fields or f"{name}.{field}".casefold() in self._fields

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): MASK if self._is_masked(name, str(key)) else self._plain(name, each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(name, each) for each in value]
        return _as_json(value)

    def _restored(self, name: str, before: Any, after: Any) -> Any:
        if self._plain(name, before) == after:
            return before
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            return {
                key: before[key]
                if key in before and self._is_masked(name, key) and value == MASK
                else self._restored(name, before.get(key), value)
                for key, value in after.items()
            }
        if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            return [self._restored(name, *pair) for pair in zip(before, after, strict=True)]
        return after

    def _hidden(self, name: str, value: Any, *, masked: bool = False) -> Iterator[str]:
        """Yield the texts of masked values."""
        if isinstance(value, Mapping):
            for key, each in value.items():
                yield from self._hidden(name, each, masked=masked or self._is_masked(name, str(key)))
        elif isinstance(value, list | tuple):
            for each in value:
                yield from self._hidden(name, each, masked=masked)
        elif masked and len(text := str(value)) >= _SHORTEST:
            yield text


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it: what JSON lacks as text."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Sequence | set | frozenset):
        return [_as_json(each) for each in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
