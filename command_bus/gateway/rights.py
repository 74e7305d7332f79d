"""`Rights`: what the holder of a token may do, by act and command."""

from __future__ import annotations

from collections.abc import Iterable

from command_bus.errors import InvalidSettings
from command_bus.messages.message import is_wire_name
from command_bus.spelling import did_you_mean

ACTS = ("send", "call", "look", "cancel", "events", "inspect")
"""What can be allowed: to dispatch, to wait for a reply, to see one command by its id, to cancel one, to hear events, to read what operators read."""
_OF_COMMANDS = ("send", "call")
_ALL = "*"


class Rights:
    """Acts that somebody may do.

    Args:
        name: Whose, for messages.
        given: `send`, `call`, `look`, `cancel`, `events`, `inspect`, or `*` for all; `send:Deposit` and `call:Deposit` are for one command.

    Raises:
        InvalidSettings: One is no right.
    """

    __slots__ = ("_acts", "_commands")

    def __init__(self, name: str, given: Iterable[str]) -> None:
        if isinstance(given, str):
            raise InvalidSettings(f'the rights of {name!r}: a list of them, as in ("{given}",)')
        self._acts: set[str] = set()
        self._commands: set[tuple[str, str]] = set()
        for right in given:
            self._add(name, right)
        if not self._acts and not self._commands:
            raise InvalidSettings(f"{name!r} has no rights: name what it may do, or leave it out")

    def may(self, act: str, command: str | None = None) -> bool:
        """Return whether they may do this, of a command to it."""
        return act in self._acts or (command is not None and (act, command) in self._commands)

    def may_some(self, act: str) -> bool:
        """Return whether they may do this to any command."""
        return act in self._acts or any(each == act for each, _ in self._commands)

    def _add(self, name: str, right: object) -> None:
        act, colon, command = right.partition(":") if isinstance(right, str) else ("", "", "")
        if right == _ALL:
            self._acts.update(ACTS)
        elif act not in ACTS:
            raise InvalidSettings(f"{name!r} has the right {right!r}: one of {', '.join(ACTS)}, *{did_you_mean(act, ACTS)}")
        elif not colon or command == _ALL:
            self._acts.add(act)
        elif act not in _OF_COMMANDS or not is_wire_name(command):
            raise InvalidSettings(f"{name!r} has the right {right!r}: only send and call are for one command, by its wire name")
        else:
            self._commands.add((act, command))
