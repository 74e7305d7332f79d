"""One run: the feed, the stream through the bus, and the account of every row."""

from __future__ import annotations

import asyncio
import random
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from command_bus import DeadLetter, Stats
from command_bus.spark import Reconciliation
from examples.flights.fleet import Fleet
from examples.flights.session import ask, spark_session
from examples.flights.stage import open_stage
from examples.flights.verdict import Check, equal, within
from examples.retail import stream, table
from examples.retail.drive import Drive
from examples.retail.handlers import LARGE
from examples.retail.ledger import Ledger
from examples.retail.model import Account
from examples.retail.options import Options
from examples.retail.report import print_feed, print_rejects
from examples.retail.watch import Reading, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Result", "run"]

_SLICES = 8
_SLICES_WAIT = 0.25  # how much of a slice may wait in the bus; the stream waits beyond
_LEASE = 4.0
# A query that is stopped leaves its tasks two seconds to end by themselves; here it is to be a stop in mid-write.
_SPARK = {"spark.python.task.killTimeout": "50ms"}
_BAD = ("dead_lettered", "parked", "pending", "missing", "unexpected", "duplicated", "out_of_order")
_TOTAL = 50_000  # commands that the bus would take from any producer


@dataclass(slots=True)
class Result:
    """All that the report and the picture need.

    Attributes:
        accounts: As the bus left them.
        wanted: Purchases, discs and cents of each customer, by Spark.
        letters: The dead letters, before they were replayed.
        fates: How many rows had which end.
        weekly: Of each week the dollars, and those that came from customers on their first day.
        backlog: Commands that could wait.
    """

    rows: int
    accounts: dict[str, Account]
    wanted: dict[str, tuple[int, int, int]]
    letters: list[DeadLetter]
    fates: dict[str, int]
    weekly: list[tuple[float, float]]
    checks: list[Check]
    seconds: float
    server: str
    backlog: int
    readings: list[Reading] = field(default_factory=list[Reading])
    marks: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    page: Path | None = None

    @property
    def differing(self) -> list[str]:
        """Customers whose totals are not what Spark says."""
        found = {customer: account.totals for customer, account in self.accounts.items()}
        return sorted(customer for customer in {*found, *self.wanted} if found.get(customer) != self.wanted.get(customer))

    @property
    def right(self) -> bool:
        """Whether everything holds."""
        return all(check.holds for check in self.checks)


def run(options: Options, console: Console) -> Result:
    """Stream the purchases through the bus and account for every row.

    Raises:
        MissingTable: The table is not installed.
        CommandBusError: Spark could not send.
        Stalled: Nothing moved for a minute.
        WorkerEnded: A worker ended by itself.
    """
    rows = chosen(table.read_rows(), options)
    slices = table.slices([*rows, *table.SPOILT], _SLICES)
    backlog = max(20, int(len(slices[0]) * _SLICES_WAIT))
    print_feed(console, rows, table.SPOILT, slices, backlog)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retail-")))
        with console.status("starting Spark"):
            spark = stack.enter_context(spark_session("retail", options.out / "spark.log", partitions=2, settings=_SPARK))
        return asyncio.run(_run(spark, rows, slices, backlog, folder, options, console))


def chosen(rows: list[table.Row], options: Options) -> list[table.Row]:
    """Return the purchases of the customers of this run, always with those who paid much, for the dead letters."""
    if options.customers is None:
        return rows
    payers = {row.customer for row in rows if Decimal(row.dollars) >= LARGE}
    others = sorted({row.customer for row in rows} - payers)
    count = max(0, min(options.customers - len(payers), len(others)))
    customers = payers.union(random.Random(options.seed).sample(others, count))
    return [row for row in rows if row.customer in customers]


