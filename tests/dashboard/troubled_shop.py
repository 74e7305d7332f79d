"""A shop in trouble, for the tests of the dashboard and for the screenshots in the docs.

parked       orders whose card reader does not answer (until `readers` has their shop)
no handler   a refund that no worker knows
paused       an account, by an operator, with a reason
limited      shops behind a partner's limit
suspended    a checkout that waits for an approval
retrying     a parcel whose next attempt is minutes away
running      an export that does not end
letters      mails with wrong addresses, which hold no entity
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    HandlerRegistry,
    Limit,
    Reject,
    RetryPolicy,
    cron,
    every,
)
from command_bus.clock import mono

__all__ = ["Charge", "Checkout", "Deposit", "Mail", "Shop", "make_trouble", "open_shop", "until"]


class Charge(Command[str], entity="order", retry=RetryPolicy(attempts=3, delay=0.02, jitter=0), on_poison="park"):
    order_id: EntityId
    cents: Annotated[int, Field(gt=0)]
    card: str
    shop: str = "Lisbon"


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Mail(Command[None], entity="customer", retry=RetryPolicy(attempts=1)):
    customer: EntityId
    address: str
    subject: str


class Export(Command[None], entity="report"):
    report: EntityId
    month: int


class Sync(Command[None], entity="shop", limits=(Limit("partner", key="partner"),), fair_by="partner"):
    shop: EntityId
    partner: str


class Ship(Command[None], entity="parcel", retry=RetryPolicy(attempts=5, delay=420, max_delay=600, jitter=0)):
    parcel: EntityId


class Checkout(Command[str], entity="basket", durable=True):
    basket: EntityId
    total: int


@dataclass
class Shop:
    """The application: what its handlers know."""

    registry: HandlerRegistry = field(default_factory=HandlerRegistry)
    readers: set[str] = field(default_factory=set)
    charged: list[str] = field(default_factory=list)
    exports: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        handles = self.registry.handles
        handles(Charge)(self.charge)
        handles(Deposit)(self.deposit)
        handles(Mail)(self.mail)
        handles(Export)(self.export)
        handles(Sync)(self.sync)
        handles(Ship)(self.ship)
        handles(Checkout)(self.checkout)

    async def charge(self, command: Charge) -> str:
        if command.shop not in self.readers and command.shop == "Lisbon":
            raise OSError(f"the card reader of {command.shop} does not answer for card {command.card}")
        self.charged.append(f"{command.order_id}:{command.cents}")
        return f"charged {command.cents}"

    async def deposit(self, command: Deposit) -> int:
        return command.amount

    async def mail(self, command: Mail) -> None:
        if "@" not in command.address:
            raise ValueError(f"{command.address!r} is no address")

    async def export(self, command: Export, context: CommandContext) -> None:
        context.progress(0.4, f"rows of month {command.month}")
        context.log("opened the ledger", rows=120_000)
        await self.exports.wait()

    async def sync(self, command: Sync) -> None:
        await self.exports.wait()

    async def ship(self, command: Ship) -> None:
        raise ConnectionError("the carrier answers 503")

    async def checkout(self, command: Checkout, context: DurableContext) -> str:
        await context.step("reserve", reserve, command.total)
        if command.total < 0:
            context.compensate(Export(report="undo", month=1))
            raise Reject("a basket is not paid out")
        return str(await context.signal("approved", timeout=86_400))


async def reserve(total: int) -> int:
    return total


@asynccontextmanager
async def open_shop(url: str, namespace: str = "shop", **options: object) -> AsyncGenerator[tuple[CommandBus, Shop]]:
    """Open a bus with a worker of the shop."""
    shop = Shop()
    bus = CommandBus(
        url,
        namespace=namespace,
        registry=shop.registry,
        history="1 day",
        lease=2.0,
        grace=0.1,
        unknown_grace=600,
        **options,  # type: ignore[arg-type]
    )
    async with bus:
        await bus.limits.put("partner", concurrency=1)
        await bus.events.watch()
        async with bus.worker():
            yield bus, shop


async def make_trouble(bus: CommandBus) -> None:
    """Make the trouble, and wait until it is there."""
    await bus.entity("account", "a-17").pause("the customer disputes a booking")
    await bus.dispatch_batch(Deposit(account_id=f"a-{number}", amount=number) for number in range(10, 30))
    for number in (1001, 1002):
        await bus.dispatch(Charge(order_id=f"o-{number}", cents=1999, card="4111111111111111"), command_id=f"charge-{number}")
        await bus.dispatch(Charge(order_id=f"o-{number}", cents=500, card="4111111111111111", shop="Porto"))
    await bus.dispatch(
        Charge(order_id="o-1003", cents=100, card="5500000000000004", shop="Porto"), keep_result=True, command_id="charge-1003"
    )
    await bus.dispatch(Export(report="ledger", month=11), command_id="export-11", keep_result=True)
    await bus.dispatch_batch(Export(report="ledger", month=month) for month in (12, 1, 2))
    await bus.dispatch_batch(Sync(shop=f"s-{number}", partner=("acme", "umbra")[number % 2]) for number in range(6))
    await bus.dispatch(Ship(parcel="p-88"))
    await bus.dispatch(Checkout(basket="b-5", total=4200), command_id="checkout-5")
    await bus.dispatch_batch(
        Mail(customer=f"c-{number}", address=("c.example", "c@example.org")[number % 3 == 0], subject="Your order")
        for number in range(12)
    )
    await bus.dispatch_raw("order", "o-2001", "Refund", {"order_id": "o-2001", "cents": 100})
    await bus.dispatch(Deposit(account_id="a-40", amount=1), delay=3600, command_id="later-1")
    await bus.schedules.put("nightly-ledger", Export(report="nightly", month=1), cron("30 2 * * *", tz="Europe/Lisbon"))
    await bus.schedules.put("warm-cache", Deposit(account_id="cache", amount=0), every(900))
    await bus.schedules.pause("warm-cache", "until the new cache is there")

    async def there() -> bool:
        still = await bus.views.standing_still(patience=0.0)
        found = {each.state for each in still.entities}
        wanted = {"parked", "no_handler", "paused", "limited", "suspended", "retrying", "running"}
        return wanted <= found and still.totals["parked"] == 2 and still.stats.dead_letters >= 10

    await until(there)


async def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Wait until a condition holds."""
    deadline = mono() + seconds
    while not await condition():  # type: ignore[misc]
        assert mono() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)
