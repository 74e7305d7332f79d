"""Requests to end an attempt that runs, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from command_bus.serialization.odd_values import stored_number
from command_bus.transport.steps import attempt_id, began_ms, fence_of

Kind = Literal["abort", "abandon", "cancel"]
"""`abort` cancels the handler and settles its command as interrupted when it has ended; `abandon` does that without waiting for the end;
`cancel` settles it as cancelled when the handler has ended."""


InterruptAnswer = Literal["", "cancelled", "told", "abandoned", "blocked"]
"""The holder's answer: it cancelled the handler; asked one in a thread to end; abandoned it; or did nothing, since its event
loop is blocked."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A request to end one attempt.

    Attributes:
        kind: How.
        attempt_id: Id of the attempt.
        asked_ms: When, by the server's clock.
        by: Who asked.
        reason: Why.
        answer: What the holder says.
        where: The place where its event loop is blocked.
    """

    kind: Kind
    attempt_id: str
    asked_ms: int = 0
    by: str = ""
    reason: str = ""
    answer: InterruptAnswer = ""
    where: str = ""

    @property
    def words(self) -> str:
        """Why the attempt ended, for a dead letter, the log, the caller and the handler's context."""
        if self.kind == "cancel":
            return self.reason or "it was cancelled"
        return f"aborted by {self.by or 'an operator'}{f': {self.reason}' if self.reason else ''}"

    @property
    def request(self) -> str:
        """The request in words, for the log: `aborted by anna: it hangs`."""
        return f"cancelled: {self.words}" if self.kind == "cancel" else self.words

    def pack(self) -> str:
        """Pack the stored value. Only the last part, the reason, may have bars of its own."""
        parts = (self.kind, self.attempt_id, str(self.asked_ms), self.answer, _plain(self.where), _plain(self.by), self.reason)
        return "|".join(parts)

    @classmethod
    def unpack(cls, value: bytes) -> Self | None:
        """Read a stored value; None if it is of a later release, or broken."""
        parts: list[Any] = value.decode(errors="replace").split("|", 7)
        if len(parts) != 8 or parts[0] not in get_args(Kind):
            return None
        kind, fence, message, asked, answer, where, by, reason = parts
        return cls(kind, attempt_id(fence, message), stored_number("interrupts", asked), by, reason, answer, where)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt that runs in a mailbox.

    Attributes:
        id: Its id.
        attempt: The number of this start of its command.
        holder: The lease that it runs under: a worker's name, `#` and what tells its leases apart.
        envelope: Bytes of the command; empty if it is gone.
        now_ms: The server's time.
    """

    id: str
    attempt: int
    holder: str
    envelope: bytes
    now_ms: int

    @property
    def began_ms(self) -> int:
        """The server's time when it began, about."""
        return began_ms(fence_of(self.id))


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
