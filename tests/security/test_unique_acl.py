"""The rights for unique keys: any producer folds, one that replaces may take commands out of line, workers and operators release keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from command_bus import CommandCancelled, InvalidSettings, MayNotReplace, Unique
from command_bus.transport.redis.acl import acl_lines
from command_bus.transport.redis.maintenance.upkeep import sweep_page
from tests.conformance.conftest import Starter
from tests.conformance.unique.test_unique_loads import Pull, codes, kept, load, opened, row
from tests.security.acl_users import NAMESPACE, Work, made

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


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_a_pipeline_that_replaces_loads_rows_and_learns_what_became_of_them(
    binary: Path, start: Starter, selectors: bool
) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors) as place:
        for role in ("producer", "pipeline"):
            for line in acl_lines(role, NAMESPACE, password=place.password, selectors=selectors, replaces=True):
                await place.admin.execute_command(*line.split(" "))
        async with place.bus("worker") as workers, workers.worker():
            await workers.ping()
        async with place.bus("producer") as producer, place.bus("pipeline") as pipeline:
            version = await opened(pipeline)
            quiet = Unique("k", wins="latest", debounce=60)
            rows = [row(pipeline, 1, LATEST), row(pipeline, 2, LATEST), row(pipeline, 3), row(pipeline, 4, quiet)]
            assert codes(await load(pipeline, version, *rows)) == "+rur"
            delayed = [each async for page in pipeline.session.transport.operator.mailboxes.delayed(0) for each in page]
            assert len(delayed) == 1, "a reconciliation reads what is debounced"
            assert (await producer.dispatch(Pull(shop="a", n=5), unique=LATEST, command_id="c-5")).other == "d-4"
            assert codes(await load(pipeline, version, row(pipeline, 6, LATEST))) == "r"
            statuses = {name: (each.status, each.other) for name, each in (await kept(pipeline)).items()}
            assert statuses == {
                "d-1": ("superseded", "d-2"), "d-2": ("superseded", "d-4"), "d-3": ("folded", "d-2"), "d-4": ("superseded", "c-5"),
            }  # fmt: skip
        assert await place.denied() == []


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_117_a_plain_pipeline_is_told_what_replacing_needs(binary: Path, start: Starter, selectors: bool) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors) as place:
        async with place.bus("worker") as workers, workers.worker():
            await workers.ping()
        async with place.bus("producer") as producer, place.bus("pipeline") as pipeline:
            version = await opened(pipeline)
            assert codes(await load(pipeline, version, row(pipeline, 1), row(pipeline, 2))) == "+u"
            assert codes(await load(pipeline, version, row(pipeline, 3, LATEST), row(pipeline, 4, None))) == "xp"
            with pytest.raises(MayNotReplace, match="replaces=True"):
                await producer.dispatch(Pull(shop="a", n=5), unique=LATEST)
            assert codes(await load(pipeline, version, row(pipeline, 3, LATEST))) == "x", "it is not decided"
            assert list(await kept(pipeline)) == ["d-2"]


def test_an_operator_does_not_replace() -> None:
    with pytest.raises(InvalidSettings, match="replaces"):
        acl_lines("operator", "shop", replaces=True)
    assert acl_lines("worker", "shop", replaces=True) == acl_lines("worker", "shop")
