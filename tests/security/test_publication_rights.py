"""The rights for events: workers and operators have them, a producer if it is to publish."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from command_bus import EntityId, Event, HandlerRegistry, UnsuitableServer
from tests.conformance.conftest import Starter
from tests.conformance.put_service import until
from tests.security.acl_users import made


class Worked(Event, entity="line", name="line.worked"):
    line: EntityId


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_each_role_publishes_or_looks_after_subscriptions(binary: Path, start: Starter, selectors: bool) -> None:
    registry, got = HandlerRegistry(), list[str]()

    @registry.subscribes("audit", Worked)
    async def write(event: Worked) -> None:
        got.append(str(event.line))

    async with (
        made(start(tcp=True, binary=binary), selectors=selectors, publishes=True) as place,
        place.bus("worker", registry=registry) as workers,
        workers.worker(),
        place.bus("producer") as producer,
        place.bus("operator") as operator,
    ):
        assert (await producer.publish(Worked(line="a"))).subscriptions == ("audit",)
        await until(lambda: got == ["a"])
        assert await operator.subscriptions.pause("audit", "at night")
        assert await operator.subscriptions.resume("audit")
        assert [each.name for each in await operator.subscriptions.list()] == ["audit"]
        await operator.subscriptions.remove("audit")
        assert await place.denied() == []


async def test_without_the_right_it_is_said_how_to_get_it(binary: Path, start: Starter) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place, place.bus("producer") as producer:
        async with asyncio.timeout(20):
            with pytest.raises(UnsuitableServer, match="publishes=True"):
                await producer.publish(Worked(line="a"))
