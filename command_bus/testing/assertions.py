"""Assertions on what a `TestBus` recorded; a failure lists what was recorded instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from command_bus.errors import Reject
from command_bus.messages.message import Message
from command_bus.messages.snooze import Snooze
from command_bus.testing.records import Handled, Recorder, Sent

M = TypeVar("M", bound=Message[Any])
R = TypeVar("R")
_WHATEVER = object()
_SHOWN = 20


class Noted:
    """Sent messages, attempts and replies of a test bus.

    Args:
        recorder: Has the records.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def sent(self) -> list[Sent]:
        """All sent messages, with ids, headers and delays; those of handlers that use this bus too."""
        return self._recorder.sent

    @property
    def dispatched(self) -> list[Message[Any]]:
        """The messages of `sent`, in order."""
        return [sent.command for sent in self.sent if sent.command is not None]

    @property
    def published(self) -> list[Sent]:
        """All events that were published, by the test or by handlers, whether or not a subscription was for them."""
        return [*self._recorder.published.values()]

    @property
    def handled(self) -> list[Handled]:
        """Every attempt that ended, with what it returned or raised."""
        return self._recorder.handled

    @property
    def replies(self) -> list[Any]:
        """Replies of settled commands, in order: values, and `Reject` errors."""
        return [note.value if note.error is None else note.error for note in self.handled if note.replied]

    def assert_dispatched(self, command: type[M], *, count: int | None = None, **fields: Any) -> M:
        """Return the last sent message of this type with these fields.

        Raises:
            AssertionError: There is none (or not `count`); the message lists what was sent.
        """
        matches = _matcher(command, fields)
        found = [message for message in self.dispatched if isinstance(message, command) and matches(message)]
        _expect(found, count, _named(command, fields), self._listed_as_sent)
        return found[-1]

    def assert_not_dispatched(self, command: type[Message[Any]], **fields: Any) -> None:
        """Check that no message of this type with these fields was sent.

        Raises:
            AssertionError: There is one.
        """
        matches = _matcher(command, fields)
        if found := [message for message in self.dispatched if matches(message)]:
            raise AssertionError(f"expected no {_named(command, fields)}, found {found[0]!r}")

    def assert_replied(
        self, command: type[Message[R]], reply: object = _WHATEVER, /, *, count: int | None = None, **fields: Any
    ) -> R:
        """Return the last reply to a command of this type with these fields; a refusal is no reply.

        Args:
            command: Type of the command.
            reply: Only replies that are equal to this.
            count: Expected number of replies.
            **fields: Those of the command.

        Raises:
            AssertionError: There is none (or not `count`); the message lists the handled commands with their outcomes.
        """
        replied = [note for note in self._settled(command, fields) if note.error is None]
        found = [note for note in replied if reply is _WHATEVER or note.value == reply]
        what = f"{_named(command, fields)} replied{'' if reply is _WHATEVER else f' with {reply!r}'}"
        _expect(found, count, what, self._listed_as_handled)
        value: R = found[-1].value
        return value

    def assert_rejected(
        self, command: type[Message[Any]], code: str | None = None, /, *, count: int | None = None, **fields: Any
    ) -> Reject:
        """Return the last refusal of a command of this type with these fields.

        Args:
            command: Type of the command.
            code: Only refusals with this code.
            count: Expected number of refusals.
            **fields: Those of the command.

        Raises:
            AssertionError: There is none (or not `count`); the message lists the handled commands with their outcomes.
        """
        refusals = [note.error for note in self._settled(command, fields) if isinstance(note.error, Reject)]
        found = [refusal for refusal in refusals if code is None or refusal.code == code]
        what = f"{_named(command, fields)} rejected{'' if code is None else f' with {code!r}'}"
        _expect(found, count, what, self._listed_as_handled)
        return found[-1]

    def _settled(self, command: type[Message[Any]], fields: dict[str, Any]) -> list[Handled]:
        """Return the attempts that settled a command of this type with these fields, with a reply or a refusal."""
        matches = _matcher(command, fields)
        return [note for note in self.handled if note.replied and matches(note.command)]

    def _listed_as_sent(self) -> str:
        return _listed("sent", [f"{note.command!r}" if note.command else f"{note.name} (raw)" for note in self.sent])

    def _listed_as_handled(self) -> str:
        return _listed("handled", [f"{note.command!r}: {_outcome(note)}" for note in self.handled])


def _matcher(command: type[Message[Any]], fields: dict[str, Any]) -> Callable[[object], bool]:
    """Return a function that checks whether an object is a message of this type with these fields.

    Raises:
        TypeError: The type has no such field.
    """
    unknown = fields.keys() - command.model_fields.keys()
    if unknown:
        raise TypeError(f"{command.__name__} has no field {', '.join(sorted(unknown))}")

    def matches(message: object) -> bool:
        return isinstance(message, command) and all(getattr(message, name) == value for name, value in fields.items())

    return matches


def _expect(found: Sequence[object], count: int | None, what: str, listed: Callable[[], str]) -> None:
    if not found or (count is not None and len(found) != count):
        times = "" if count is None else f", {count} times"
        raise AssertionError(f"expected {what}{times}, found {len(found)}; {listed()}")


def _named(command: type[Message[Any]], fields: dict[str, Any]) -> str:
    return f"{command.__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


def _outcome(note: Handled) -> str:
    if note.lost:
        return "lost in a crash"
    if isinstance(note.error, Reject):
        return f"rejected with {note.error.code!r}: {note.error.message}"
    if isinstance(note.error, Snooze):
        return f"put off {note.error}"
    return f"replied {note.value!r}" if note.error is None else f"raised {note.error!r}"


def _listed(how: str, lines: Sequence[str]) -> str:
    return f"{how} were:" + "".join(f"\n  {line}" for line in lines[-_SHOWN:]) if lines else f"nothing was {how}"
