"""One run: orders come in, workers are killed, and the books are compared."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from command_bus import CommandBus, CommandBusError, CommandCancelled, CommandRejected
from examples.checkout.books import checkout_books
from examples.checkout.commands import LARGE, Checkout
from examples.checkout.proof import checks
from examples.checkout.provider import ledger_beside
from examples.checkout.service import BOOKS, DESK_PORT, PROVIDER_PORT
from examples.flights.fleet import Fleet
from examples.flights.program import Result
from examples.flights.stage import Stage, Stalled, open_stage
from examples.synchroniser.books import Books

__all__ = ["Options", "run"]

_LEASE = 1.5
_PATIENCE = 90.0
_GRACE = 600.0
_SERVICES = {"orders": 2, "stock": 1, "shipping": 1}
_GOODS = 12
_CANCELLED = 12  # of each so many orders one is cancelled by its customer


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run.

    Attributes:
        seconds: For which orders come in and workers are killed.
        rate: Orders a second.
        period: Seconds between two kills.
        url: The server; None takes the environment's or an embedded one.
        out: The folder for the books and logs.
    """

    seconds: float = 60.0
    rate: float = 5.0
    period: float = 1.0
    seed: int = 1
    url: str | None = None
    out: Path = Path("examples/checkout/out")


async def run(options: Options, console: Console) -> Result:
    """Place orders, kill workers, wait until all have ended, and compare the books.

    Raises:
        CommandBusError: The server cannot be used.
        Stalled: An order had not ended in time.
        WorkerEnded: A process ended by itself.
    """
    path = _fresh(options.out)
    books, ledger = checkout_books(path), ledger_beside(path)
    _stock_up(books, int(options.seconds * options.rate))
    async with open_stage("checkout", options.url, lease=_LEASE, backlog=100_000) as stage:
        began = time.monotonic()
        async with _fleets(stage, path, options.out) as fleets:
            killing = asyncio.create_task(_kill(fleets, options.period, console))
            ends = await _shop(stage.bus, options, killing)
            await stage.bus.wait_idle(_PATIENCE)
            stats = await stage.bus.stats()
        killed = sum(len(fleet.killed) for fleet in fleets)
        kept = await _kept(stage)
        found = checks(books, ledger, ends, left=stats.depth + stats.dead_letters, killed=killed, kept=kept)
        lines = [f"{count:4} orders: {end}" for end, count in Counter(ends.values()).most_common()]
        return Result(found, time.monotonic() - began, killed, stage.server, [*lines, f"{len(ends):4} orders"])


def _fresh(out: Path) -> Path:
    """Return the path of books that are not there yet."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.sqlite*"):
        old.unlink()
    return (out / "books.sqlite").resolve()


def _stock_up(books: Books, orders: int) -> None:
    """Lay in goods: a little less than are ordered."""
    for number in range(_GOODS):
        books.rows("INSERT INTO stock VALUES (?, ?)", f"sku-{number}", max(1, int(orders / _GOODS * 0.95)))


@asynccontextmanager
async def _fleets(stage: Stage, path: Path, out: Path) -> AsyncGenerator[list[Fleet]]:
    """Start provider and desk, which are left alone, and the workers of the services, which are not."""
    provider, desk = _free_port(), _free_port()
    own = {**stage.environment, BOOKS: str(path), PROVIDER_PORT: str(provider), DESK_PORT: str(desk)}
    # Each worker knows the commands of its service only. An order may be offered to the others for as long as it takes.
    own["COMMAND_BUS_UNKNOWN_GRACE"] = str(_GRACE)
    async with AsyncExitStack() as stack:
        for name in ("provider", "desk"):
            await stack.enter_async_context(Fleet(f"examples.checkout.{name}", 1, 0, own, out / name))
        yield [
            await stack.enter_async_context(Fleet(f"examples.checkout.{name}", count, 64, own, out / name))
            for name, count in _SERVICES.items()
        ]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


async def _kill(fleets: list[Fleet], period: float, console: Console) -> None:
    """Kill a worker of one service after the other; that of orders each second time."""
    orders, *others = fleets
    for fleet in itertools.cycle(each for other in others for each in (orders, other)):
        await asyncio.sleep(period)
        for each in fleets:
            each.check()
        console.print(f"killed worker {await fleet.kill_one()}; another one starts")


async def _shop(bus: CommandBus, options: Options, killing: asyncio.Task[None]) -> dict[str, str]:
    """Place orders for a while; return how each ended."""
    rng, ends = random.Random(options.seed), dict[str, str]()
    until = time.monotonic() + options.seconds
    try:
        async with asyncio.timeout(options.seconds + _PATIENCE), asyncio.TaskGroup() as customers:
            for number in itertools.count(1):
                if time.monotonic() > until:
                    break
                if killing.done():
                    killing.result()
                order = Checkout(
                    order=f"order-{number}", sku=f"sku-{rng.randrange(_GOODS)}", cents=rng.choice((500, 2_000, 9_900, LARGE))
                )
                customers.create_task(_buy(bus, order, ends))
                if number % _CANCELLED == 0:
                    customers.create_task(_regret(bus, order, rng.uniform(0.1, 4.0)))
                await asyncio.sleep(1 / options.rate)
            killing.cancel()
    except TimeoutError:
        raise Stalled(f"{(await bus.stats()).depth} commands had not ended in {_PATIENCE:.0f} s") from None
    return ends


def _name(order: Checkout) -> str:
    return f"checkout-{order.order}"


async def _buy(bus: CommandBus, order: Checkout, ends: dict[str, str]) -> None:
    try:
        await bus.call(order, command_id=_name(order), timeout=_PATIENCE * 2)
    except CommandRejected as error:
        ends[str(order.order)] = error.code
    except CommandCancelled:
        ends[str(order.order)] = "cancelled"
    except CommandBusError as error:
        ends[str(order.order)] = f"{type(error).__name__}: {error}"
    else:
        ends[str(order.order)] = "shipped"


async def _regret(bus: CommandBus, order: Checkout, after: float) -> None:
    await asyncio.sleep(after)
    await bus.commands.cancel(_name(order), running=True, reason="the customer has changed their mind")


async def _kept(stage: Stage) -> int:
    return len([name async for name in stage.client.scan_iter(match=f"*{stage.settings.namespace}*x:*", count=2000)])
