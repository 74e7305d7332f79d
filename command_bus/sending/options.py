"""Options of a message that are checked before it is built."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from datetime import datetime

from command_bus.clock import checked_seconds, milliseconds_of, wall_ms
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.history import History, history_of
from command_bus.messages.message import checked_id
from command_bus.messages.options import DispatchOptions
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.messages.policies import PRIORITIES, Priority
from command_bus.messages.unique import Unique
from command_bus.randomness import token
from command_bus.serialization.envelope_options import GIVEN, HISTORY, UNIQUE
from command_bus.settings import BusSettings
from command_bus.spelling import check_names, shown


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers of one's own.

    Raises:
        InvalidCommand: They are not text by text.
    """
    if not isinstance(headers, Mapping):
        raise InvalidCommand(f"headers are a mapping of text to text, not {shown(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidCommand(f"headers are text: {shown(name)} has {type(value).__name__}")
    return dict(headers)


def moment_ms(at: datetime, delay: float) -> int:
    """Return a moment in milliseconds.

    Raises:
        InvalidCommand: It is none, or there is a delay, too.
    """
    if delay:
        raise InvalidCommand(f"delay={shown(delay)} and at={shown(at)}: give one of them")
    try:
        ms = milliseconds_of("at", at)
    except InvalidSettings as error:
        raise InvalidCommand(error.message) from None
    checked_ms("at, from now,", max(ms - wall_ms(), 0) / 1000, zero=True)
    return ms


def checked_ms(what: str, value: float, *, zero: bool = False) -> int:
    """Return seconds as milliseconds: at least one, or none with `zero`.

    Raises:
        InvalidCommand: They are no duration.
    """
    return max(int(checked_seconds(what, value, zero=zero) * 1000), 0 if zero else 1)


class _Ids:
    """Makes command ids: random per process, then counted. Ten times cheaper than a uuid."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin again with another random part; a fork of this process does."""
        self._process = token(8).hex()
        self._next = itertools.count().__next__

    def __call__(self) -> str:
        return "%s-%x" % (self._process, self._next())  # noqa: UP031 - quicker than a format string


new_command_id = _Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=new_command_id.begin)


def compresses(out: OutgoingMessage, settings: BusSettings) -> bool:
    """Return whether a payload is so large that it is to travel compressed."""
    above = settings.compress_above if out.command is None else settings.compress_above_of(type(out.command).spec())
    return above is not None and len(out.payload) > above


def give(out: OutgoingMessage, options: DispatchOptions, history: History | None) -> OutgoingMessage:
    """Give a message of a class, or of none, what its dispatch says of it, and return it.

    Args:
        out: The message; its priority and unique key are those of its class.
        options: What the dispatch was given.
        history: That of its class, or of the settings.

    Raises:
        InvalidCommand: An option is not what it may be.
    """
    check_names(options, DispatchOptions)
    command_id, given_history = options.get("command_id"), options.get("history")
    delay, at, expires = options.get("delay", 0.0), options.get("at"), options.get("expires")
    out.command_id = new_command_id() if command_id is None else checked_id(command_id)
    out.given_id = out.given_id or command_id is not None or bool(options.get("keep_result"))
    if (priority := options.get("priority")) is not None:
        out.priority = checked_priority(priority)
    for option in GIVEN:
        if (value := options.get(option.name)) is not None:
            option.put(out.options, value)
    if (kept := history if given_history is None else history_of(given_history)) is not None:
        HISTORY.put(out.options, kept)
    if headers := options.get("headers"):
        out.headers = checked_headers(headers)
    delay = fold(out, options.get("unique") or out.unique, delay, at)
    if delay or at is not None or expires is not None:
        schedule(out, delay, at, expires)
    return out


def fold(out: OutgoingMessage, unique: Unique | None, delay: float, at: datetime | None) -> float:
    """Give a message its unique key; return the seconds until it takes its place.

    Raises:
        InvalidCommand: It is no unique key, or does not go with the rest.
    """
    if unique is None:
        return delay
    if not isinstance(unique, Unique):
        raise InvalidCommand(f"unique is a Unique, not {shown(unique)}: from command_bus import Unique")
    if out.entity_type is None:
        raise InvalidCommand(f"a unique key is one within an entity, and {out.name!r} names none")
    if unique.debounce is not None and (delay or at is not None):
        given = f"delay={delay!r}" if at is None else f"at={at!r}"
        raise InvalidCommand(
            f"{given} and Unique(debounce={unique.debounce!r}): each says when it takes its place, give one of them"
        )
    out.unique = unique
    UNIQUE.put(out.options, unique.key or out.name)
    return delay if unique.debounce is None else unique.debounce


def schedule(out: OutgoingMessage, delay: float, at: datetime | None, expires: float | None) -> None:
    """Give a message the time when it takes its place, and until when it may start.

    Raises:
        InvalidCommand: A time is not what it may be, or it would be over before its place is taken.
    """
    out.delay_ms = checked_ms("delay", delay, zero=True) if at is None else -moment_ms(at, delay)
    if expires is not None:
        out.ttl_ms = checked_ms("expires", expires) - (out.delay_ms if at is None else max(-out.delay_ms - wall_ms(), 0))
        if out.ttl_ms <= 0:
            given = f"delay={delay!r}" if at is None else f"at={at!r}"
            raise InvalidCommand(f"expires={expires!r} is over before {given}: the command would never start")


def checked_priority(priority: Priority) -> Priority:
    """Return a priority that is one.

    Raises:
        InvalidCommand: It is none.
    """
    if priority not in PRIORITIES:
        raise InvalidCommand(f"priority={shown(priority)}: 'high', 'normal' or 'low'")
    return priority
