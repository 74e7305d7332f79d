"""Limits as an application meets them, over every server, with one shard and with several."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    CommandContext,
    CommandFailed,
    EntityId,
    EntityPolicy,
    InvalidCommand,
    InvalidSettings,
    Limit,
    Rate,
    RegistrationError,
    RetryPolicy,
    Snooze,
    UnknownLimit,
    lanes,
)
from command_bus.clock import mono
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Sync(Command[None], entity="shop"):
    shop: EntityId
    number: int = 0
    fails: bool = False


class Fetch(
    Command[None],
    entity="page",
    retry=RetryPolicy(attempts=2, delay=0.01),
    limits=(Limit("partner", key="partner", cost="points"),),
):
    page: EntityId
    partner: str
    points: int = 1


class Flaky(Command[None], entity="shop", retry=RetryPolicy(attempts=3, delay=0.01, jitter=0)):
    shop: EntityId


class Ran:
    """The commands that ran, and how many at a time."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.starts: list[tuple[float, str, int]] = []
        self.running = self.most = 0
        self.seconds = 0.0
        sandbox.registry.handles(Sync)(self.sync)
        sandbox.registry.handles(Fetch)(self.fetch)
        sandbox.registry.handles(Flaky)(self.flaky)

    async def sync(self, command: Sync) -> None:
        await self._run(str(command.shop), command.number)

    async def fetch(self, command: Fetch) -> None:
        await self._run(command.partner, command.points)

    async def flaky(self, command: Flaky) -> None:
        await self._run(str(command.shop), 0)
        raise RuntimeError

    async def _run(self, name: str, number: int) -> None:
        self.starts.append((mono(), name, number))
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1

    def most_in(self, seconds: float) -> int:
        """Return the most starts in any span of so many seconds."""
        times = sorted(at for at, *_ in self.starts)
        return max(sum(at <= other < at + seconds for other in times) for at in times)

    def of(self, name: str) -> list[int]:
        return [number for _, who, number in self.starts if who == name]


@pytest.fixture
def ran(sandbox: Sandbox) -> Ran:
    return Ran(sandbox)


def shop(*limits: Limit) -> dict[str, EntityPolicy]:
    return {"shop": EntityPolicy(limits=limits)}


both = pytest.mark.parametrize("shards", [1, 3])


@pytest.mark.promise("Limits are never exceeded")
@both
async def test_a_rate_of_a_type_is_kept_and_used(sandbox: Sandbox, ran: Ran, shards: int) -> None:
    rate = Rate(40, burst=4)
    async with sandbox.bus(shards=shards, entities=shop(Limit(rate=rate, scope="type"))) as bus, bus.worker(concurrency=50):
        await bus.dispatch_batch(Sync(shop=f"s{number % 20}", number=number) for number in range(60))
        await bus.wait_idle(20)
    took = ran.starts[-1][0] - ran.starts[0][0]
    assert len(ran.starts) == 60
    assert took >= (60 - 4) / 40 - 0.1, "the worker hears of a start some ms later than the limit"
    assert took <= (60 - 4) / 40 + 6, "also on a busy machine"
    for number in range(20):
        assert ran.of(f"s{number}") == [number, number + 20, number + 40]
    assert await sandbox.entity_keys() == [] or not [key for key in await sandbox.entity_keys() if "places" in key]


@pytest.mark.promise("Limits are never exceeded")
@both
async def test_no_more_than_its_concurrency_run_and_all_do(sandbox: Sandbox, ran: Ran, shards: int) -> None:
    ran.seconds = 0.01
    async with sandbox.bus(shards=shards, entities=shop(Limit(concurrency=3, scope="type"))) as bus, bus.worker(concurrency=50):
        await bus.dispatch_batch(Sync(shop=f"s{number % 12}", number=number) for number in range(60))
        await bus.dispatch_batch(Flaky(shop=f"f{number}") for number in range(4))
        await bus.wait_idle(20)
        assert (await bus.limits.list("type:shop"))[0].used == 0
    assert ran.most == 3
    assert len(ran.starts) == 60 + 12
    for number in range(12):
        assert ran.of(f"s{number}") == list(range(number, 60, 12))


