"""`RecordSize`: how much one run may store in the side record of its command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from command_bus.durable.names import ENDING
from command_bus.errors import BadStep
from command_bus.serialization.limits import Limits
from command_bus.transport.durable import Note

MOST_FIELDS = 10_000
"""Most fields of a side record besides signals, which have a limit of their own: senders must not use up what the handler may store."""
_SIGNALS = "g"
"""With which the names of fields of signals begin."""
PAYLOADS = 16
"""Most bytes of a side record, in payloads of the largest size."""


class RecordSize:
    """The size of a side record.

    Attributes:
        most_bytes: Most bytes of it, and of the outcomes of calls in it.

    Args:
        fields: The record.
        limits: Of values.
    """

    def __init__(self, fields: Mapping[str, bytes], limits: Limits) -> None:
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
