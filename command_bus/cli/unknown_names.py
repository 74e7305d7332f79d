"""Warnings about names that a person typed and this namespace does not know, because an empty answer looks like a good one.

Known are the types of which a command was ever accepted or announced, and the commands that workers announced; with `--app`, also those
that the application declares. A hold alone makes no type known: it may be the first misspelling. Nothing is refused for an unknown
name, because a type may be paused before its first command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_bus.cli.terminal import print_error
from command_bus.spelling import did_you_mean
from command_bus.transport.mailboxes import SCHEDULES

if TYPE_CHECKING:
    from command_bus.bus import CommandBus


async def warn_if_unknown(bus: CommandBus, *, entity_type: str | None = None, command: str | None = None, done: str = "") -> None:
    """Print which of these names are unknown, and similar names that are known.

    Args:
        bus: Open.
        entity_type: As it was typed; `~`, `@schedules` and None are always known.
        command: A wire name as it was typed; None is always known.
        done: A sentence about what was done although the name is unknown.

    Raises:
        TransportUnavailable: The server cannot be reached.
    """
    commands = {each.name: each.entity for each in await bus.fleet.commands()}
    commands |= {handler.spec.name: handler.spec.entity for handler in bus.registry}
    types = {*await bus.transport.operator.types.used(), *(kind for kind in commands.values() if kind is not None)}
    for what, name, known in (
        ("entity type", None if entity_type in ("~", SCHEDULES) else entity_type, types),
        ("command", command, {*commands}),
    ):
        if name is not None and name not in known:
            hint = did_you_mean(name, known)
            print_error(f"no {what} {name!r} is known here{hint or (done and '.')} {done}")


def undo_hint(state: str, command: str) -> str:
    """Return a sentence: the entities are in that state all the same, and this command undoes it."""
    return f"It is {state} all the same: `{command}` undoes that"
