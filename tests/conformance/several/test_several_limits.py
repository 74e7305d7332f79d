"""The limits of commands of several entities: those of all their entities are asked together. Over every server."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import pytest

from command_bus import BusSettings, Command, CommandBus, EntityId, EntityOf, EntityPolicy, Limit, Rate, per_entity
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import is_empty

PAYS = 7
APART = per_entity(shard_by="/")
OF_ACCOUNTS = {
    "rate of the type": Limit(rate=Rate(20, burst=1), scope="type"),
    "rate of each": Limit(rate=Rate(20, burst=1), scope="entity"),
    "places": Limit(concurrency=1, scope="type"),
}
OF_ORDERS = Limit(rate=Rate(1, burst=100), scope="type")


class Deposit(Command[None], entity="account"):
    account: EntityId


class Pay(Command[None], entity="order"):
    order: EntityId
    account: Annotated[str, EntityOf("account")]
    other: Annotated[str, EntityOf("account")]


class Starts:
    """The times of what was started, and how many ran at once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.times: list[float] = []
        self.running = self.peak = 0
        sandbox.registry.handles(Pay)(self.pay)
        sandbox.registry.handles(Deposit)(self.deposit)

    async def run(self) -> None:
        self.times.append(time.monotonic())
        self.running += 1
        self.peak = max(self.peak, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1

    async def pay(self, command: Pay) -> None:
        await self.run()

    async def deposit(self, command: Deposit) -> None:
        await self.run()


def bus_with(sandbox: Sandbox, accounts: Limit | None, orders: Limit | None = OF_ORDERS) -> CommandBus:
    policies = {"account": accounts, "order": orders}
    entities = {of: EntityPolicy(mailbox=APART, limits=(each,) if each else ()) for of, each in policies.items()}
    return sandbox.bus(settings=BusSettings(entities=entities), shards=2)


def owner_in(bus: CommandBus, shard: int) -> str:
    return next(f"c-{number}" for number in range(99) if bus.transport.shard_of(f"account:c-{number},%2Fa") == shard)


async def free_tokens(bus: CommandBus, name: str) -> float:
    (bucket,) = await bus.limits.list(name)
    assert bucket.tokens is not None
    return bucket.tokens


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("kind", OF_ACCOUNTS)
async def test_limits_of_its_other_entities_hold_it(sandbox: Sandbox, kind: str, shard: int) -> None:
    starts = Starts(sandbox)
    async with bus_with(sandbox, OF_ACCOUNTS[kind]) as bus:
        owner = owner_in(bus, shard)
        pays = [
            Pay(order=f"{owner}/{n // 3}", account=f"{owner}/{n % 3 if kind == 'places' else 0}", other=f"{owner}/x{n}")
            for n in range(PAYS)
        ]
        async with bus.worker():
            await bus.dispatch_batch([*pays, Deposit(account=f"{owner}/0")])
            await until(lambda: is_empty(bus))
        assert 100 - PAYS <= await free_tokens(bus, "type:order") < 100 - PAYS + 3, "who is refused takes no token of another"
        assert await bus.limits.waiting() == 0
    if kind == "places":
        assert starts.peak == 1
    else:
        assert starts.times[-1] - starts.times[0] > PAYS / 20 - 0.1, "a type that it names twice is asked once"
        assert starts.times[-1] - starts.times[0] < PAYS / 20 + 2


@pytest.mark.parametrize("shard", [0, 1])
async def test_what_calls_no_handler_takes_no_token_of_any(sandbox: Sandbox, shard: int) -> None:
    starts = Starts(sandbox)
    async with bus_with(sandbox, Limit(rate=Rate(1, per=100, burst=3), scope="type"), orders=None) as bus:
        owner = owner_in(bus, shard)
        async with bus.worker():  # in the shard of the limits each start is asked only until its worker knows of them
            await bus.call(Pay(order=f"{owner}/0", account=f"{owner}/0", other=f"{owner}/0x"), timeout=10)
            await bad_ones(bus, owner)
            await until(lambda: is_empty(bus))
        starts.times.clear()
        await bad_ones(bus, owner)
        await bus.dispatch(Pay(order=f"{owner}/5", account=f"{owner}/5", other=f"{owner}/5x"))
        async with bus.worker():
            await until(lambda: has_started(starts))
        assert 1 <= await free_tokens(bus, "type:account") < 1.5


async def bad_ones(bus: CommandBus, owner: str) -> None:
    for n in range(5):
        others = [("account", f"{owner}/{n}"), ("account", f"{owner}/{n}x")]
        await bus.dispatch_raw("order", f"{owner}/{n}", "Pay", {"order": 7}, others=others)


async def has_started(starts: Starts) -> bool:
    return starts.times != []
