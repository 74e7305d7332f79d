"""What `entity` is told, and what it advises about an entity that stands still."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from command_bus.cli.connection import Place
from command_bus.cli.process.options import Outcome
from command_bus.cli.terminal import print_error
from command_bus.spelling import did_you_mean

if TYPE_CHECKING:
    from command_bus.admin.info import EntityDetails

__all__ = ["Action", "entity_and_action", "ways_on"]

_LONG = 30.0  # seconds that a handler has run


class Action(StrEnum):
    """What is done to one entity."""

    SHOW = "show"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    PURGE = "purge"
    ABORT = "abort"


def ways_on(found: EntityDetails, place: Place) -> list[tuple[str, str]]:
    """What can be done about what stands still, as commands that can be pasted."""
    entity, hold = found.entity, found.entity.hold
    if found.letter is not None:
        return [
            ("to go on", f"{place.command('dlq', 'replay', found.letter.id)}  (runs it again)"),
            ("or", f"{place.command('dlq', 'discard', found.letter.id)}  (skips it)"),
        ]
    ways: list[tuple[str, str]] = []
    if (entity.running_for or 0.0) >= _LONG:
        ways.append(("if it hangs", f"{place.command('entity', entity.name, 'abort')}  (ends this attempt)"))
        if hold is None:
            ways.append(("before", f"{place.command('entity', entity.name, 'pause')}  (to keep the next attempt from starting)"))
    if hold is not None and hold.what == entity.name:
        ways.append(("to go on", place.command("entity", entity.name, "resume")))
    elif hold is not None:
        ways.append(("to go on", place.command("resume", *(["--all"] if hold.entity_type is None else [hold.entity_type]))))
    return ways


def entity_and_action(words: list[str]) -> tuple[str, str, Action]:
    """What `entity` is given: `TYPE:ID [ACTION]` or `TYPE ID [ACTION]`; a type has no colon.

    Raises:
        typer.Exit: It is neither.
    """
    entity_type, colon, entity_id = words[0].partition(":")
    rest = words[1:]
    if not colon and rest:
        entity_id, *rest = rest
    if not entity_id or len(rest) > 1:
        print_error("name one entity as TYPE:ID or TYPE ID, then an action or none, as in: command-bus entity account:a-17 pause")
        raise typer.Exit(Outcome.USAGE)
    action = rest[0] if rest else Action.SHOW
    if action not in {*Action}:
        print_error(f"{action!r} is no action: {', '.join(Action)}{did_you_mean(action, [each.value for each in Action])}")
        raise typer.Exit(Outcome.USAGE)
    return entity_type, entity_id, Action(action)