@both
async def test_a_handler_holds_the_limit_that_it_names(sandbox: Sandbox, shards: int) -> None:
    """A partner's 429: nobody asks that partner for a while, others are asked as before; what waited keeps its order."""
    asked: list[tuple[float, str, str]] = []

    @sandbox.registry.handles(Fetch)
    async def fetch(command: Fetch, context: CommandContext) -> None:
        asked.append((mono(), command.partner, str(command.page)))
        if command.partner == "a" and len([who for _, who, _ in asked if who == "a"]) == 3:
            raise Snooze(1.0, hold="limit:partner")

    partner = Limit("partner", rate=Rate(30, burst=1))
    async with sandbox.bus(shards=shards, limits=(partner,)) as bus, bus.worker(concurrency=50):
        await bus.dispatch_batch(Fetch(page=f"{who}{number}", partner=who) for number in range(12) for who in ("a", "b"))
        await bus.wait_idle(20)
    to_a = [at for at, who, _ in asked if who == "a"]
    held = to_a[2]
    assert len(to_a) == 12 + 1, "the one that was put off came again"
    assert not [at for at in to_a if held + 0.4 < at < held + 0.95], "nobody asked meanwhile, but those that had started"
    assert [at for at, who, _ in asked if who == "b" and held < at < held + 0.95], "the other partner was asked"
    assert max(to_a) - held >= 1.0 + (len(to_a) - 6) / 30 - 0.1, "what waited came at the rate"


@pytest.mark.parametrize("hold", ["limit:other", "limit:type:shop"])
async def test_a_limit_that_a_class_does_not_have_is_a_failure(sandbox: Sandbox, hold: str) -> None:
    @sandbox.registry.handles(Fetch)
    async def fetch(command: Fetch) -> None:
        raise Snooze(60, hold=hold)

    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandFailed, match="may hold limit:partner, limit:type:page, limit:bus"):
            await bus.call(Fetch(page="1", partner="a"), timeout=20)


@pytest.mark.promise("Limits are never exceeded")
@both
async def test_a_named_limit_by_key_and_cost(sandbox: Sandbox, ran: Ran, shards: int) -> None:
    partner = Limit("partner", rate=Rate(40, burst=8))
    async with sandbox.bus(shards=shards, limits=(partner,)) as bus, bus.worker(concurrency=50):
        await bus.dispatch_batch(
            Fetch(page=f"{name}{number}", partner=name, points=cost)
            for number in range(8)
            for name, cost in (("a b", 1), ("z", 4))
        )
        await bus.wait_idle(20)
        lines = {each.key for each in await bus.limits.list("partner")}
    assert lines <= {"a%20b", "z", None}
    cheap = [at for at, name, _ in ran.starts if name == "a b"]
    dear = [at for at, name, _ in ran.starts if name == "z"]
    assert (len(cheap), len(dear)) == (8, 8)
    assert max(cheap) - min(cheap) < 0.5
    assert max(dear) - min(dear) >= (8 * 4 - 8) / 40 - 0.1


class Pull(Command[None], entity="page", retry=RetryPolicy(attempts=1), limits=(Limit("partner", key="partner"),)):
    page: EntityId
    partner: str


@both
async def test_delayed_and_replayed_commands_take_of_their_key(sandbox: Sandbox, shards: int) -> None:
    started: list[str] = []

    @sandbox.registry.handles(Pull)
    async def pull(command: Pull) -> None:
        started.append(str(command.page))
        if started.count("bad") == 1:
            raise RuntimeError("once")

    partner = Limit("partner", rate=Rate(1, per=3600.0, burst=2))
    async with sandbox.bus(shards=shards, limits=(partner,)) as bus, bus.worker():
        await bus.dispatch(Pull(page="bad", partner="acme"))
        await until(bus.dead_letters.count)
        [letter] = [each async for each in bus.dead_letters.list()]
        await bus.dead_letters.replay(letter.id)
        await until(lambda: started == ["bad", "bad"])
        await bus.dispatch(Pull(page="late", partner="acme"), delay=0.05)
        await bus.dispatch(Pull(page="other", partner="zeta"), delay=0.05)
        await until(lambda: "other" in started)
        await until(lambda: _waiting(bus, 1))
        assert started == ["bad", "bad", "other"], "a replay takes a token, and a delayed command finds none"
        (entity,) = (await bus.entities.list(states={"limited"})).entities
        assert entity.name == "page:late"
        assert entity.limit is not None
        assert entity.limit.limit == "partner[acme]"


@pytest.mark.promise("Places come back")
async def test_a_live_change_holds_for_all_until_it_is_taken_back(sandbox: Sandbox, ran: Ran) -> None:
    slow = Limit(rate=Rate(1, per=3600.0, burst=1), scope="type")
    async with sandbox.bus(entities=shop(slow)) as bus, bus.worker():
        await bus.dispatch_batch(Sync(shop=f"s{number}") for number in range(5))
        await until(lambda: _waiting(bus, 4))
        assert await bus.limits.put("type:shop", Rate(1000))
        assert not await bus.limits.put("type:shop", Rate(1000))
        await bus.wait_idle(5)
        (line,) = await bus.limits.list()
        assert (line.name, line.rate, line.source, line.declared) == ("type:shop", 1000.0, "put", "1 per 3600 s (burst 1)")
        assert await bus.limits.remove("type:shop")
        assert not await bus.limits.remove("type:shop")
        (line,) = await bus.limits.list()
        assert (line.rate, line.source, line.declared) == (1.0, "code", "")
        with pytest.raises(UnknownLimit, match="did you mean 'type:shop'"):
            await bus.limits.list("type:shopp")


