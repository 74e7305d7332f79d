"""The rights for unique keys: any producer folds, one that replaces may take commands out of line, workers and operators release keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from command_bus import CommandCancelled, InvalidSettings, MayNotReplace, Unique
from command_bus.transport.redis.acl import acl_lines
from command_bus.transport.redis.worker.unique_sweep import sweep_page
from tests.security.acl_users import NAMESPACE, Work, made
from tests.security.conftest import Starter

LATEST = Unique("k", wins="latest")


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_a_producer_that_replaces_takes_commands_out_of_line(binary: Path, start: Starter, selectors: bool) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors) as place:
        for role in ("producer", "pipeline"):
            for line in acl_lines(role, NAMESPACE, password=place.password, selectors=selectors, replaces=True):
                await place.admin.execute_command(*line.split(" "))
        async with place.bus("producer") as producer, place.bus("operator") as operator, place.bus("worker") as workers:
            async with workers.worker():
                await producer.ping()
            await producer.dispatch(Work(line="a", number=1), unique=LATEST, command_id="c-1")
            assert (await producer.dispatch(Work(line="a", number=2), unique=LATEST)).other == "c-1"
            with pytest.raises(CommandCancelled):
                await producer.result("c-1", Work, timeout=0)
            later = Unique("later", wins="latest", debounce=60)
            assert [(await producer.dispatch(Work(line="a", number=3), unique=later)).status for _ in "ab"] == [
                "accepted",
                "replaced",
            ]
            assert await operator.entity("line", "a").forget("later")
            assert (await producer.dispatch(Work(line="a", number=4), unique=Unique("later"))).status == "accepted"
            assert await operator.entity("line", "a").purge() == 3
            async with workers.worker():
                keys = workers.transport.keys.shards[0]  # type: ignore[attr-defined]
                await sweep_page(workers.transport.connections.at(keys.prefix), keys, 0)  # type: ignore[attr-defined]
                await asyncio.gather(*(producer.dispatch(Work(line="b", number=n), unique=LATEST) for n in range(9)))
                await operator.wait_idle(10)
        assert await place.denied() == []


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_88_a_plain_producer_folds_and_is_told_what_replacing_needs(binary: Path, start: Starter, selectors: bool) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors) as place:
        async with place.bus("worker") as workers, workers.worker():
            await workers.ping()
        async with place.bus("producer") as producer, place.bus("operator") as operator:
            assert [(await producer.dispatch(Work(line="a", number=1), unique=Unique("k"))).status for _ in "ab"] == [
                "accepted",
                "duplicate",
            ]
            with pytest.raises(MayNotReplace, match="replaces=True"):
                await producer.dispatch(Work(line="a", number=2), unique=LATEST)
            with pytest.raises(MayNotReplace):
                await producer.dispatch(Work(line="fresh", number=2), unique=LATEST)
            assert (await operator.stats()).depth == 1, "nothing was changed"


def test_an_operator_does_not_replace() -> None:
    with pytest.raises(InvalidSettings, match="replaces"):
        acl_lines("operator", "shop", replaces=True)
    assert acl_lines("worker", "shop", replaces=True) == acl_lines("worker", "shop")
