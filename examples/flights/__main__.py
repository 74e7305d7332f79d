"""A year of real flights through the bus, by Spark: the exit code is 0 if every aircraft agrees with the table, 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from redis.exceptions import RedisError
from rich.console import Console

from command_bus import CommandBus, CommandBusError
from examples.flights.data import MissingTable
from examples.flights.dispatching import Refused
from examples.flights.fleet import WorkerEnded
from examples.flights.report import print_difference, print_findings
from examples.flights.run import Options, Result
from examples.flights.session import NoSpark, require_spark
from examples.flights.stage import Stalled
from examples.flights.verdict import print_verdict

__all__ = ["main"]

_SAMPLE = 1_000  # aircraft of the default run
_OUT = Path(__file__).parent / "out"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--lite", action="store_true", help="without Spark: one producer in plain Python")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--full", action="store_true", help="the whole year: 655,867 commands for 4,037 aircraft")
    which.add_argument(
        "--sample", type=_positive, metavar="N", help=f"all flights of N aircraft, chosen by chance (default: {_SAMPLE:,})"
    )
    which.add_argument("--days", type=_positive, metavar="N", help="the flights of the first N days of the year")
    parser.add_argument("--seed", type=int, default=2013, help="chooses the aircraft of a sample (default: %(default)s)")
    parser.add_argument("--workers", type=_positive, default=2, metavar="N", help="worker processes (default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=_positive, default=128, metavar="N", help="aircraft per worker at a time (default: %(default)s)"
    )
    parser.add_argument("--no-kill", action="store_true", help="do not kill a worker on the way")
    parser.add_argument("--fail-tasks", action="store_true", help="kill each of Spark's tasks once, in mid-write")
    parser.add_argument("--dashboard", action="store_true", help="at the end serve the dashboard over this bus, until Ctrl-C")
    parser.add_argument("--url", help="the server (default: COMMAND_BUS_URL, REDIS_URL, else an embedded one)")
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR", help="where pictures and logs go (default: examples/flights/out)"
    )
    arguments = parser.parse_args(words)
    if arguments.lite and arguments.fail_tasks:
        parser.error("--fail-tasks kills Spark's tasks, and --lite has none")
    return arguments


def _options(arguments: argparse.Namespace) -> Options:
    everything = arguments.full or arguments.days is not None
    return Options(
        sample=None if everything else arguments.sample or _SAMPLE,
        days=arguments.days,
        seed=arguments.seed,
        workers=arguments.workers,
        concurrency=arguments.concurrency,
        url=arguments.url,
        out=arguments.out,
        kill=not arguments.no_kill,
        fail_tasks=arguments.fail_tasks,
        dashboard=arguments.dashboard,
    )


def main(words: list[str] | None = None) -> int:
    """Run the demo and print the result."""
    arguments = _arguments(words)
    console = Console(highlight=False)
    options = _options(arguments)
    try:
        result = _run(options, console, lite=arguments.lite)
    except NoSpark as missing:
        console.print(f"{missing}. Without Spark: python -m examples.flights --lite", markup=False, soft_wrap=True)
        return 1
    except (CommandBusError, RedisError, MissingTable, Refused, Stalled, WorkerEnded) as error:
        console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        console.print(str(error), markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; the workers are stopped and the run's keys removed[/]")
        return 130
    return 0 if result.right else 1


def _run(options: Options, console: Console, *, lite: bool) -> Result:
    async def close(result: Result, bus: CommandBus) -> None:
        _report(console, result, options)
        if options.dashboard:
            from examples.flights.tower import watch_from_tower

            await watch_from_tower(bus, console)

    if lite:
        from examples.flights.lite import run

        return run(options, console, close)
    require_spark()
    from examples.flights.pipeline import run as run_pipeline

    return run_pipeline(options, console, close)


def _report(console: Console, result: Result, options: Options) -> None:
    from examples.flights.picture import draw

    print_verdict(console, result.checks)
    if options.kill and result.killed_at is None:
        console.print("[yellow]The run was over before a worker could be killed: take a larger sample.[/]")
    if result.comparison.differing:
        print_difference(console, result.comparison)
    else:
        print_findings(console, result.comparison.found)
    console.print(f"{result.commands:,} commands in {result.seconds:.1f} s: {result.commands / result.seconds:,.0f} a second.")
    for remark in result.remarks:
        console.print(remark)
    console.print(f"Picture: {draw(result, options.out)}", soft_wrap=True)
    console.print("[bold green]Everything agrees.[/]" if result.right else "[bold red]Something is wrong, see above.[/]")


if __name__ == "__main__":
    sys.exit(main())
