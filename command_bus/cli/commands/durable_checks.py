"""Checks of `doctor` for durable commands: what is suspended for long, and what was stored for commands that are not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from command_bus.cli.commands.diagnosis import CommandLine, Finding, command_line
from command_bus.cli.output import format_duration
from command_bus.spelling import some_of

if TYPE_CHECKING:
    from command_bus.admin.info import EntityInfo
    from command_bus.bus import CommandBus

_SCANNED = 20_000


async def examine_durable(bus: CommandBus, longest: float, line: CommandLine) -> list[Finding]:
    """Look at suspended commands and side records, as far as this user may.

    Args:
        bus: Open.
        longest: Seconds after which a suspension is worth a warning.
        line: Makes command lines.
    """
    from command_bus.errors import CommandBusError

    transport = bus.session.transport
    page = await bus.entities.list(states={"suspended"}, order="age", limit=1000, scan=_SCANNED)
    found = check_suspended(page.entities, longest, await transport.operator.entities.now_ms(), line)
    try:
        return found + check_orphans(await transport.operator.suspensions.orphans(_SCANNED))
    except CommandBusError:  # a user that may not look through all keys
        return found


def check_suspended(
    suspended: Sequence[EntityInfo], longest: float, now_ms: int, line: CommandLine = command_line
) -> list[Finding]:
    """Check for commands that have been suspended for longer than so many seconds."""
    long = [
        (each.name, waited, each.suspension)
        for each in suspended
        if each.suspension is not None and (waited := (now_ms - each.suspension.since_ms) / 1000) >= longest
    ]
    if not long:
        return []
    shown = [f"{name} for {format_duration(waited)}: {suspension}" for name, waited, suspension in long]
    _, _, first = long[0]
    advice = f"is it still wanted? {line('command', first.command_id)} shows it; signal or cancel --running ends the wait"
    return [Finding("suspended for long", "warning", some_of(shown), advice)]


def check_orphans(command_ids: Sequence[str]) -> list[Finding]:
    """Check for stored steps of commands that are not known."""
    if not command_ids:
        return []
    advice = (
        "they are of commands that were removed by hand or lost in a failover; delete the keys `x:<id>` once they are of no use"
    )
    return [Finding("stored steps", "warning", f"of {len(command_ids):,} unknown commands: {some_of(list(command_ids))}", advice)]