async def _waiting(bus: CommandBus, count: int) -> bool:
    return await bus.limits.waiting() == count


@both
async def test_operators_see_who_waits_for_what(sandbox: Sandbox, ran: Ran, shards: int) -> None:
    slow = Limit(rate=Rate(1, per=60.0, burst=1), scope="type")
    async with sandbox.bus(shards=shards, entities=shop(slow)) as bus:
        await bus.events.watch("shop")
        async with bus.worker():
            for number in range(4):
                await bus.dispatch(Sync(shop=f"s{number}"))
            await until(lambda: _waiting(bus, 3))
            found = {each.name: each for each in (await bus.entities.list(states={"limited"})).entities}
            assert len(found) == 3
            limits = sorted((each.limit for each in found.values() if each.limit is not None), key=lambda limit: limit.before)
            assert [limit.before for limit in limits] == [0, 1, 2]
            assert str(limits[1]).startswith("limit type:shop: free in ")
            assert str(limits[1]).endswith(" s (1 before it)")
            assert limits[0].free_in is not None
            assert 50 < limits[0].free_in <= 60
            name = next(iter(found)).partition(":")[2]
            assert (await bus.entity("shop", name).show()).entity.limit is not None
            stats = await bus.stats()
            assert (stats.limited, stats.in_flight, stats.ready) == (3, 0, 0)
            kinds = [event.kind async for event in bus.events(after="", follow=False)]
            assert kinds.count("limited") == 3
            assert await bus.entities.of("shop").purge() == 3
            assert (await bus.stats()).depth == 0
            assert await bus.limits.put("type:shop", Rate(1000))
            await bus.dispatch(Sync(shop="s9"))
            await bus.wait_idle(5)


async def test_defaults_of_code_are_compared_by_revision(sandbox: Sandbox, ran: Ran, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "command_bus.worker")

    async def start(rate: int, revision: int) -> float | None:
        caplog.clear()
        async with sandbox.bus(entities=shop(Limit(rate=Rate(rate), scope="type", revision=revision))) as bus, bus.worker():
            (line,) = await bus.limits.list()
            return line.rate

    assert await start(50, 1) == 50
    assert await start(60, 1) == 50, "no worker is refused"
    assert "with the same revision 1" in caplog.text
    assert await start(60, 2) == 60
    assert await start(50, 1) == 60, "an older worker that starts again puts nothing back"
    assert "a higher revision than 1" in caplog.text


async def test_73_a_name_without_a_rule_runs_and_is_told(sandbox: Sandbox, ran: Ran, caplog: pytest.LogCaptureFixture) -> None:
    async with sandbox.bus() as bus, bus.worker():
        assert "limit partner is named by a class" in caplog.text
        await bus.dispatch(Fetch(page="p", partner="x"))
        await bus.wait_idle(5)
        await bus.limits.put("partner", concurrency=1)
        await bus.dispatch(Fetch(page="p", partner="x"))
        await bus.wait_idle(5)
    assert len(ran.starts) == 2


async def test_limits_over_other_ways_of_blocking_code(sandbox: Sandbox, ran: Ran) -> None:
    """A call waits as long as its command does; one that nobody waits for any more is not started."""
    async with sandbox.bus(entities=shop(Limit(concurrency=1, scope="type"))) as bus, bus.worker():
        ran.seconds = 0.1
        await asyncio.gather(*(bus.call(Sync(shop=f"s{number}"), timeout=5) for number in range(4)))
    assert ran.most == 1


