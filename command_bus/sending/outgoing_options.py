"""Options of an outgoing command: its unique key and its times, which depend on each other, its history, whether it travels compressed."""

from __future__ import annotations

from datetime import datetime

from command_bus.clock import wall_ms
from command_bus.errors import InvalidCommand
from command_bus.messages.history import History
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.messages.unique import Unique
from command_bus.sending.checked_options import checked_ms, moment_ms
from command_bus.serialization.history_option import HISTORY, history_option
from command_bus.settings import BusSettings
from command_bus.spelling import shown


def compresses(out: OutgoingMessage, settings: BusSettings) -> bool:
    """Return whether a payload is so large that it is to travel compressed."""
    above = settings.compress_above if out.command is None else settings.compress_above_of(type(out.command).spec())
    return above is not None and len(out.payload) > above


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
    out.options["u"] = unique.key or out.name
    return delay if unique.debounce is None else unique.debounce


def keep(out: OutgoingMessage, history: History | None) -> None:
    """Give a message its history, if it has one."""
    if history is not None:
        out.options[HISTORY] = history_option(history)


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
