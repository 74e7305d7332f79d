"""Unique keys as they are stored: their names, and the commands that stand for them. `lua/shared/unique.lua` does the same in the scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self
from urllib.parse import quote, unquote

from command_bus.messages.unique import Unique
from command_bus.serialization.envelope import GIVEN_ID, WireEnvelope
from command_bus.serialization.native import Packer
from command_bus.transport.mailboxes import encoded

__all__ = ["KeyState", "Stander", "StoredKey", "UniqueSubmission", "mailbox_of_key", "stander_of", "stored_key", "unique_key"]

_FIELDS = 7
KeyState = Literal["delayed", "waiting", "started", "settled"]
"""Where the command is that stands for a key; `settled` of one that left, and whose window holds the key."""


def unique_key(envelope: WireEnvelope) -> str:
    """Return the key of an envelope's entity, and a colon before the one that its application gave; empty if it has none."""
    key = (envelope.options or {}).get("u")
    return "" if key is None or envelope.entity_id is None else f"{encoded(envelope.entity_id)}:{key}"


def stored_key(mailbox: str, key: str) -> str:
    """Return the name under which a key is stored; `key` begins with the encoded entity id, as `unique_key` gives it."""
    return f"{mailbox.partition(':')[0]}:{key}" if key else ""


def mailbox_of_key(stored: str) -> str:
    """Return the mailbox of a stored key: of a lane the first part alone names it."""
    kind, _, rest = stored.partition(":")
    return kind if "/" in kind else f"{kind}:{rest.partition(':')[0]}"


class Stander(NamedTuple):
    """The command that stands for a key.

    Attributes:
        place: Its id in its mailbox; `d` while it is delayed.
        window_ms: Until when the key is held in any case; 0 if there is no window.
        most_ms: After which it is not put off any more; 0 if there is no such limit.
        given_id: Whether its command id is remembered.
        inbox: Of the caller who waits for its reply, or empty.
        name: Its wire name.
        command_id: Its id.
    """

    place: str
    window_ms: int
    most_ms: int
    given_id: bool
    inbox: str
    name: str
    command_id: str

    @classmethod
    def parse(cls, value: bytes) -> Self | None:
        """Return what is stored, or None if it is none of ours."""
        parts = value.decode(errors="replace").split("|", _FIELDS - 1)
        if len(parts) != _FIELDS:
            return None
        place, window, most, flags, inbox, name, command_id = parts
        return cls(place, _number(window), _number(most), "g" in flags, unquote(inbox), name, command_id)

    @property
    def names(self) -> str:
        """Its part from the flags on, as the scripts take it."""
        return f"{'g' if self.given_id else ''}|{quote(self.inbox, safe='')}|{self.name}|{self.command_id}"


class StoredKey(NamedTuple):
    """A unique key that is held.

    Attributes:
        key: As the application gave it.
        stander: Who stands for it.
        state: Where that command is.
    """

    key: str
    stander: Stander
    state: KeyState


def stander_of(envelope: WireEnvelope) -> str:
    """Return what is stored of a command that stands for its key, from the flags on."""
    return Stander("", 0, 0, bool(envelope.flags & GIVEN_ID), envelope.inbox or "", envelope.name, envelope.command_id).names


@dataclass(slots=True)
class UniqueSubmission:
    """A command's unique key, on its way into a mailbox.

    Attributes:
        key: As it is stored.
        mode: `f` the first wins, until it is settled; `s` the first wins, until it is started; `l` the latest wins.
        window_ms: For which the key is held in any case; 0 if there is no window.
        longest_ms: For which the command can be put off; 0 if there is no limit.
        stander: What the command stores if it stands for the key, from the flags on.
        entity: Entity type and id, for the event of the one that it replaces.
        known: The one that stands for the key, as the server told it; empty if it did not.
        other: Once it is answered: the command that it was folded into, or that it replaced.
    """

    key: str
    mode: Literal["f", "s", "l"]
    window_ms: int
    longest_ms: int
    stander: str
    entity: tuple[str, str]
    known: bytes = b""
    other: str | None = None

    @classmethod
    def of(cls, unique: Unique, envelope: WireEnvelope, mailbox: str) -> Self:
        """Return the key of an envelope with the option, as `unique` says."""
        mode: Literal["f", "s", "l"] = "l" if unique.wins == "latest" else "s" if unique.until == "started" else "f"
        return cls(
            stored_key(mailbox, unique_key(envelope)),
            mode,
            int((unique.window or 0) * 1000),
            int((unique.max_wait or 0) * 1000),
            stander_of(envelope),
            (envelope.entity_type or "", envelope.entity_id or ""),
        )

    def names_of(self, stander: Stander) -> bytes:
        """Return what an event quotes of another command of this entity: the head of its envelope."""
        names: bytes = Packer(buf_size=256).pack((1, stander.command_id, stander.name, *self.entity))
        return names


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
