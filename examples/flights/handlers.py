"""What a worker does with a command: read the aircraft, change it, write it back. No lock, no transaction, no script.

The state lives in the same Redis server under the demo's own keys, one string per aircraft, and each worker process has its own
client. Between the read and the write lie two waits in which another handler of the same aircraft would do its damage: two at a
time lose an update, two in the wrong order make another chain. Only the bus stands against that.

At least once means: a worker that dies between its write and the bus's record of it leaves a command that will be delivered
again. The sequence number answers that (`model.apply` skips what it has applied), because it is part of the business data, exact,
and also tells a reordering from a repetition. The fence would be the answer where commands bear no sequence; here it is only
watched: a start under an older fence than the stored one is a violation. It is not enforced in the write, as that would hide what
the demo is to find.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from redis.asyncio import Redis

from command_bus import CommandContext, HandlerRegistry
from examples.flights.commands import Arrive, Depart, Movement
from examples.flights.model import Aircraft, apply, from_text, to_text

__all__ = ["Hangar", "registry_for", "state_key"]


def state_key(namespace: str, tail: str) -> str:
    """The key of an aircraft's state; no key of the bus begins like this."""
    return f"{namespace}.aircraft:{tail}"


class Hangar:
    """The stored states of the aircraft of one run."""

    def __init__(self, client: Redis, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def load(self, tail: str) -> tuple[Aircraft, int]:
        """The aircraft and the fence under which it was written; a new one if it is not known."""
        text = await self._client.get(state_key(self._namespace, tail))
        return from_text(text) if text is not None else (Aircraft(), 0)

    async def store(self, tail: str, aircraft: Aircraft, fence: int) -> None:
        """Overwrite the aircraft's state, whatever it is by now."""
        await self._client.set(state_key(self._namespace, tail), to_text(aircraft, fence))

    async def load_all(self, tails: list[str], page: int = 1000) -> dict[str, Aircraft]:
        """All aircraft that are stored, by tail number."""
        found: dict[str, Aircraft] = {}
        for start in range(0, len(tails), page):
            names = tails[start : start + page]
            texts = await self._client.mget([state_key(self._namespace, tail) for tail in names])
            found.update({tail: from_text(text)[0] for tail, text in zip(names, texts, strict=True) if text is not None})
        return found


def registry_for(hangar: Hangar) -> HandlerRegistry:
    """The handlers of both commands, working on that hangar."""
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
