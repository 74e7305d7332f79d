"""The rights for notifications: who sends may publish on its namespace's channels, who looks after it may listen there, and nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from command_bus.notifications import RedisNotifier
from command_bus.transport.redis.acl import Role, acl_lines
from tests.conformance.conftest import Starter
from tests.security.acl_users import NAMESPACE, ROLES, Place, Work, made


def notifying(place: Place, role: Role) -> Any:
    return place.bus(role, notifier=RedisNotifier(kinds=("work", "settled", "lease_lost")))


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_each_role_tells_and_hears_what_it_may(binary: Path, start: Starter, selectors: bool) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors, notifies=True) as place:
        await everybody_tells(place)
        assert await place.denied() == []
        for role, command in (("producer", "SUBSCRIBE"), ("operator", "PUBLISH")):
            async with place.client(role) as client:
                with pytest.raises(NoPermissionError):
                    await client.execute_command(command, f"command_bus:{NAMESPACE}:work:line", "x")
        async with place.client("worker") as client:
            for channel in ("command_bus:other:work:line", f"command_bus:{NAMESPACE}s:work:line", "news"):
                with pytest.raises(NoPermissionError):
                    await client.publish(channel, "x")


async def everybody_tells(place: Place) -> None:
    async with (
        notifying(place, "operator") as operator,
        notifying(place, "worker") as workers,
        operator.notifier.listen("work", types={"line"}) as woken,
        operator.notifier.listen("settled") as settled,
        workers.worker(),
        notifying(place, "producer") as producer,
    ):
        await producer.dispatch(Work(line="a", number=1), command_id="c-1")
        async with asyncio.timeout(10):
            assert await anext(woken) == "line"
            assert (await anext(settled)).command_id == "c-1"
        assert [await operator.notifier.consume_hint("line") for _ in "ab"] == [True, False]
        assert producer.notifier.figures.failed == workers.notifier.figures.failed == 0


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_173_without_the_right_nothing_is_told_and_commands_go_on(binary: Path, start: Starter, selectors: bool) -> None:
    async with (
        made(start(tcp=True, binary=binary), selectors=selectors) as place,
        notifying(place, "worker") as workers,
        workers.worker(),
        notifying(place, "producer") as producer,
    ):
        assert await producer.call(Work(line="a", number=1), timeout=10) == 1
        async with asyncio.timeout(10):
            while not producer.notifier.figures.failed:
                await asyncio.sleep(0.01)


def test_a_role_without_notices_has_no_channel() -> None:
    for role in ROLES:
        (plain,), (telling,) = acl_lines(role, NAMESPACE), acl_lines(role, NAMESPACE, notifies=True)
        assert "&" not in plain
        assert "publish" not in plain
        assert f"&command_bus:{NAMESPACE}:work:*" in telling
        assert ("+publish" in telling) == (role in ("gateway", "producer", "pipeline", "worker"))
        assert ("+subscribe" in telling) == (role in ("worker", "operator", "gateway", "owner"))
