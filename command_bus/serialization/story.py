"""The story of a durable command: the fields of its side record that tell what it did, kept with its end in the history.

    {"f": {field: value or nil, …}, "c"?: fields left out, "b"?: [mailbox, command id]}

The fields are named as in the side record (`lua/shared/arrive.lua`). A value that had no room is nil. `b` is there if the command was encrypted:
its values are still what the cipher made of them, bound to that place. What undoes is there once it was called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from command_bus.errors import BadResult, CommandBusError
from command_bus.serialization.equality import DIGEST
from command_bus.serialization.limits import DEFAULT_LIMITS, PayloadLimits, Undecodable
from command_bus.serialization.models import reply_codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.protection import Protection
from command_bus.serialization.reply import Completed, raise_or_value, unpack_reply

MOST_STORY_BYTES = 64 * 1024
"""Bytes of the fields of a story, about: names come first, then values as far as they fit."""
_EACH = 8
_TOLD = frozenset({"s", "x", "c", "o", "n", "t", "f", "g", "gr", "z", "cancel"})
StepKind: TypeAlias = Literal[
    "step", "call", "undo", "sleep", "pause", "limit", "wait", "signal", "first", "cut_off", "cancel", "left_out"
]


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One thing that a durable command did, or that came to it.

    Attributes:
        kind: `step`, `call`, `undo` (a call that undoes), `sleep`, `pause` (behind a try of a step), `limit` (of time), `wait` (for a signal, with a
            limit), `signal`, `first`, `cut_off`, `cancel` (the wish that it ends), or `left_out` (how many fields had no room).
        name: Its name with its number or key: `charge#1`, `Pay@account:a-1#1`.
        result: What came of it, as plain values.
        error: How it failed; None if it did not.
        is_open: Whether no end of it is stored, as of a call that its handler did not wait for.
        command_id: The command that was called.
        until_ms: When its time is over; 0 without one.
        cut: Whether its value had no room.
        encrypted: Whether its value is encrypted, and cannot be read here.
    """

    kind: StepKind
    name: str
    result: Any = None
    error: str | None = None
    is_open: bool = False
    command_id: str | None = None
    until_ms: int = 0
    cut: bool = False
    encrypted: bool = False


def packed_story(fields: Mapping[str, bytes], order: Iterable[str], sealed_at: tuple[str, str] | None) -> dict[str, Any]:
    """Return what is kept of a side record.

    Args:
        fields: The side record.
        order: Names of what the last run did, in this order. The rest stands behind it by name, signals that no wait took behind that, and what
            undoes last.
        sealed_at: Mailbox and command id, if values are encrypted.
    """
    place = {name: number for number, name in enumerate(order)}

    def rank(field: str) -> tuple[int, int, str, int, str]:
        """Return what a field is sorted by. A hash of a server has no order; and others may send more signals than a story has room for."""
        subject, (head, _, number) = _subject(field), field.rpartition("#")
        late = 2 if subject.startswith("u:") else int(field[0] == "g" and subject not in place)
        return late, place.get(subject, len(place)), head, len(number), number

    told = sorted((field for field in fields if field.partition(":")[0] in _TOLD), key=rank)
    left, kept = MOST_STORY_BYTES, dict[str, bytes | None]()
    for field in told:
        left -= len(field) + _EACH
        if left < 0:
            break
        kept[field] = None
    for field in kept:
        if len(fields[field]) <= left:
            kept[field], left = fields[field], left - len(fields[field])
    story: dict[str, Any] = {"f": kept}
    if len(kept) < len(told):
        story["c"] = len(told) - len(kept)
    return story if sealed_at is None else story | {"b": list(sealed_at)}


def story_of(
    record: bytes | OutcomeRecord, protection: Protection | None = None, limits: PayloadLimits = DEFAULT_LIMITS
) -> list[StoryStep] | None:
    """Return what a durable command did, by the record of its end; None if no story is kept of it.

    Args:
        record: As it stands in the history.
        protection: Decrypts; None: what is encrypted is not shown.
        limits: Bounds of values.

    Raises:
        Undecodable: It is no record, or one of a later version.
    """
    story = (OutcomeRecord.unpack(record) if isinstance(record, bytes) else record).story
    if story is None:
        return None
    reader, steps = _Reader(_sealed_at(story.get("b")), protection, limits), dict[str, StoryStep]()
    for field, value in story["f"].items():
        if type(field) is str and (value is None or type(value) is bytes):
            key, kind, name = _place(field)
            before = steps.get(key) or StoryStep(kind, unquote(name), is_open=kind in ("call", "undo"))
            steps[key] = replace(before, cut=True) if value is None else reader.read(before, field, value)
    if type(more := story.get("c")) is int:
        steps["…"] = StoryStep("left_out", f"{more:,} fields", cut=True)
    return list(steps.values())


