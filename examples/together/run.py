"""One run: orders are placed, money is moved, workers killed, a parked line is repaired; then tiles are painted and bound."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from rich.console import Console

from command_bus import CommandBus
from command_bus.workflows import group
from examples.flights.fleet import Fleet
from examples.flights.program import Result
from examples.flights.stage import Stage, Stalled, open_stage
from examples.flights.verdict import Check, equal
from examples.together.bank import FILE, Transfer, balances, by_hand, open_accounts, transfers
from examples.together.clerk import ACROSS, OUT, STUCK, Frame, Paint, Place, painted, picture

__all__ = ["Options", "run"]

_LEASE, _CUSTOMERS, _PATIENCE = 1.5, 20, 60.0
_FLOWING = ("stock", "mail")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run.

    Attributes:
        seconds: For which orders are placed and workers killed.
        period: Seconds between two kills.
        url: The server; None takes the environment's or an embedded one.
        out: The folder for logs, lines and the sheet.
    """

    seconds: float = 20.0
    period: float = 1.0
    url: str | None = None
    out: Path = Path("examples/together/out")


async def run(options: Options, console: Console) -> Result:
    """Place orders, repair what is parked, paint, and check what came of it.

    Raises:
        CommandBusError: The server cannot be used.
        Stalled: Not all was done in time.
        WorkerEnded: A process ended by itself.
    """
    folder = options.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("stock", "invoice", "mail", "repaired", "sheet.png"):
        (folder / name).unlink(missing_ok=True)
    open_accounts(folder / FILE)
    async with open_stage("together", options.url, lease=_LEASE, backlog=1_000_000) as stage:
        began = time.monotonic()
        async with Fleet("examples.together.clerk", 2, 16, {**stage.environment, OUT: str(folder)}, folder / "logs") as fleet:
            placed, sent = await _orders(stage, fleet, options, console)
            checks = await _while_parked(stage.bus, folder, placed, console)
            (folder / "repaired").touch()
            replayed = await stage.bus.dead_letters.replay_all(parked=True)
            await stage.bus.wait_idle(_PATIENCE)
            checks += [
                equal("invoice", "lines repaired and replayed", replayed, 1),
                *_told(folder, placed),
                *_moved(folder, sent),
            ]
            checks += await _painted(stage.bus, fleet, folder, console)
        left = await stage.bus.stats()
        checks.append(equal("bus", "commands left, and dead letters", left.depth + left.dead_letters, 0))
        return Result(checks, time.monotonic() - began, len(fleet.killed), stage.server, [f"the sheet is {folder / 'sheet.png'}"])


async def _orders(stage: Stage, fleet: Fleet, options: Options, console: Console) -> tuple[int, list[Transfer]]:
    """Place orders, move money and kill workers for so long; return how many orders were placed, and the transfers."""
    until, next_kill, number = time.monotonic() + options.seconds, time.monotonic() + options.period, 0
    sent, money = list[Transfer](), transfers()
    while time.monotonic() < until:
        orders = [Place(customer=f"c-{(number + each) % _CUSTOMERS}", number=number + each) for each in range(_CUSTOMERS)]
        moving = [next(money) for _ in range(_CUSTOMERS // 4)]
        sent += moving
        result = await stage.bus.dispatch_batch([*orders, *moving])
        if result.rejected:
            raise Stalled(f"an order was not accepted: {next(each.error for each in result.outcomes if each.error)}")
        number += len(orders)
        await asyncio.sleep(0.05)
        if time.monotonic() >= next_kill:
            fleet.check()
            next_kill += options.period
            told = f"{number:,} orders, {len(sent):,} transfers"
            console.print(f"{told}; killed worker {await fleet.kill_one()}; another one starts")
    return number, sent


def _moved(folder: Path, sent: list[Transfer]) -> list[Check]:
    """Check that money is conserved, and that each account has what it would have in the order of acceptance."""
    found, wanted = balances(folder / FILE), by_hand(sent)
    return [
        equal("bank", "cents in all accounts", sum(found.values()), sum(wanted.values())),
        equal(
            "bank",
            f"accounts as after {len(sent):,} transfers in order",
            sum(found[each] == wanted[each] for each in wanted),
            len(wanted),
        ),
    ]


async def _while_parked(bus: CommandBus, folder: Path, placed: int, console: Console) -> list[Check]:
    """Wait until the others have all, and the invoices of one customer stand."""
    until, stuck = time.monotonic() + _PATIENCE, placed // _CUSTOMERS
    while time.monotonic() < until:
        invoices = await bus.subscriptions.get("invoice")
        if invoices.waiting == stuck and all(len({*_lines(folder, name)}) >= placed for name in _FLOWING):
            console.print(f"{STUCK} is parked with {stuck:,} invoices; stock and mail have all {placed:,} orders")
            return [
                equal("invoice", "lines parked", invoices.parked, 1),
                equal("invoice", "waiting behind it", invoices.waiting, stuck),
            ]
        await asyncio.sleep(0.2)
    raise Stalled("stock and mail do not get all orders while invoices are parked")


def _told(folder: Path, placed: int) -> list[Check]:
    """Check that each subscription got each order once, in the order of its customer. A killed worker may have written a line twice."""
    found: list[Check] = []
    for name in (*_FLOWING, "invoice"):
        lines = [*dict.fromkeys(_lines(folder, name))]
        numbers: dict[str, list[int]] = {}
        for line in lines:
            customer, number, _ = line.split()
            numbers.setdefault(customer, []).append(int(number))
        found += [
            equal(name, "orders told", len(lines), placed),
            equal(name, "customers out of order", sum(each != sorted(each) for each in numbers.values()), 0),
        ]
    return found


def _lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().splitlines() if (folder / name).exists() else []


async def _painted(bus: CommandBus, fleet: Fleet, folder: Path, console: Console) -> list[Check]:
    """Paint all tiles, kill a worker meanwhile, and compare the sheet with one that is painted here."""
    tiles = group(Paint(tile=f"t-{number}", number=number) for number in range(ACROSS * ACROSS))
    receipt = await bus.dispatch(tiles.then(Frame(sheet="sheet"), takes="tiles"), command_id="album")
    await asyncio.sleep(0.3)
    console.print(f"painting; killed worker {await fleet.kill_one()}; another one starts")
    bound = await receipt.result(timeout=_PATIENCE)
    wanted = picture([painted(number) for number in range(ACROSS * ACROSS)])
    here = (folder / "sheet.png").read_bytes() == wanted and bound == sha256(wanted).hexdigest()
    return [equal("album", "sheets as they are painted here", int(here), 1)]
