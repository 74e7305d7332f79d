"""The run without Spark: one producer reads the table and dispatches it in chunks with `bus.dispatch_batch`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

from rich.console import Console

from command_bus import Stats
from examples.flights.data import Flight, census, movements, read_flights, sample_of_aircraft, window_of_days
from examples.flights.dispatching import Tally, dispatch_all
from examples.flights.fleet import Fleet
from examples.flights.hangar import Hangar
from examples.flights.reference import expected
from examples.flights.report import Comparison, compare, print_census, state_checks
from examples.flights.run import BACKLOG, Closing, Departure, Options, Result, Voyage
from examples.flights.stage import open_stage
from examples.flights.verdict import Check, equal

__all__ = ["checks", "run"]

_LEASE = 2.0  # seconds: short, so that a killed worker's aircraft are soon taken over
_CHUNK = 1_000
_ORDER = "Commands go out in the order of what really happened, all aircraft interleaved."


def run(options: Options, console: Console, closing: Closing) -> Result:
    """Send the chosen flights through the bus and compare the results.

    Raises:
        MissingTable: The table is not installed.
        Refused: The bus refused a command for good.
        Stalled: Nothing was completed for a minute.
        WorkerEnded: A worker ended by itself.
    """
    with console.status("reading the table of flights"):
        table = read_flights()
    flights = _chosen(table, options)
    print_census(console, census(table), census(flights), _ORDER)
    del table
    return asyncio.run(_run(flights, options, console, closing))


def _chosen(flights: list[Flight], options: Options) -> list[Flight]:
    if options.days is not None:
        return window_of_days(flights, options.days)
    return flights if options.sample is None else sample_of_aircraft(flights, options.sample, options.seed)


async def _run(flights: Sequence[Flight], options: Options, console: Console, closing: Closing) -> Result:
    async with (
        open_stage("flights", options.url, lease=_LEASE, backlog=BACKLOG) as stage,
        Fleet("examples.flights.worker", options.workers, options.concurrency, stage.environment, options.out) as fleet,
    ):
        console.print(
            f"{stage.server}; namespace {stage.settings.namespace}; "
            f"{options.workers} worker processes × {options.concurrency} aircraft at a time"
        )
        voyage = Voyage(stage.bus, fleet, census(flights).commands, kill=options.kill)
        tally = Tally()
        letters = movements(flights)
        gc.freeze()  # the table and its order stay: the collector need not look through them over and over, a second each time
        stats = await voyage.sail(dispatch_all(stage.bus, letters, tally, chunk=_CHUNK), console)
        wanted = expected(flights)
        comparison = compare(wanted, await Hangar(stage.client, stage.settings.namespace).load_all(sorted(wanted)))
        result = Result(
            commands=voyage.commands,
            comparison=comparison,
            checks=checks(voyage.commands, tally, stats, comparison, repeats_allowed=len(fleet.killed) * options.concurrency),
            departures=_departures(flights),
            seconds=voyage.readings[-1].at,
            server=stage.server,
            readings=voyage.readings,
            killed_at=voyage.killed_at,
            remarks=_remarks(tally),
        )
        await closing(result, stage.bus)
        return result
    raise AssertionError("the stack swallows nothing")


def checks(commands: int, tally: Tally, stats: Stats, comparison: Comparison, *, repeats_allowed: int) -> list[Check]:
    """Return everything that must hold after the run."""
    return [
        equal("the producer", "commands accepted", tally.accepted, commands),
        equal("the producer", "duplicates refused", tally.duplicates, tally.resent),
        equal("the bus", "commands accepted", stats.accepted, commands),
        *state_checks(commands, stats, comparison, repeats_allowed=repeats_allowed),
    ]


def _departures(flights: Sequence[Flight]) -> list[Departure]:
    return [(flight.sched_local, flight.dep_delay, flight.air_time) for flight in flights if flight.dep_delay is not None]


def _remarks(tally: Tally) -> list[str]:
    if not tally.full:
        return []
    return [f"{tally.full:,} refusals by a full bus ({BACKLOG:,} commands waiting), each command sent again after a pause."]
