"""Names that a person typed and nobody here knows: they are told of, because an empty answer looks like a good one.

Known is a type of which a command was ever accepted or announced, and a command that a worker announced; with `--app`, also what the
application declares. A hold alone makes no type known: it may be the first misspelling. Nothing is refused for it, as a type may well be
paused before its first command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_bus.cli.terminal import print_error
from command_bus.spelling import did_you_mean

if TYPE_CHECKING:
    from command_bus.bus import CommandBus

__all__ = ["warn_of_unknown"]


async def warn_of_unknown(bus: CommandBus, *, entity_type: str | None = None, command: str | None = None, done: str = "") -> None:
    """Say of these names if they are unknown, and what they may have been meant to be.

    Args:
        bus: An open one.
        entity_type: As it was typed; `~` and None are always known.
        command: A wire name as it was typed; None is always known.
        done: What was done nevertheless, as a sentence.

    Raises:
        TransportUnavailable: The server cannot be reached.
    """
    commands = {each.name: each.entity for each in await bus.fleet.commands()}
    commands |= {handler.spec.name: handler.spec.entity for handler in bus.registry}
    types = {*await bus.transport.holds.used(), *(kind for kind in commands.values() if kind is not None)}
    for what, name, known in (
        ("entity type", None if entity_type == "~" else entity_type, types),
        ("command", command, {*commands}),
    ):
        if name is not None and name not in known:
            hint = did_you_mean(name, known)
            print_error(f"no {what} {name!r} is known here{hint or (done and '.')} {done}")
