"""The rights for the history: workers, operators and producers that replace write ends, operators read them, and no other sender does."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_bus import CommandBusError, Unique
from command_bus.transport.redis.acl import acl_lines
from tests.conformance.conftest import Starter
from tests.security.acl_users import NAMESPACE, Work, made

LATEST = Unique("k", wins="latest")


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_each_role_writes_the_ends_that_it_makes(binary: Path, start: Starter, selectors: bool) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors) as place:
        for line in acl_lines("producer", NAMESPACE, password=place.password, selectors=selectors, replaces=True):
            await place.admin.execute_command(*line.split(" "))
        async with (
            place.bus("producer", history="1 h") as producer,
            place.bus("operator") as operator,
            place.bus("worker") as workers,
        ):
            async with workers.worker():
                for number in (1, -1, -2):
                    await producer.dispatch(Work(line="a", number=number), command_id=f"c-{number}")
                await operator.wait_idle(10)
            for number in (1, 2):
                await producer.dispatch(Work(line="b", number=number), unique=LATEST, command_id=f"b-{number}")
            assert await operator.cancel("b-2")
            async for letter in operator.dead_letters.list():
                await operator.dead_letters.discard(letter.id)
            page = await operator.history.search()
            assert {entry.command_id: entry.status for entry in page.entries} == {
                "c-1": "completed",
                "c--1": "discarded",
                "c--2": "rejected",
                "b-1": "superseded",
                "b-2": "cancelled",
            }
            assert (await operator.stats()).history == 5
        assert await place.denied() == []


@pytest.mark.parametrize("role", ["producer", "pipeline"])
async def test_a_sender_reads_no_history(binary: Path, start: Starter, role: str) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        async with place.bus("worker") as workers, workers.worker():
            await workers.ping()
        async with place.bus(role, dispatch_timeout=0.5) as sender:  # type: ignore[arg-type]
            await sender.dispatch(Work(line="a", number=1), history="1 h")
            with pytest.raises(CommandBusError, match=r"NOPERM|permission"):
                await sender.history.get("c-1")
            with pytest.raises(CommandBusError, match=r"NOPERM|permission"):
                await sender.history.search()