async def _run(
    spark: SparkSession,
    rows: list[table.Row],
    slices: list[list[table.Row]],
    backlog: int,
    folder: Path,
    options: Options,
    console: Console,
) -> Result:
    async with (
        open_stage("retail", options.url, lease=_LEASE, backlog=_TOTAL) as stage,
        Fleet("examples.retail.worker", options.workers, options.concurrency, stage.environment, options.out) as fleet,
    ):
        console.print(
            f"Spark {spark.version}; {stage.server}; namespace {stage.settings.namespace}; "
            f"{options.workers} worker processes × {options.concurrency} customers at a time"
        )
        watch = Watch(stage.bus, fleet, console, backlog, sum(map(len, slices)), len(rows))
        drive = Drive(spark, stage, watch, folder)
        letters = await drive.through(slices)
        stats = await stage.bus.stats()
        with console.status("reading the outcomes back"):
            ledger = await ask(spark, stream.account, spark, drive.arrivals, drive.query_id, stage)
            page = await ask(spark, ledger.write, options.out)
            rejects = await ask(spark, stream.read, spark, "rejects", drive.query_id, stage)
            (dispatch,) = await ask(spark, stream.read, spark, "dispatches", drive.query_id, stage)
        with console.status("adding up the table in Spark"):
            customers = None if options.customers is None else sorted({row.customer for row in rows})
            bought = stream.bought(spark, table.table_path(), customers)
            wanted, weekly = await ask(spark, stream.totals, bought), await ask(spark, stream.weekly, bought)
        accounts = await Ledger(stage.client, stage.settings.namespace).load_all()
        print_rejects(console, rejects)
        result = Result(
            rows=watch.rows,
            accounts=accounts,
            wanted=wanted,
            letters=letters,
            fates=_fates(ledger, letters),
            weekly=weekly,
            checks=[],
            seconds=watch.readings[-1].at,
            server=f"Spark {spark.version}, {stage.server}",
            backlog=backlog,
            readings=watch.readings,
            marks=watch.marks,
            page=page,
        )
        result.checks += _checks(result, rows, ledger, stats, dispatch)
        return result
    raise AssertionError("the stack swallows nothing")


def _fates(ledger: Reconciliation, letters: list[DeadLetter]) -> dict[str, int]:
    counts = ledger.counts
    return {
        "applied": counts["completed"] - len(letters),
        "applied after repair": len(letters),
        "refused: double booking": counts["rejected"],
        "quarantined: no purchase": counts["quarantined"],
    }


def _checks(result: Result, rows: list[table.Row], ledger: Reconciliation, stats: Stats, dispatch: dict[str, Any]) -> list[Check]:
    """Return everything that must hold after the run."""
    counts = ledger.counts
    doubles = len(rows) - len({row[1:] for row in rows})
    large = sum(Decimal(row.dollars) >= LARGE for row in rows)
    accounts = result.accounts.values()
    cents = sum(Decimal(dollars) for _, dollars in {(row[1:], row.dollars) for row in rows}) * 100
    return [
        equal("the stream", "commands accepted", stats.accepted, len(rows)),
        within("the stream", "rows that it sent again after the stop, and the bus knew", dispatch["duplicates"], least=1),
        equal("the stream", "rows quarantined", counts["quarantined"], len(table.SPOILT)),
        within("the stream", "commands that waited at most", max(each.waiting for each in result.readings), most=result.backlog),
        equal("outcomes", "completed", counts["completed"], len(rows) - doubles),
        equal("outcomes", "refused as double booking", counts["rejected"], doubles),
        equal("outcomes", "dead letters repaired and replayed", len(result.letters), large),
        *(equal("outcomes", name.replace("_", " "), counts[name], 0) for name in _BAD),
        equal("the bus", "left behind", stats.depth + stats.dead_letters, 0),
        equal("the handler", "purchases out of order", sum(account.violations for account in accounts), 0),
        equal("the customers", "agree with Spark's GROUP BY", len(result.wanted) - len(result.differing), len(result.wanted)),
        equal("the customers", "cents in all accounts", sum(account.cents for account in accounts), int(cents)),
    ]
