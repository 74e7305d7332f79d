"""An application for tests of operators: commands, and handlers that note what they start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from command_bus import (
    Command,
    CommandBus,
    EntityId,
    RetryPolicy,
)
from tests.conformance.conftest import Sandbox

__all__ = ["Add", "Count", "Free", "Seen", "_states", "registered"]


class Add(Command[int], entity="sum", retry=RetryPolicy(attempts=1), on_poison="park"):
    name: EntityId
    number: int
    fails: bool = False


class Count(Command[int], entity="other"):
    name: EntityId
    number: int


class Free(Command[None]):
    number: int


@dataclass
class Seen:
    """Records of the handlers, in the order of the starts."""

    started: list[tuple[str, int]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0

    def of(self, name: str) -> list[int]:
        return [number for found, number in self.started if found == name]


def registered(sandbox: Sandbox) -> Seen:
    """Register the handlers; return what they will see."""
    seen = Seen()
    seen.gate.set()

    async def run(name: str, number: int) -> int:
        seen.started.append((name, number))
        seen.running += 1
        await seen.gate.wait()
        seen.running -= 1
        return number

    @sandbox.registry.handles(Add)
    async def add(command: Add) -> int:
        if command.fails:
            raise OSError("no paper")
        return await run(str(command.name), command.number)

    @sandbox.registry.handles(Count)
    async def count(command: Count) -> int:
        return await run(str(command.name), command.number)

    @sandbox.registry.handles(Free)
    async def free(command: Free) -> None:
        await run("free", command.number)

    return seen


async def _states(bus: CommandBus, wanted: dict[str, str]) -> bool:
    page = await bus.entities.list()
    found = {entity.name: entity.state for entity in page.entities}
    return wanted.items() <= found.items()
