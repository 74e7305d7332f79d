"""Orders over three services, with payments and approvals: the exit code is 0 if everything took effect as it must, 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from examples.checkout.run import Options, run
from examples.flights.program import conclude

__all__ = ["main"]

_OUT = Path(__file__).parent / "out"


def _options(words: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m examples.checkout", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="for which orders come in (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=5.0, metavar="N", help="orders a second (default: %(default)s)")
    parser.add_argument("--period", type=float, default=1.0, metavar="S", help="seconds between two kills (default: %(default)s)")
    parser.add_argument("--url", help="the server (default: COMMAND_BUS_URL, REDIS_URL, else an embedded one)")
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR", help="where books and logs go (default: examples/checkout/out)"
    )
    return Options(**vars(parser.parse_args(words)))


def main(words: list[str] | None = None) -> int:
    """Run the example and print the result."""
    console = Console(highlight=False)
    return conclude(console, run(_options(words), console))


if __name__ == "__main__":
    sys.exit(main())
