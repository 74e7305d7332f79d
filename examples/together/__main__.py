"""Events, subscriptions and a chord while workers are killed: the exit code is 0 if everything agrees, 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from examples.flights.program import conclude
from examples.together.run import Options, run

__all__ = ["main"]

_OUT = Path(__file__).parent / "out"


def _options(words: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m examples.together", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="for which orders are placed and workers killed (default: %(default)s)",
    )
    parser.add_argument("--period", type=float, default=1.0, metavar="S", help="seconds between two kills (default: %(default)s)")
    parser.add_argument("--url", help="the server (default: COMMAND_BUS_URL, REDIS_URL, else an embedded one)")
    parser.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR", help="where logs and the sheet go (default: examples/together/out)"
    )
    return Options(**vars(parser.parse_args(words)))


def main(words: list[str] | None = None) -> int:
    """Run the example and print the result."""
    console = Console(highlight=False)
    return conclude(console, run(_options(words), console))


if __name__ == "__main__":
    sys.exit(main())
