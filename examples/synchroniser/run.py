"""One run: everything is sent at once, workers are killed, and the books are checked."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from command_bus import CommandBus, Rate
from examples.flights.fleet import Fleet
from examples.flights.program import Result
from examples.flights.stage import Stalled, open_stage
from examples.synchroniser.books import Books
from examples.synchroniser.commands import PARTNER, Edit, Refund, Sync
from examples.synchroniser.handlers import LEDGERS
from examples.synchroniser.partner import Partner
from examples.synchroniser.proof import Sent, checks
from examples.synchroniser.worker import BOOKS, PORT

__all__ = ["Options", "run"]

_ASKED = Rate(50, per=1.0, burst=20)
"""What the bus asks of the partner, a little less than that answers."""
_LEASE = 1.5
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run.

    Attributes:
        shops: How many, each with so many pages.
        refunds: How many come in while the shops are imported.
        products: How many are edited again and again.
        period: Seconds between two kills.
        url: The server; None takes the environment's or an embedded one.
        out: The folder for the books and logs.
    """

    shops: int = 200
    pages: int = 3
    refunds: int = 60
    products: int = 10
    edits: int = 300
    workers: int = 3
    period: float = 1.5
    seed: int = 1
    url: str | None = None
    out: Path = Path("examples/synchroniser/out")


async def run(options: Options, console: Console) -> Result:
    """Send everything, kill workers, wait until all is done, and check the books.

    Raises:
        CommandBusError: The server cannot be used.
        Stalled: It was not done in a minute.
        WorkerEnded: A worker ended by itself.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "books.sqlite"
    for old in options.out.glob("books.sqlite*"):
        old.unlink()
    books = Books(path)
    async with Partner() as partner, open_stage("synchroniser", options.url, lease=_LEASE, backlog=100_000) as stage:
        own = {BOOKS: str(path.resolve()), PORT: str(partner.port)}
        await stage.bus.limits.put(PARTNER, _ASKED)
        began = time.time()
        async with Fleet("examples.synchroniser.worker", options.workers, 64, {**stage.environment, **own}, options.out) as fleet:
            killing = asyncio.create_task(_kill(fleet, options.period, console))
            sent = await _send(stage.bus, options)
            await _until_done(stage.bus, books, sent, fleet)
            killing.cancel()
            for ledger in LEDGERS:
                await stage.bus.schedules.pause(f"close-{ledger}", "the run is over")
            await stage.bus.wait_idle(_PATIENCE)
            stats = await stage.bus.stats()
        seconds = time.time() - began
        found = checks(books, partner, sent, stats, killed=len(fleet.killed))
        return Result(found, seconds, len(fleet.killed), stage.server)


async def _send(bus: CommandBus, options: Options) -> Sent:
    """Send the imports at once, then refunds and edits beside them."""
    rng = random.Random(options.seed)
    sent = Sent(options.shops * options.pages)
    await bus.dispatch_batch(Sync(shop=f"s-{shop}", page=page) for page in range(options.pages) for shop in range(options.shops))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_refund(bus, options, sent))
        tasks.create_task(_edit(bus, options, rng, sent))
    return sent


async def _refund(bus: CommandBus, options: Options, sent: Sent) -> None:
    for number in range(options.refunds):
        order = f"o-{number}"
        sent.refunds[order] = time.time()
        await bus.dispatch(Refund(order=order, cents=1000))
        await asyncio.sleep(0.1)


async def _edit(bus: CommandBus, options: Options, rng: random.Random, sent: Sent) -> None:
    for version in range(1, options.edits + 1):
        product = f"p-{rng.randrange(options.products)}"
        await bus.dispatch(Edit(product=product, version=version))
        sent.edits[product] = version
        await asyncio.sleep(0.02)


async def _kill(fleet: Fleet, period: float, console: Console) -> None:
    while True:
        await asyncio.sleep(period)
        fleet.check()
        console.print(f"killed worker {await fleet.kill_one()}; another one starts")


async def _until_done(bus: CommandBus, books: Books, sent: Sent, fleet: Fleet) -> None:
    """Wait until the imports, refunds and edits are done; the closing of books goes on."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        fleet.check()
        ((pages,),) = books.rows("SELECT COUNT(*) FROM (SELECT DISTINCT shop, page FROM synced)")
        ((orders,),) = books.rows("SELECT COUNT(DISTINCT order_id) FROM refunded")
        indexed = dict(books.rows("SELECT product, MAX(version) FROM indexed GROUP BY product"))
        if (pages, orders) == (sent.pages, len(sent.refunds)) and indexed == sent.edits:
            return
        await asyncio.sleep(0.2)
    stats = await bus.stats()
    raise Stalled(f"not done in {_PATIENCE:.0f} s: {stats.depth} commands wait")
