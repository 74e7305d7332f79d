"""The end of a program that kills its own processes: its result, and what it prints of that."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError
from rich.console import Console

from command_bus import CommandBusError
from examples.flights.fleet import WorkerEnded
from examples.flights.stage import Stalled
from examples.flights.verdict import Check, print_verdict

__all__ = ["Result", "conclude"]


@dataclass(slots=True)
class Result:
    """The result of a run.

    Attributes:
        checks: Lines of the reconciliation.
        seconds: The length of the run.
        killed: The number of processes that were killed.
        server: The server's name and version.
        lines: To be printed besides.
    """

    checks: list[Check]
    seconds: float
    killed: int
    server: str
    lines: Sequence[str] = ()

    @property
    def right(self) -> bool:
        """Return whether everything holds."""
        return all(check.holds for check in self.checks)


def conclude(console: Console, work: Coroutine[Any, Any, Result]) -> int:
    """Do a run and print its result; return the exit code: 0 everything agrees, 1 something is wrong, 130 interrupted."""
    try:
        result = asyncio.run(work)
    except (CommandBusError, RedisError, Stalled, WorkerEnded) as error:
        console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        console.print(str(error), markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; the processes are stopped and the run's keys removed[/]")
        return 130
    print_verdict(console, result.checks)
    for line in result.lines:
        console.print(line, markup=False)
    console.print(f"{result.seconds:.1f} s, {result.killed} processes killed; {result.server}")
    console.print("[bold green]Everything agrees.[/]" if result.right else "[bold red]Something is wrong, see above.[/]")
    return 0 if result.right else 1
