"""No command sees what another left in its context or its task, whichever way its handler runs."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import itertools
from typing import Any

import pytest

from command_bus import CommandBus, EntityPolicy, lanes
from command_bus.errors import CommandOutcomeError
from command_bus.messages.message import Message
from command_bus.transport.redis.memory import MemoryClients
from tests.tables.command_contexts import GIVEN, THINGS, WAYS, Left, Spoiling, registry_of


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_the_next_command_begins_as_the_worker_did(thing: str, way: Any) -> None:
    """One after the other, in a batch, of one entity and of others in its lane: each sees what the first did."""
    left = Left(THINGS[thing], [])
    GIVEN.set("given")
    decimal.setcontext(decimal.Context(prec=50))
    bus = CommandBus(
        clients=MemoryClients(),
        registry=registry_of(left),
        middleware=[Spoiling(left)],
        entities={"box": EntityPolicy(mailbox=lanes(1))},
    )
    async with bus:
        batch = [asyncio.ensure_future(_called(bus, way(box="b-1"))) for _ in range(2)]
        await asyncio.sleep(0)
        async with bus.worker():
            await asyncio.gather(*batch)
            for box in ("b-1", "b-2"):
                await _called(bus, way(box=box))
    assert len(left.saw) >= 4
    assert [each for each, _ in itertools.groupby(left.saw)] == left.saw[:1]
    assert left.saw[0] != "left"


async def _called(bus: CommandBus, message: Message[Any]) -> None:
    with contextlib.suppress(CommandOutcomeError):
        await bus.call(message, timeout=10)
