"""The run with Spark: the table as a DataFrame, dispatched from several partitions, and the outcomes read back and reconciled.

The aircraft are compared with Spark's own ordered fold of the source table (`fold`), which knows nothing of commands.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from rich.console import Console

from command_bus.spark import DispatchReport, Reconciliation, command_id, dispatch_report, in_order, reconcile
from command_bus.spark.errors import from_spark
from examples.flights import fold, frames
from examples.flights.commands import Arrive, Depart
from examples.flights.crash import MARKS, crashing, doomed, marks_in
from examples.flights.fleet import Fleet
from examples.flights.hangar import Hangar
from examples.flights.report import compare, print_census, state_checks
from examples.flights.run import BACKLOG, Closing, Departure, Options, Result, Voyage
from examples.flights.session import ask, spark_session
from examples.flights.stage import Stage, open_stage
from examples.flights.verdict import Check, equal, within

__all__ = ["run"]

_LEASE = 4.0  # seconds: short, but the workers share their processors with a JVM
_PARTITIONS = 4
_DISPATCH = "flights-2013"
_ORDER = "Spark's tasks send each aircraft's commands in the order of what really happened, many aircraft at a time."
_BAD = ("pending", "missing", "unexpected", "duplicated", "out_of_order")


def run(options: Options, console: Console, closing: Closing) -> Result:
    """Send the chosen flights through the bus and compare what comes out.

    Raises:
        MissingTable: The table is not installed.
        CommandBusError: Spark could not send.
        Stalled: Nothing was accepted or completed for a minute.
        WorkerEnded: A worker ended by itself.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flights-")))
        os.environ[MARKS] = str(scratch)  # Spark's tasks inherit it
        with console.status("starting Spark"):
            spark = stack.enter_context(spark_session("flights", options.out / "spark.log", partitions=_PARTITIONS))
        with console.status("reading the table of flights"):
            table = frames.flights(spark, frames.unzipped(scratch)).cache()
            rows = _chosen(table, options).cache()
            print_census(console, frames.census(table), chosen := frames.census(rows), _ORDER)
            table.unpersist()
        return asyncio.run(_run(rows, chosen.commands, scratch, options, console, closing))


def _chosen(table: DataFrame, options: Options) -> DataFrame:
    if options.days is not None:
        return frames.window_of_days(table, options.days)
    return table if options.sample is None else frames.sample_of_aircraft(table, options.sample, options.seed)


async def _run(rows: DataFrame, commands: int, scratch: Path, options: Options, console: Console, closing: Closing) -> Result:
    async with (
        open_stage("flights", options.url, lease=_LEASE, backlog=BACKLOG) as stage,
        Fleet("examples.flights.worker", options.workers, options.concurrency, stage.environment, options.out) as fleet,
    ):
        spark = rows.sparkSession
        console.print(
            f"Spark {spark.version}, {_PARTITIONS} partitions; {stage.server}; namespace {stage.settings.namespace}; "
            f"{options.workers} worker processes × {options.concurrency} aircraft at a time"
        )
        arranged = _arranged(rows)
        voyage = Voyage(stage.bus, fleet, commands, kill=options.kill)
        stats = await voyage.sail(ask(spark, _write, arranged, stage, commands, options), console)
        report = await ask(spark, _report, arranged, stage)
        with console.status("dispatching the same once more"):
            await ask(spark, _write, arranged, stage, commands, options)
            added_again = (await stage.bus.stats()).accepted - stats.accepted
        with console.status("reading the outcomes back"):
            ledger = await ask(spark, reconcile, report)
            page = await ask(spark, ledger.write, options.out)
        with console.status("folding the table in Spark"):
            wanted = await ask(spark, fold.expected, rows)
            departures = await ask(spark, _departures, rows)
        comparison = compare(wanted, await Hangar(stage.client, stage.settings.namespace).load_all(sorted(wanted)))
        killed_tasks = marks_in(scratch)
        allowed = len(fleet.killed) * options.concurrency
        result = Result(
            commands=commands,
            comparison=comparison,
            checks=[
                *_checks(commands, report, ledger, added_again, killed_tasks if options.fail_tasks else None),
                *state_checks(commands, stats, comparison, repeats_allowed=allowed),
            ],
            departures=departures,
            seconds=voyage.readings[-1].at,
            server=f"Spark {spark.version}, {stage.server}",
            readings=voyage.readings,
            killed_at=voyage.killed_at,
            remarks=[*_remarks(report, killed_tasks), f"Reconciliation: {page}"],
        )
        await closing(result, stage.bus)
        return result
    raise AssertionError("the stack swallows nothing")


def _arranged(rows: DataFrame) -> DataFrame:
    """Arrange the commands with their ids, an aircraft's in one partition and in order."""
    commands = frames.commands(rows).withColumn("command_id", command_id(*frames.KEY))
    return in_order(commands, "tail", "seq", partitions=_PARTITIONS)


def _write(commands: DataFrame, stage: Stage, count: int, options: Options) -> None:
    """Dispatch them, as your own pipeline would."""
    given = {
        "url": stage.url,
        "namespace": stage.settings.namespace,
        "command": ",".join(f"{kind.__module__}:{kind.__name__}" for kind in (Depart, Arrive)),
        "commandColumn": "command",
        "sequenceColumn": "seq",
        "dispatchId": _DISPATCH,
        "maxBacklog": str(BACKLOG),
        "outcomes": "1 hour",
    }
    if options.fail_tasks:
        # In the middle of a partition, when some batches of it are in the bus: a batch is sent when all of it is packed.
        after = max(4, count // _PARTITIONS // 2)
        commands.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(after // 4))
        commands = doomed(commands, after)
        given |= {"mapper": f"{crashing.__module__}:{crashing.__name__}", "batchSize": str(min(500, 1 + after // 64))}
    try:
        commands.write.format("command_bus").options(**given).mode("append").save()
    except PySparkException as error:
        raise from_spark(error) from None


def _report(commands: DataFrame, stage: Stage) -> DispatchReport:
    return dispatch_report(commands, _DISPATCH, entity="tail", order_by="seq", url=stage.url, namespace=stage.settings.namespace)


def _checks(
    commands: int, report: DispatchReport, ledger: Reconciliation, added_again: int, killed_tasks: int | None
) -> list[Check]:
    """Return what must hold of Spark's side."""
    again = ("Spark", "rows sent again by retried tasks, and recognised")
    failed = [] if killed_tasks is None else [within("Spark", "tasks killed in mid-write", killed_tasks, least=1)]
    counts = ledger.counts
    return [
        *failed,
        equal("Spark", "rows that its tasks read", report.rows, commands),
        equal("Spark", "commands that they added", report.added, commands),
        within(*again, report.resent, least=1) if failed else equal(*again, report.resent, 0),
        equal("Spark", "rows refused or equal to another", report.rejected + report.duplicates, 0),
        equal("Spark", "commands that the same dispatch adds, run once more", added_again, 0),
        equal("outcomes", "completed", counts["completed"], commands),
        *(equal("outcomes", name.replace("_", " "), counts[name], 0) for name in _BAD),
    ]


def _departures(rows: DataFrame) -> list[Departure]:
    columns = rows.where(frames.flew()).select("sched_local", "dep_delay", "air_time").toArrow().to_pydict()
    return list(zip(columns["sched_local"], columns["dep_delay"], columns["air_time"], strict=True))


def _remarks(report: DispatchReport, killed_tasks: int) -> list[str]:
    remarks = [str(report)]
    if killed_tasks:
        remarks.append(f"{killed_tasks} of Spark's tasks were killed in mid-write; Spark ran them again.")
    return remarks