BAD_LIMITS: dict[str, tuple[Any, str]] = {
    "a rate of nothing": (lambda: Rate(0), "a number above 0"),
    "a rate below zero": (lambda: Rate(-1), "a number above 0"),
    "a rate that is no number": (lambda: Rate("5"), "a number above 0"),  # type: ignore[arg-type]
    "too fast": (lambda: Rate(1_000_000), "at most 50,000 a second"),
    "no time": (lambda: Rate(5, per=0), "per"),
    "a burst of nothing": (lambda: Rate(5, burst=0), "a whole number from 1"),
    "a name with a space": (lambda: Limit("my shop"), "a name of"),
    "an unknown scope": (lambda: Limit(scope="all"), "'entity', 'type' or 'bus'"),  # type: ignore[arg-type]
    "a name and a scope": (lambda: Limit("x", scope="type"), "has a key, not a scope"),
    "a key without a name": (lambda: Limit(key="partner"), "only a named limit has a key"),
    "no concurrency": (lambda: Limit(concurrency=0, scope="type"), "a whole number from 1"),
    "concurrency of an entity": (lambda: Limit(concurrency=1, scope="entity"), "one command at a time anyway"),
    "a cost below zero": (lambda: Limit("x", cost=-1), "a whole number from 0"),
    "a revision of nothing": (lambda: Limit("x", revision=0), "a whole number from 1"),
    "two of one scope": (
        lambda: EntityPolicy(limits=(Limit(concurrency=1, scope="type"), Limit(rate=Rate(1), scope="type"))),
        "two limits have one scope",
    ),
    "one that allows everything": (lambda: EntityPolicy(limits=(Limit(scope="type"),)), "a rate or a concurrency"),
    "entities in lanes": (
        lambda: EntityPolicy(mailbox=lanes(2), limits=(Limit(rate=Rate(1), scope="entity"),)),
        "share lanes",
    ),
    "a bus limit of a type": (lambda: BusSettings(limits=(Limit(concurrency=1, scope="type"),)), "those of a type"),
    "a bus limit without a number": (lambda: BusSettings(limits=(Limit("x"),)), "a rate or a concurrency"),
    "a bus limit with a key": (lambda: BusSettings(limits=(Limit("x", concurrency=1, key="k"),)), "are the command class's"),
    "one name twice": (lambda: BusSettings(limits=(Limit("x", concurrency=1), Limit("x", concurrency=2))), "one name"),
}


@pytest.mark.parametrize("name", BAD_LIMITS)
def test_69_a_wrong_limit_is_refused_where_it_is_written(name: str) -> None:
    make, text = BAD_LIMITS[name]
    with pytest.raises(InvalidSettings, match=text):
        make()


def test_70_a_class_with_a_wrong_limit_is_refused() -> None:
    with pytest.raises(RegistrationError, match="names the field 'partner', which the class lacks"):

        class NoSuchField(Command[None], entity="shop", limits=(Limit("x", key="partner"),)):
            shop: EntityId

    with pytest.raises(RegistrationError, match="what they allow is said in BusSettings"):

        class OwnRate(Command[None], entity="shop", limits=(Limit("x", rate=Rate(1)),)):
            shop: EntityId


async def test_69_entities_that_share_lanes_have_no_limit_of_their_own(sandbox: Sandbox, ran: Ran) -> None:
    async with sandbox.bus(entities={"shop": EntityPolicy(mailbox=lanes(2))}) as bus:
        await bus.dispatch(Sync(shop="a"))
    async with sandbox.bus() as operator:  # whose settings know no lanes
        with pytest.raises(InvalidSettings, match=r"share lanes .* take 'type:shop'"):
            await operator.limits.put("entity:shop", Rate(1))
        assert await operator.limits.list() == []
        assert not await operator.limits.put("entity:shop"), "what an earlier release took may be taken back"
        assert await operator.limits.put("entity:page", Rate(1))
        assert await operator.limits.put("type:shop", Rate(1))


async def test_71_wrong_requests_are_refused(sandbox: Sandbox, ran: Ran) -> None:
    async with sandbox.bus() as bus:
        for name in ("", "my shop", "type:", "what:shop", "type:a:b"):
            with pytest.raises(InvalidSettings, match="is no limit"):
                await bus.limits.put(name, Rate(1))
        with pytest.raises(InvalidSettings, match="a Rate, as in"):
            await bus.limits.put("shopify", 50)  # type: ignore[arg-type]
        with pytest.raises(InvalidSettings, match="pause a type to stop it"):
            await bus.limits.put("type:shop", concurrency=0)
        with pytest.raises(InvalidSettings, match="one command at a time anyway"):
            await bus.limits.put("entity:shop", concurrency=1)
        with pytest.raises(InvalidCommand, match="it is the cost of a start for the limit 'partner'"):
            await bus.dispatch(Fetch(page="p", partner="x", points=-1))
        batch = await bus.dispatch_batch([Fetch(page="p", partner="x", points=-1)])
        assert batch.accepted == 0
        await bus.dispatch_raw("page", "p", "Fetch", {"page": "p", "partner": "x", "points": -1})
        async with bus.worker():
            await bus.wait_idle(5)
        (letter,) = [letter async for letter in bus.dead_letters.list()]
        assert letter.reason == "invalid"
