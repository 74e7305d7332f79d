"""Unique keys as they are stored: their names, and the commands that hold them. `lua/shared/unique.lua` does the same in the scripts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self
from urllib.parse import quote, unquote

from command_bus.messages.unique import Unique
from command_bus.serialization.envelope import GIVEN_ID, KEEP_OUTCOME, WireEnvelope
from command_bus.serialization.envelope_options import HISTORY, OTHERS, UNIQUE
from command_bus.serialization.odd_values import stored_number
from command_bus.transport.mailboxes import encoded

_FIELDS = 7
_SEVERAL, _GIVEN, _DISPATCH = "w", "g", "o"
_FLAGS = re.compile(r"(w?)(g?)(?:t(\d+))?(.*)", re.DOTALL)
Mode = Literal["f", "s", "l"]
"""`f` the first wins, until it is settled; `s` the first wins, until it is started; `l` the latest wins."""
_HISTORY = "h"
KeyState = Literal["delayed", "waiting", "started", "settled"]
"""The place of the command that holds a key; `settled` of one that left, and whose window holds the key."""


def unique_key(envelope: WireEnvelope) -> str:
    """Return the key of an envelope's entity, and a colon before the one that its application gave; empty if it has none."""
    key = UNIQUE.of(envelope.options)
    return "" if key is None or envelope.entity_id is None else f"{encoded(envelope.entity_id)}:{key}"


def stored_key(mailbox: str, key: str) -> str:
    """Return the name under which a key is stored; `key` begins with the encoded entity id, as `unique_key` gives it."""
    if not key:
        return ""
    # The id is as the mailbox's name has it; a lane's has none.
    return f"{mailbox}:{key.partition(':')[2]}" if ":" in mailbox else f"{mailbox}:{key}"


def mailbox_of_key(stored: str) -> str:
    """Return the mailbox of a stored key: of a lane the first part alone names it."""
    kind, _, rest = stored.partition(":")
    return kind if "/" in kind else f"{kind}:{rest.partition(':')[0]}"


class Stander(NamedTuple):
    """The command that holds a key.

    Attributes:
        place: Its id in its mailbox; `d` while it is delayed, `s` once it is settled.
        window_ms: Until when the key is held in any case; 0 if there is no window.
        most_ms: After which it is not put off any more; 0 if there is no such limit.
        given_id: Whether its command id is remembered.
        inbox: Names the caller who waits for its reply, or empty.
        name: Its wire name.
        command_id: Its id.
        dispatch: Name of the one that keeps its outcome, or empty.
        history: The bounds of its history as the option has them; empty without one.
        ttl_ms: For how long from its place in the mailbox on it may be started; None if it has no deadline.
        several: Whether it stands in several lines, so that none takes its place.
    """

    place: str
    window_ms: int
    most_ms: int
    given_id: bool
    inbox: str
    name: str
    command_id: str
    dispatch: str = ""
    history: str = ""
    ttl_ms: int | None = None
    several: bool = False

    @classmethod
    def parse(cls, value: bytes) -> Self | None:
        """Return what is stored, or None if it is none of ours."""
        parts = value.decode(errors="replace").split("|", _FIELDS - 1)
        if len(parts) != _FIELDS:
            return None
        place, window, most, flags, inbox, name, command_id = parts
        several, given, ttl, kept = _FLAGS.fullmatch(flags).groups()  # type: ignore[union-attr] # it matches any text
        dispatch = unquote(kept[1:]) if kept.startswith(_DISPATCH) else ""
        return cls(
            place,
            _number(window),
            _number(most),
            bool(given),
            unquote(inbox),
            name,
            command_id,
            dispatch,
            kept if kept.startswith(_HISTORY) else "",
            None if ttl is None else _number(ttl),
            bool(several),
        )

    @property
    def keeps_end(self) -> bool:
        """Whether a dispatch or the history keeps its outcome."""
        return bool(self.dispatch or self.history)

    @property
    def names(self) -> str:
        """Its part from the flags on, as the scripts take it."""
        ttl = "" if self.ttl_ms is None else f"t{self.ttl_ms}"
        flags = _SEVERAL * self.several + (_GIVEN if self.given_id else "") + ttl + (dispatch_flag(self.dispatch) or self.history)
        return f"{flags}|{quote(self.inbox, safe='')}|{self.name}|{self.command_id}"


