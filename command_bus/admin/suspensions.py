"""The waits of a suspended command, as a value for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from command_bus.serialization.text import printable
from command_bus.transport.durable import StoredSuspension
from command_bus.transport.mailboxes import mailbox_label

_DIGEST = 8
_NAMED = 3
"""Things that a sentence names at most."""


@dataclass(frozen=True, slots=True)
class AwaitedInfo:
    """One call or signal that a suspended command waits for.

    Attributes:
        kind: What it is.
        name: The wire name of the command that was called, or the name of the signal.
        command_id: Of the command that was called; empty for a signal.
        entity: Of that, for people; empty for a signal.
    """

    kind: Literal["call", "signal"]
    name: str
    command_id: str = ""
    entity: str = ""

    def __str__(self) -> str:
        return f"the signal {self.name}" if self.kind == "signal" else f"{self.name} {self.command_id} on {self.entity}"


@dataclass(frozen=True, slots=True)
class SuspensionInfo:
    """A durable command that waits without a worker.

    Attributes:
        command_id: Of the command.
        since_ms: Since when, by the server's clock.
        until_ms: When it is started in any case, by the server's clock; None: never.
        waits_for: The calls and signals that it waits for; empty if it only sleeps.
        compensating: Whether it undoes what it did, and ends then.
        cancelling: Why it was asked to end: it waits for what it called and has started. Empty if it was not.
    """

    command_id: str
    since_ms: int
    until_ms: int | None
    waits_for: tuple[AwaitedInfo, ...]
    compensating: bool = False
    cancelling: str = ""

    def __str__(self) -> str:
        named = " and ".join(map(str, self.waits_for[:_NAMED]))
        more = len(self.waits_for) - _NAMED
        what = f"waits for {named}{f' and {more:,} more' if more > 0 else ''}" if named else "sleeps"
        if self.compensating:
            return f"{what}, to undo what it did"
        return f"{what}, and ends then: {self.cancelling}" if self.cancelling else what


def suspension_info(stored: StoredSuspension) -> SuspensionInfo:
    """Return the public form of a suspension."""
    waits = sorted((_awaited(field, call) for field, call in stored.awaited), key=str)
    return SuspensionInfo(
        stored.command_id, stored.since_ms, stored.until_ms, tuple(waits), stored.compensates, wish_text(stored.cancel)
    )


def wish_text(wish: bytes | None) -> str:
    """Return why a command was asked to end; empty if it was not."""
    return "" if wish is None else printable(wish.decode(errors="replace")) or "it was cancelled"


def _awaited(field: str, call: bytes | None) -> AwaitedInfo:
    """Return the wait that a field of a side record belongs to."""
    what = field[2:].rpartition("#")[0] or field[2:]
    if call is None:
        return AwaitedInfo("signal", unquote(what))
    child, _, mailbox = call[_DIGEST:].decode(errors="replace").partition("|")
    name = what.removeprefix("u:").removeprefix("undo:").partition("@")[0]
    return AwaitedInfo("call", unquote(name), child, mailbox_label(mailbox))
