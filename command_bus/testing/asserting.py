"""Assertions whose failure says what was there instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from command_bus.messages import Message
from command_bus.testing.records import Sent

__all__ = ["dispatched", "not_dispatched"]

M = TypeVar("M", bound=Message[Any])


def dispatched(sent: Sequence[Sent], command: type[M], count: int | None, fields: dict[str, Any]) -> M:
    """See `TestBus.assert_dispatched`."""
    found = _matching(sent, command, fields)
    if not found or (count is not None and len(found) != count):
        times = "" if count is None else f", {count} times"
        raise AssertionError(f"expected {_named(command, fields)}{times}, found {len(found)}; {_listed(sent)}")
    return found[-1]


def not_dispatched(sent: Sequence[Sent], command: type[Message[Any]], fields: dict[str, Any]) -> None:
    """See `TestBus.assert_not_dispatched`."""
    if found := _matching(sent, command, fields):
        raise AssertionError(f"expected no {_named(command, fields)}, found {found[0]!r}")


def _matching(sent: Sequence[Sent], command: type[M], fields: dict[str, Any]) -> list[M]:
    unknown = fields.keys() - command.model_fields.keys()
    if unknown:
        raise TypeError(f"{command.__name__} has no field {', '.join(sorted(unknown))}")
    messages = [note.command for note in sent if isinstance(note.command, command)]
    return [message for message in messages if all(getattr(message, name) == value for name, value in fields.items())]


def _named(command: type[Message[Any]], fields: dict[str, Any]) -> str:
    return f"{command.__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


def _listed(sent: Sequence[Sent]) -> str:
    if not sent:
        return "nothing was sent"
    return "sent were:" + "".join(f"\n  {note.command!r}" if note.command else f"\n  {note.name} (raw)" for note in sent[-20:])
