"""Classes and shares in the queue of a limit: who comes next when a rate lets one start. In virtual time, with the scripts of real servers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from command_bus import BusSettings, Command, CommandBus, EntityId, HandlerRegistry, Limit, Rate, RetryPolicy
from command_bus.messages.policies import Priority
from command_bus.testing import TestBus

RATE = Limit("partner", rate=Rate(1, per=1.0, burst=1))


class Sync(Command[None], entity="shop", limits=(Limit("partner"),)):
    shop: EntityId


class Import(Command[None], entity="account", fair_by="owner", limits=(Limit("partner"),)):
    account: EntityId
    owner: str


class Work(Command[None], entity="job"):
    job: EntityId


class Urgent(Command[None], entity="shop", priority="high", retry=RetryPolicy(attempts=1)):
    shop: EntityId


class Run:
    """A bus, and the entities whose commands ran, in order."""

    def __init__(self) -> None:
        self.registry, self.ran = HandlerRegistry(), list[str]()

        @self.registry.handles(Sync)
        async def sync(command: Sync) -> None:
            self.ran.append(str(command.shop))

        @self.registry.handles(Urgent)
        async def urgent(command: Urgent) -> None:
            if not self.ran:
                raise ValueError("not yet")
            self.ran.append(f"urgent {command.shop}")

        @self.registry.handles(Import)
        async def imported(command: Import) -> None:
            self.ran.append(command.owner)

        @self.registry.handles(Work)
        async def work(command: Work) -> None:
            self.ran.append(str(command.job))

    def bus(self, limit: Limit = RATE, **options: Any) -> TestBus:
        settings = BusSettings(url="redis://unused", limits=(limit,), **options)
        return TestBus(bus=CommandBus(settings=settings, registry=self.registry))


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.mark.promise("Limits are never exceeded")
@pytest.mark.parametrize("shards", [1, 3])
async def test_an_urgent_entity_goes_before_those_that_wait(run: Run, shards: int) -> None:
    async with run.bus(shards=shards) as bus:
        for number in range(200):
            await bus.dispatch(Sync(shop=f"low-{number}"), priority="low")
        await bus.advance(10)
        before = len(run.ran)
        await bus.dispatch(Sync(shop="urgent"), priority="high")
        await bus.advance(3)
    assert before >= 10
    assert "urgent" in run.ran[before : before + 2]


@pytest.mark.parametrize("scope", ["type", "bus"])
async def test_so_it_does_where_a_script_refuses_it(run: Run, scope: Any) -> None:
    limit = Limit(rate=Rate(1, per=1.0, burst=1), scope=scope) if scope == "bus" else RATE
    async with run.bus(limit) as bus:
        if scope == "type":
            await bus.bus.limits.put("type:job", Rate(1, per=1.0, burst=1))
        for number in range(50):
            await bus.dispatch(Work(job=f"low-{number}"), priority="low")
        await bus.advance(5)
        before = len(run.ran)
        await bus.dispatch(Work(job="urgent"), priority="high")
        await bus.advance(3)
    assert "urgent" in run.ran[before : before + 2]


@pytest.mark.promise("Limits are never exceeded")
async def test_classes_share_a_rate_by_their_weights(run: Run) -> None:
    """16 : 4 : 1, while all three wait; a class that is idle saves nothing up."""
    classes: list[Priority] = ["high", "normal", "low"]
    async with run.bus() as bus:
        await bus.dispatch(Sync(shop="low"), priority="low")
        await bus.advance(3)  # the worker learns that classes are in use
        for number in range(20):
            await bus.dispatch(Sync(shop=f"low {number}"), priority="low")
        await bus.advance(8)
        begun = len(run.ran)
        for number in range(90):
            for each in classes:
                await bus.dispatch(Sync(shop=f"{each} {number}"), priority=each)
        await bus.advance(86)
    counted = Counter(each.split()[0] for each in run.ran[begun + 2 : begun + 2 + 84])
    assert all(abs(counted[each] - share) <= 2 for each, share in zip(classes, (64, 16, 4), strict=True)), counted


@pytest.mark.promise("Limits are never exceeded")
async def test_tenants_share_a_rate_by_their_weights(run: Run) -> None:
    """3 : 1 within five hundredths, also for one that comes behind the other's backlog; alone a tenant has all."""
    async with run.bus() as bus:
        await bus.bus.fairness.put("big", weight=3)
        for number in range(300):
            await bus.dispatch(Import(account=f"b-{number}", owner="big"))
        await bus.advance(40)
        begun = len(run.ran)
        assert begun >= 40
        for number in range(100):
            await bus.dispatch(Import(account=f"s-{number}", owner="small"))
        await bus.advance(103)
        counted = Counter(run.ran[begun + 2 : begun + 102])
    assert 70 <= counted["big"] <= 80


