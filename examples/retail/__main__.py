"""Purchases as a stream through the bus: the exit code is 0 if every row is accounted for and every customer agrees, 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from rich.console import Console

from command_bus import CommandBusError
from examples.flights.fleet import WorkerEnded
from examples.flights.session import NoSpark, require_spark
from examples.flights.stage import Stalled
from examples.flights.verdict import print_verdict
from examples.retail.options import Options
from examples.retail.table import MissingTable
from examples.retail.watch import QueryFailed

if TYPE_CHECKING:
    from examples.retail.run import Result

__all__ = ["main"]

_OUT = Path(__file__).parent / "out"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _options(words: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m examples.retail", description=__doc__)
    parser.add_argument(
        "--customers", type=_positive, metavar="N", help="only the purchases of N customers (default: all 23,570)"
    )
    parser.add_argument("--seed", type=int, default=1997, help="chooses them (default: %(default)s)")
    parser.add_argument("--workers", type=_positive, default=2, metavar="N", help="worker processes (default: %(default)s)")
    parser.add_argument(
        "--concurrency", type=_positive, default=64, metavar="N", help="customers per worker at a time (default: %(default)s)"
    )
    parser.add_argument("--url", help="the server (default: COMMAND_BUS_URL, REDIS_URL, else an embedded one)")
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR", help="where pictures and logs go (default: examples/retail/out)"
    )
    arguments = parser.parse_args(words)
    return Options(**vars(arguments))


def main(words: list[str] | None = None) -> int:
    """Run the example and print the result."""
    options = _options(words)
    console = Console(highlight=False)
    try:
        require_spark()
        from examples.retail.run import run

        result = run(options, console)
    except NoSpark as missing:
        console.print(f"{missing}.", markup=False, soft_wrap=True)
        return 1
    except (CommandBusError, RedisError, MissingTable, QueryFailed, Stalled, WorkerEnded) as error:
        console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        console.print(str(error), markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; the workers are stopped and the run's keys removed[/]")
        return 130
    _report(console, result, options)
    return 0 if result.right else 1


def _report(console: Console, result: Result, options: Options) -> None:
    from examples.retail.picture import draw

    print_verdict(console, result.checks)
    for customer in result.differing[:3]:
        account = result.accounts.get(customer)
        found = "none" if account is None else account.totals
        console.print(f"[red]customer {customer}: {found} through the bus, {result.wanted.get(customer)} by Spark[/]")
    dollars = sum(account.cents for account in result.accounts.values()) / 100
    console.print(
        f"{result.rows:,} rows in {result.seconds:.1f} s; {len(result.accounts):,} customers spent {dollars:,.2f} dollars."
    )
    console.print(f"Reconciliation: {result.page}", soft_wrap=True)
    console.print(f"Picture: {draw(result, options.out)}", soft_wrap=True)
    console.print("[bold green]Everything agrees.[/]" if result.right else "[bold red]Something is wrong, see above.[/]")


if __name__ == "__main__":
    sys.exit(main())
