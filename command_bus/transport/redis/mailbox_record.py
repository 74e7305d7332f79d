"""The value of a mailbox in the hash `active`: `state|activation|fence|message|attempt|first|holder`.

`lua/shared/record.lua` describes the fields, and packs and parses them in the scripts. Two parts of the record also travel alone: fence and
message are an attempt's id (`transport/attempts.py`), and advance.lua answers a start with the four fields from fence to first.
"""

from __future__ import annotations

from typing import NamedTuple

from command_bus.transport.attempts import attempt_id

__all__ = ["MailboxRecord", "parse_record", "parse_started"]

_FIELDS = 7


class MailboxRecord(NamedTuple):
    """A mailbox's record.

    Attributes:
        state: `r` ready, `h` or `H` held, `w` waits for a retry, `s` stopped; empty if the mailbox has no record.
        activation: Id of its entry in the ready stream; empty in the states `w` and `s`.
        fence: Of the command that runs; empty if none does.
        message: Id of the command that runs; empty if none does.
        attempt: How often the oldest command was started.
        first_ms: When it was first started; 0 if it never was, below zero if it was replayed while parked.
        holder: The lease under which the command runs: a worker's name, `#` and a number; empty if none does.
    """

    state: str
    activation: str
    fence: str
    message: str
    attempt: int
    first_ms: int
    holder: str

    @property
    def attempt_id(self) -> str:
        """Id of the attempt that runs."""
        return attempt_id(self.fence, self.message)

    @property
    def is_held(self) -> bool:
        """Whether one of its commands runs."""
        return self.state in ("h", "H")

    @property
    def oldest(self) -> str:
        """Where its commands begin that are not settled: an id for XRANGE."""
        return self.message if self.is_held else "-"

    @property
    def started_us(self) -> int:
        """The server's time in microseconds when the attempt started, apart from jumps of its clock: fences are made of it."""
        return _number(self.fence)

    @property
    def worker(self) -> str:
        """Name of the worker that holds the mailbox."""
        return self.holder.partition("#")[0]


def parse_record(record: bytes | None) -> MailboxRecord:
    """Return the fields of a record. Fields that it lacks are empty or 0, and so are numbers that are none."""
    fields = (record or b"").decode(errors="replace").split("|", _FIELDS - 1)
    state, activation, fence, message, attempt, first_ms, holder = (*fields, *[""] * (_FIELDS - len(fields)))
    return MailboxRecord(state, activation, fence, message, _number(attempt), _number(first_ms), holder)


def parse_started(state: bytes) -> list[str]:
    """Return fence, message, attempt and first start of a command that was started."""
    return state.decode().split("|")


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else 0
