"""The unique keys that an entity holds, as operators see them."""

from __future__ import annotations

import asyncio

import pytest

from command_bus import Envelope, Unique
from tests.conformance import test_unique
from tests.conformance.test_unique import FIRST, Save, Service

pytestmark = pytest.mark.server
service = test_unique.service


async def test_the_keys_that_an_entity_holds_are_listed(service: Service) -> None:
    """Also that of a settled command whose window is open; not those of other entities, whatever their ids look like."""
    bus = service.bus
    done = await service.send(1, Unique("w*[1]", window=300))
    free = await service.send(2, Unique("free"))
    await bus.dispatch(Save(doc="d*", n=0), unique=Unique("other"))
    await bus.dispatch(Save(doc="d:d", n=0), unique=Unique("other"))
    scope = bus.entity("doc", "d")
    async with bus.worker():
        await bus.wait_idle(10)
        service.gate.clear()
        runs = await service.send(3, Unique("runs"))
        await service.runs(5)
        waits = await service.send(4, Unique("waits", wins="latest"))
        later = await service.send(5, Unique("later", wins="latest", debounce=300, max_wait=600))
        page = await scope.unique_keys()
        found = {each.key: (each.state, each.command_id) for each in page.keys}
        times = {each.key: (each.window_ms is not None, each.latest_ms is not None) for each in page.keys}
        short = await scope.unique_keys(limit=2)
        service.gate.set()
    assert found == {
        "w*[1]": ("settled", done.command_id),
        "runs": ("started", runs.command_id),
        "waits": ("waiting", waits.command_id),
        "later": ("delayed", later.command_id),
    }, free
    assert times == {"w*[1]": (True, False), "runs": (False, False), "waits": (False, False), "later": (False, True)}
    assert page.complete
    assert {each.name for each in page.keys} == {"Save"}
    assert ([each.key for each in short.keys], short.complete) == (["later", "runs"], False)
    assert (await bus.entity("doc", "unknown").unique_keys()).keys == []


async def test_a_listing_of_keys_ends_with_its_scan(service: Service) -> None:
    await service.bus.dispatch_batch(Envelope(Save(doc=f"e{n}", n=n), unique=Unique("k")) for n in range(3000))
    page = await service.bus.entity("doc", "e1").unique_keys(scan=500)
    assert not page.complete
    assert len((await service.bus.entity("doc", "e1").unique_keys()).keys) == 1


async def test_a_command_that_waits_for_a_retry_still_holds_its_key_as_started(service: Service) -> None:
    service.fail = {1}
    async with service.bus.worker():
        await service.send(1, FIRST)
        await service.runs(1)
        async with asyncio.timeout(10):
            while (await service.bus.entity("doc", "d").show()).entity.state != "retrying":
                await asyncio.sleep(0.01)
        assert [each.state for each in (await service.bus.entity("doc", "d").unique_keys()).keys] == ["started"]
