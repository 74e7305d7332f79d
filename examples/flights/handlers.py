"""The worker's handlers: read the aircraft, change it, write it back. No lock, no transaction, no script.

Each handler waits twice between the read and the write. Another handler of the same aircraft would do damage then: two at a time
lose an update, two in the wrong order make another chain. Only the bus prevents that.

At least once means: if a worker dies between its write and the bus's record of it, the command is delivered again. The sequence
number solves that (`model.apply` skips what it has applied): it is part of the business data, exact, and also distinguishes a
reordering from a repetition. Commands without a sequence would use the fence. Here the fence is only watched: a start under an
older fence than the stored one is a violation. The write does not enforce it, because that would hide what the demo is to find.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from command_bus import CommandContext, HandlerRegistry
from examples.flights.commands import Arrive, Depart, Movement
from examples.flights.hangar import Hangar
from examples.flights.model import apply

__all__ = ["registry_for"]


def registry_for(hangar: Hangar) -> HandlerRegistry:
    """Return the handlers of both commands, working on that hangar."""
    registry = HandlerRegistry()

    async def move(command: Movement, context: CommandContext) -> None:
        tail = str(command.tail)
        aircraft, fence = await hangar.load(tail)
        aircraft = apply(aircraft, command, again=context.attempt > 1)
        if context.fence < fence:
            aircraft = replace(aircraft, violations=aircraft.violations + 1)
        await asyncio.sleep(0)  # every other handler of this process gets a turn between the read and the write
        await hangar.store(tail, aircraft, context.fence)

    @registry.handles(Depart)
    async def depart(command: Depart, context: CommandContext) -> None:
        await move(command, context)

    @registry.handles(Arrive)
    async def arrive(command: Arrive, context: CommandContext) -> None:
        await move(command, context)

    return registry