class StoredKey(NamedTuple):
    """A unique key that is held.

    Attributes:
        key: As the application gave it.
        stander: Who holds it.
        state: The place where that command is.
    """

    key: str
    stander: Stander
    state: KeyState


def stander_of(envelope: WireEnvelope) -> str:
    """Return what is stored of a command that holds its key, from the flags on."""
    dispatch = envelope.correlation_id or "" if envelope.flags & KEEP_OUTCOME else ""
    history = HISTORY.of(envelope.options)
    kept = history.bounds if history and not dispatch else ""
    given = bool(envelope.flags & GIVEN_ID)
    several = bool(OTHERS.of(envelope.options))
    names = (envelope.inbox or "", envelope.name, envelope.command_id, dispatch, kept)
    return Stander("", 0, 0, given, *names, envelope.ttl_ms, several).names


def dispatch_flag(dispatch: str) -> str:
    """Return how a stander says which dispatch keeps its outcome; empty for none."""
    return _DISPATCH + quote(dispatch, safe="") if dispatch else ""


def mode_of(unique: Unique) -> Mode:
    """Return how a key folds."""
    return "l" if unique.wins == "latest" else "s" if unique.until == "started" else "f"


class LoadKey(NamedTuple):
    """The unique key of a command that is loaded by a dispatch in bulk.

    Attributes:
        key: As it is stored.
        mode: How it folds.
        delay_ms: Until it takes its place, if none of its key comes meanwhile; 0: at once.
        window_ms: For which the key is held in any case; 0 if there is no window.
        longest_ms: For which the command can be put off, or its window be extended; 0 if there is no limit.
        name: The command's wire name.
        extends: Whether its being dropped begins the window again.
    """

    key: str
    mode: Mode
    delay_ms: int
    window_ms: int
    longest_ms: int
    name: str
    extends: bool = False

    @classmethod
    def of(cls, unique: Unique, name: str, mailbox: str, entity_id: str) -> Self:
        """Return the key of a command of an entity, as `unique` says."""
        stored = stored_key(mailbox, f"{encoded(entity_id)}:{unique.key or name}")
        return cls(stored, mode_of(unique), _ms(unique.debounce), _ms(unique.window), _ms(unique.max_wait), name, unique.extend)


@dataclass(slots=True)
class UniqueSubmission:
    """A command's unique key, on its way into a mailbox.

    Attributes:
        key: As it is stored.
        mode: How it folds.
        window_ms: For which the key is held in any case; 0 if there is no window.
        longest_ms: For which the command can be put off, or its window be extended; 0 if there is no limit.
        stander: What the command stores if it holds the key, from the flags on.
        known: The one that holds the key, as the server told it; empty if it did not.
        other: Once it is answered: the command that it was folded into, or that it replaced.
        extends: Whether its being dropped begins the window again.
    """

    key: str
    mode: Mode
    window_ms: int
    longest_ms: int
    stander: str
    known: bytes = b""
    other: str | None = None
    extends: bool = False

    @classmethod
    def of(cls, unique: Unique, envelope: WireEnvelope, mailbox: str) -> Self:
        """Return the key of an envelope with the option, as `unique` says."""
        return cls(
            stored_key(mailbox, unique_key(envelope)),
            mode_of(unique),
            _ms(unique.window),
            _ms(unique.max_wait),
            stander_of(envelope),
            extends=unique.extend,
        )


def _ms(seconds: float | None) -> int:
    return int((seconds or 0) * 1000)


def _number(text: str) -> int:
    return stored_number("unique", text) if text else 0
