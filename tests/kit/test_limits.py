"""Limits, priorities and pauses that end by themselves, in the virtual time of a test bus."""

from __future__ import annotations

from command_bus import Command, EntityId, EntityPolicy, HandlerRegistry, Limit, Rate
from command_bus.testing import TestBus


class Sync(Command[None], entity="shop"):
    shop: EntityId


class Fetch(Command[None], entity="page", limits=(Limit("partner", key="partner"),)):
    page: EntityId
    partner: str


def noting(started: list[str]) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Sync)
    async def sync(command: Sync) -> None:
        started.append(str(command.shop))

    @registry.handles(Fetch)
    async def fetch(command: Fetch) -> None:
        started.append(f"{command.partner} {command.page}")

    return registry


async def test_minutes_of_a_rate_take_no_time() -> None:
    started: list[str] = []
    limit = Limit(rate=Rate(1, per=60.0, burst=1), scope="type")
    async with TestBus(noting(started), entities={"shop": EntityPolicy(limits=(limit,))}) as bus:
        for number in range(15):
            await bus.dispatch(Sync(shop=f"s-{number}"))
            await bus.advance(0.01)
        assert len(started) == 1
        assert await bus.bus.limits.waiting() == 14
        await bus.advance(5 * 60)
        assert len(started) == 6
        await bus.run_until_idle()
    assert started == [f"s-{number}" for number in range(15)], "first come, first served"


async def test_each_key_has_a_bucket_of_its_own() -> None:
    started: list[str] = []
    async with TestBus(noting(started), limits=(Limit("partner", rate=Rate(1, per=60.0, burst=1)),)) as bus:
        for page in ("1", "2"):
            for partner in ("acme", "zeta"):
                await bus.dispatch(Fetch(page=f"{partner}-{page}", partner=partner))
        await bus.advance(1)
        assert sorted(started) == ["acme acme-1", "zeta zeta-1"]
        await bus.advance(60)
        assert sorted(started[2:]) == ["acme acme-2", "zeta zeta-2"]


async def test_what_is_urgent_comes_before_what_waits_in_line() -> None:
    started: list[str] = []
    async with TestBus(noting(started)) as bus:
        await bus.bus.entities.pause("not yet")
        for number in range(200):
            await bus.dispatch(Sync(shop=f"low-{number}"), priority="low")
        await bus.dispatch(Sync(shop="urgent"), priority="high")
        await bus.bus.entities.resume()
        await bus.run_until_idle()
    assert len(started) == 201
    assert started.index("urgent") <= 64


async def test_a_pause_ends_at_its_time() -> None:
    started: list[str] = []
    async with TestBus(noting(started)) as bus:
        await bus.bus.entity("shop", "s-1").pause("stocktaking", until=3600)
        await bus.dispatch(Sync(shop="s-1"))
        await bus.dispatch(Sync(shop="s-2"))
        await bus.advance(3590)
        assert started == ["s-2"]
        await bus.advance(20)
        assert started == ["s-2", "s-1"]
