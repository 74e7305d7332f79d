"""The oldest dead letter, over all shards."""

from __future__ import annotations

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy

registry = HandlerRegistry()


class Fail(Command[None], entity="line", retry=RetryPolicy(attempts=1)):
    line: EntityId


@registry.handles(Fail)
async def fail(command: Fail) -> None:
    raise OSError("as told")


async def test_the_oldest_letter_is_that_of_all_shards() -> None:
    pytest.importorskip("fakeredis")
    async with CommandBus.in_memory(registry=registry, shards=4) as bus, bus.worker():
        assert await bus.dead_letters.oldest() is None
        for line in range(8):
            await bus.dispatch(Fail(line=f"l-{line}"), delay=line * 0.05)
        await bus.wait_idle(20)
        letters = [letter async for letter in bus.dead_letters.list()]
        assert len({letter.id.partition("-")[0] for letter in letters}) > 1
        times = sorted(int(letter.id.split("-")[1]) for letter in letters)
        assert times[0] < times[-1]
        oldest = await bus.dead_letters.oldest()
        assert oldest is not None
        assert round(oldest.timestamp() * 1000) == times[0]
        for letter in letters:
            if int(letter.id.split("-")[1]) < times[-1]:
                await bus.dead_letters.discard(letter.id)
        left = await bus.dead_letters.oldest()
        assert left is not None
        assert round(left.timestamp() * 1000) == times[-1]