def _sealed_at(found: Any) -> tuple[str, str] | None:
    """Return the place to which encrypted values are bound; None if none are."""
    match found:
        case [str(mailbox), str(command_id)]:
            return mailbox, command_id
        case _:
            return None


def _subject(field: str) -> str:
    """Return the name of what a field is of, as the run of a handler numbers it."""
    letter, _, what = field.partition(":")
    if letter == "x":
        return f"s:{what.rpartition('~')[0].rpartition('~')[0]}"
    if letter == "z" or what.startswith("s:"):
        return what.rpartition("~")[0]
    if letter in ("g", "gr"):
        return f"signal:{what}"
    return field if letter in ("s", "f") or what.startswith(("timeout#", "timeout=")) else what


_KINDS: Mapping[str, StepKind] = {
    "s": "step", "x": "step", "f": "first", "g": "signal", "gr": "signal", "z": "cut_off", "cancel": "cancel"
}  # fmt: skip
_TIMES: Mapping[str, StepKind] = {
    "s:": "pause", "sleep#": "sleep", "sleep=": "sleep", "timeout#": "limit", "timeout=": "limit", "signal:": "wait"
}  # fmt: skip


def _place(field: str) -> tuple[str, StepKind, str]:
    """Return the step that a field belongs to: a key, kind and name. The fields of one call belong together."""
    letter, _, what = field.partition(":")
    if letter == "x":
        return field, "step", what.rpartition("~")[0].rpartition("~")[0]
    if letter in _KINDS:
        return f"{letter[0]}:{what}", _KINDS[letter], what.removeprefix("s:")
    for begin, kind in _TIMES.items():
        if what.startswith(begin) and (letter == "t" or kind == "wait"):
            return f"t:{what}", kind, what.removeprefix("s:").removeprefix("signal:")
    if what.startswith("u:"):
        return f"c:{what}", "undo", what[2:].removeprefix("~").removeprefix("undo%3A")
    return f"c:{what}", "call", what


class _Reader:
    """Reads the values of a story.

    Args:
        place: Mailbox and command id to which encrypted values are bound; None if nothing is encrypted.
        protection: Decrypts, or None.
        limits: Bounds of values.
    """

    def __init__(self, place: tuple[str, str] | None, protection: Protection | None, limits: PayloadLimits) -> None:
        self._place, self._limits = place, limits
        self._protection = None if protection is None or protection.cipher is None else protection

    def read(self, step: StoryStep, field: str, value: bytes) -> StoryStep:
        """Return the step with one more of its fields."""
        letter = field.partition(":")[0]
        try:
            match letter:
                case "s":
                    return replace(step, result=self._plain(field, value[DIGEST:]))
                case "x":
                    return replace(step, error=_error(self._plain(field, value[DIGEST:])))
                case "g":
                    return replace(step, result=self._plain(field.partition("#")[0], value))
                case "c":
                    return replace(step, command_id=_text(value[DIGEST:]).partition("|")[0])
                case "o":
                    return self._outcome(replace(step, is_open=False), value)
                case "t":
                    return replace(step, until_ms=int(value))
                case _ if letter in _FAILED:
                    return replace(step, is_open=False, error=_FAILED[letter] + _text(value if letter == "z" else b""))
                case _:
                    return replace(step, result=_text(value))
        except _SealedError:
            return replace(step, encrypted=True, is_open=False)
        except (CommandBusError, Undecodable, ValueError, TypeError) as error:
            return replace(step, error=f"it cannot be read: {error}", is_open=False)

    def _plain(self, name: str, data: bytes) -> Any:
        if self._place is None:
            return unpack(data, self._limits)
        if self._protection is None:
            raise _SealedError
        try:
            return unpack(self._protection.unsealed(*self._place, name, data), self._limits)
        except BadResult:
            raise _SealedError from None

    def _outcome(self, step: StoryStep, value: bytes) -> StoryStep:
        """Return a call with what came of it, which may be no more than its beginning; or a wait whose time was over."""
        if value in _GONE or value.startswith(b"!"):
            return replace(step, error=_GONE.get(value), cut=value.startswith(b"!"))
        command_id, outcome = unpack_reply(value, self._limits)
        if isinstance(outcome, Completed) and outcome.encrypted:
            if self._protection is None:
                raise _SealedError
            outcome = self._protection.result(command_id, outcome)
        try:
            return replace(step, result=raise_or_value(outcome, reply_codec_for(Any), command_id, self._limits))
        except CommandBusError as error:
            return replace(step, error=str(error))


_FAILED = {"n": "it had not ended in time", "gr": "left out: its value does not fit", "z": "cut off by "}
_GONE = {b"": "it has not come in time", b"-": "taken out of line before it ran"}


class _SealedError(Exception):
    """A value is encrypted, and cannot be read here."""


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _error(form: Any) -> str:
    """Return a stored error as its type and text (see `durable/step_failures.py`)."""
    _module, name, args, *_ = form
    return f"{name}: {', '.join(map(str, args))}" if args else str(name)