async def test_many_tenants_take_turns(run: Run) -> None:
    """A tenant with one account is not behind the thousand of another."""
    async with run.bus() as bus:
        for number in range(300):
            await bus.dispatch(Import(account=f"b-{number}", owner="big"))
        await bus.advance(5)
        begun = len(run.ran)
        for number in range(10):
            await bus.dispatch(Import(account=f"t-{number}", owner=f"tenant-{number}"))
        await bus.advance(14)
    counted = Counter(run.ran[begun : begun + 13])
    assert counted["big"] <= 3
    assert len(counted) == 11


async def test_a_tenant_that_comes_later_does_not_catch_up(run: Run) -> None:
    async with run.bus() as bus:
        for number in range(200):
            await bus.dispatch(Import(account=f"b-{number}", owner="big"))
        await bus.advance(100)
        begun = len(run.ran)
        for number in range(60):
            await bus.dispatch(Import(account=f"s-{number}", owner="small"))
        await bus.advance(42)
    counted = Counter(run.ran[begun + 2 : begun + 42])
    assert 18 <= counted["big"] <= 22


@pytest.mark.parametrize("shards", [1, 3])
async def test_an_urgent_command_moves_its_waiting_entity_forward(run: Run, shards: int) -> None:
    async with run.bus(shards=shards) as bus:
        for number in range(100):
            await bus.dispatch(Sync(shop=f"s-{number}"), priority="low")
        await bus.advance(5)
        before = len(run.ran)
        await bus.dispatch(Sync(shop="s-90"), priority="high")
        await bus.advance(4)
        assert run.ran[before : before + 4].count("s-90") == 2, "the low one before it, and it"


async def test_an_urgent_letter_that_is_replayed_does_so_too(run: Run) -> None:
    async with run.bus() as bus:
        await bus.dispatch(Urgent(shop="s-90"))
        await bus.advance(1)
        for number in range(100):
            await bus.dispatch(Sync(shop=f"s-{number}"), priority="low")
        await bus.advance(5)
        before = len(run.ran)
        (letter,) = [each async for each in bus.bus.dead_letters.list()]
        await bus.bus.dead_letters.replay(letter.id)
        await bus.advance(3)
    assert {"s-90", "urgent s-90"} <= {*run.ran[before : before + 4]}


async def test_without_classes_it_is_first_come_first_served(run: Run) -> None:
    async with run.bus() as bus:
        for number in range(30):
            await bus.dispatch(Sync(shop=f"s-{number:02}"))
        await bus.advance(31)
    assert run.ran == sorted(run.ran)


async def test_those_that_waited_before_classes_were_used_keep_their_order(run: Run) -> None:
    async with run.bus() as bus:
        for number in range(30):
            await bus.dispatch(Sync(shop=f"a-{number:02}"))
        await bus.advance(3)
        await bus.dispatch(Sync(shop="urgent"), priority="high")
        for number in range(10):
            await bus.dispatch(Sync(shop=f"b-{number:02}"))
        await bus.advance(60)
    assert run.ran.index("urgent") <= 6
    others = [each for each in run.ran if each != "urgent"]
    assert others == sorted(others)
