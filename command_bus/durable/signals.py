"""`Signals` and `StoredErrors`: the signals that one run of a durable handler has taken, and the errors it was given."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from command_bus.durable.names import refused_field, signal_field
from command_bus.errors import BadStep
from command_bus.messages.snooze import leaves

E = TypeVar("E", bound=BaseException)


class Signals:
    """The signals that a run has taken, by name.

    Args:
        fields: The side record.
        read: Reads it, if that was not done when the run began; else None.
    """

    def __init__(self, fields: Mapping[str, bytes], read: Callable[[], Awaitable[Mapping[str, bytes]]] | None) -> None:
        self._fields = fields
        self._read = read
        self._reading: asyncio.Lock | None = None
        self._taken: defaultdict[str, int] = defaultdict(int)
        self.waiting: set[str] = set()

    async def early(self) -> Mapping[str, bytes]:
        """Return the fields that came before the first run, to the first who asks; the run of the others has them by then."""
        if self._read is None:
            return {}
        self._reading = self._reading or asyncio.Lock()
        async with self._reading:
            found = {} if self._read is None else await self._read()
            self._read = None
            return found

    def take(self, name: str) -> str:
        """Return the field of the next signal of a name.

        Raises:
            BadStep: Another operation waits for it.
        """
        if name in self.waiting:
            raise BadStep(f"the handler waits for the signal {name!r} twice at a time: give the signals two names")
        self.waiting.add(name)
        return self.next(name)

    def next(self, name: str) -> str:
        """Return the field of the signal behind the last one that was taken, except those that were refused."""
        self._taken[name] += 1
        while refused_field(field := signal_field(name, self._taken[name])) in self._fields:
            self._taken[name] += 1
        return field

    def give_back(self, name: str) -> None:
        """Note that the last one was not taken: it had not come in time, or is not waited for any more."""
        self.waiting.discard(name)
        self._taken[name] -= 1


class StoredErrors:
    """The errors that a run was given by outcomes that are stored: every later run meets them again."""

    def __init__(self) -> None:
        self._raised: list[BaseException] = []

    def note(self, error: E) -> E:
        """Return an error, and note that it comes out of a stored outcome."""
        self._raised.append(error)
        return error

    def clear(self) -> None:
        """Forget them, once the end of the run is decided: their tracebacks lead back to it."""
        self._raised.clear()

    def has(self, error: BaseException) -> bool:
        """Return whether it, or one in its group, came out of a stored outcome."""
        return any(leaf is each for leaf in leaves(error) for each in self._raised)
