"""The names of fields in a side record. `lua/shared/arrive.lua` lists them."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

from command_bus.errors import BadStep
from command_bus.serialization.limits import PayloadLimits
from command_bus.spelling import shown
from command_bus.transport.mailboxes import encoded
from command_bus.transport.ports.durable import Note

CANCEL = "cancel"
"""The wish that the command ends."""
ENDING = "k"
"""The end of the command, once it is compensated."""
EPOCH = "e"
"""The message id that it had first, once its dead letter was replayed."""
ROOM = "b"
"""How many bytes outcomes of calls may still have, besides small ones."""
CALL = "c:"
"""The prefix of the fields of calls."""
FAILURE = "x:"
"""The prefix of the fields of errors of steps."""
MESSAGE = "m"
"""The message id of the command that the record is of."""
UNDO = "u:"
"""The prefix of the fields of commands that undo something."""
_NAME = re.compile(r"[!-~]{1,200}")
_LONG = 200


def checked_name(what: str, name: object) -> str:
    """Return the name of a step or a signal, or a key.

    Raises:
        BadStep: Not 1 to 200 printable ASCII characters without a space.
    """
    checked = _encoded_name(str.__str__(name)) if isinstance(name, str) else None  # equal texts of a subclass may differ
    if checked is None:
        raise BadStep(f"the {what} {shown(name)}: 1 to 200 printable ASCII characters without a space")
    return checked


@lru_cache(maxsize=4096)
def _encoded_name(name: str) -> str | None:
    return encoded(name) if _NAME.fullmatch(name) else None


def call_field(call: str) -> str:
    """Return the field of a call: what was called."""
    return f"{CALL}{call}"


def outcome_field(what: str) -> str:
    """Return the field of what came of a call, a signal or a time limit."""
    return f"o:{what}"


def late_field(call: str) -> str:
    """Return the field of a call that its handler waits for no longer. What comes of it has a field of its own: it may still run."""
    return f"n:{call}"


def signal_field(name: str, number: int) -> str:
    """Return the field of the nth signal of a name."""
    return f"g:{name}#{number}"


def over_field(failure: str) -> str:
    """Return the field that says that the error of a step counts no longer, whose field is given."""
    return f"y{failure[1:]}"


def refused_field(signal: str) -> str:
    """Return the field that says that no wait takes a signal, whose field is given."""
    return f"gr{signal[1:]}"


class Names:
    """Numbers what one run of a handler does under the same name.

    Attributes:
        used: The names that it gave, in this order.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._makers: dict[str, weakref.ref[asyncio.Task[Any]]] = {}
        self.used: list[str] = []

    def numbered(self, name: str, key: str | None = None) -> str:
        """Return a name with its key, or with the number of its use in this run, from 1.

        Raises:
            BadStep: The key cannot be one; or there is none, and another task has used the name: who is first would decide who has which number.
        """
        if key is not None:
            self.used.append(keyed := f"{name}={checked_name('key', key)}")
            return keyed
        task = asyncio.current_task(self._loop)
        if task is not None and self._makers.setdefault(name, weakref.ref(task))() is not task:
            raise BadStep(
                f"two tasks of the handler do {name!r}, and their numbers would depend on which is faster. Give each a key=, or write "
                "`context.…` in the handler itself and await what it returns in the tasks; of signals, wait in one task or give them two names"
            )
        self._counts[name] += 1
        self.used.append(numbered := f"{name}#{self._counts[name]}")
        return numbered

    def step(self, name: str, key: str | None) -> str:
        """Return the field of a step.

        Raises:
            BadStep: Its name or key cannot be one, or as `numbered`.
        """
        return self.numbered(f"s:{checked_name('name of a step', name)}", key)

    def call(self, name: str, entity_type: str | None, entity_id: str | None, key: str | None) -> str:
        """Return the name of a call: the command's wire name, its entity and a number or key.

        Raises:
            BadStep: As `numbered`.
        """
        return self.numbered(_target(name, entity_type, entity_id), key)

    def undo(self, name: str, entity_type: str | None, entity_id: str | None, key: str | None) -> str:
        """Return the field of a command that undoes something, and was named by itself.

        Raises:
            BadStep: As `numbered`.
        """
        return f"{UNDO}{self.numbered(_target(f'undo:{name}', entity_type, entity_id), key)}"


def undo_field(call: str) -> str:
    """Return the field of the command that undoes a call."""
    return f"{UNDO}~{call}"


def _target(name: str, entity_type: str | None, entity_id: str | None) -> str:
    if entity_type is None or entity_id is None:
        return encoded(name)
    place = encoded(entity_id)
    if len(place) > _LONG:
        place = f"~{sha256(entity_id.encode()).hexdigest()}"
    return f"{encoded(name)}@{entity_type}:{place}"


MOST_FIELDS = 10_000
"""Most fields of a side record besides signals, which have a limit of their own: senders must not use up what the handler may store."""
_SIGNALS = "g"
"""With which the names of fields of signals begin."""
PAYLOADS = 16
"""Most bytes of a side record, in payloads of the largest size."""


class RecordSize:
    """The size of a side record.

    Attributes:
        most_bytes: Bound of its bytes, those of the outcomes of calls in it included.

    Args:
        fields: The record.
        limits: Bounds of a value's size.
    """

    def __init__(self, fields: Mapping[str, bytes], limits: PayloadLimits) -> None:
        self._fields = fields
        self.most_bytes = PAYLOADS * limits.max_bytes
        own = [len(value) for name, value in fields.items() if not name.startswith(_SIGNALS)]
        self._count, self._bytes = len(own), sum(own)

    def arrived(self, field: str) -> None:
        """Count a field that the handler has not stored."""
        self._count += not field.startswith(_SIGNALS)

    def add(self, notes: Sequence[Note]) -> None:
        """Count fields that are to be stored. How a command ends is stored, and what it did is undone, however much it has stored.

        Raises:
            BadStep: The record would become too large.
        """
        if ENDING in self._fields:
            return
        before = self._count
        for note in notes:
            if note.name == ENDING:
                return
            if not note.name.startswith(_SIGNALS):
                self._count += 1
            if isinstance(note.value, bytes):
                self._bytes += len(note.value)
        if before < self._count > MOST_FIELDS:
            raise BadStep(
                f"a durable command may store {MOST_FIELDS:,} fields for its steps and calls: divide its work into commands"
            )
        if self._bytes > self.most_bytes:
            raise BadStep(f"a durable command may store {self.most_bytes:,} bytes: return less from its steps, a reference say")
