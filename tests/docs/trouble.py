"""A live bus with real trouble in it, for the transcripts of the command line and for its tests.

    a parked entity     its handler cannot reach the card reader (until a file `card-reader` is there)
    a stuck handler     an export that never ends, with commands waiting behind it
    a dead worker       killed while it ran an at_most_once command
    an unknown command  that no worker handles, holding its entity
    a paused entity     by an operator, with a reason

The server, the workers and the program are processes, as in production.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from command_bus import CommandBus, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from tests.program import run_program

__all__ = ["APP", "NAMESPACE", "ROOT", "Trouble"]

ROOT = Path(__file__).parents[2]
NAMESPACE = "shop"
_LEASE = 2.0

APP = """
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from pydantic import Field

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, Query, RetryPolicy

registry = HandlerRegistry()
balances: dict[str, int] = {}


class Deposit(Command[int], entity="account"):
    \"\"\"Put money on an account; gives the new balance.\"\"\"

    account_id: EntityId
    amount: Annotated[int, Field(gt=0)]


class GetBalance(Query[int], entity="account"):
    account_id: EntityId


class Charge(Command[str], entity="order", retry=RetryPolicy(attempts=2, delay=0.05), on_poison="park"):
    order_id: EntityId
    cents: int


class Export(Command[None], entity="report"):
    report: EntityId
    month: int


class Ship(Command[None], entity="parcel", delivery="at_most_once"):
    parcel: EntityId


@registry.handles(Deposit)
async def deposit(command: Deposit) -> int:
    account = str(command.account_id)
    balances[account] = balances.get(account, 0) + command.amount
    return balances[account]


@registry.handles(GetBalance)
async def get_balance(query: GetBalance) -> int:
    return balances.get(str(query.account_id), 0)


@registry.handles(Charge)
async def charge(command: Charge) -> str:
    if not Path("card-reader").exists():
        raise OSError("the card reader does not answer")
    return "charged"


@registry.handles(Export)
async def export(command: Export) -> None:
    await asyncio.sleep(3600)


@registry.handles(Ship)
async def ship(command: Ship) -> None:
    await asyncio.sleep(3600)


bus = CommandBus(registry=registry, lease=2.0, grace=0.2, unknown_grace=600)
"""


class Trouble:
    """A bus with trouble: `async with Trouble(folder) as trouble: trouble.run("stats")`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = EmbeddedServer.start(tcp=True, persistence=folder / "data")
        self.url = self._server.url
        hidden = {"COMMAND_BUS_EMBEDDED_URL"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden} | {
            "COMMAND_BUS_URL": self.url,
            "COMMAND_BUS_NAMESPACE": NAMESPACE,
            "PYTHONPATH": f"{folder / 'bin'}{os.pathsep}{ROOT}",
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "140",
        }
        self._workers: list[subprocess.Popen[bytes]] = []

    async def __aenter__(self) -> Self:
        (self.folder / "shop.py").write_text(APP)
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "sitecustomize.py").write_text('import socket\n\nsocket.gethostname = lambda: "host-1"\n')
        program = self.folder / "bin" / "command-bus"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m command_bus "$@"\n')
        program.chmod(0o755)
        try:
            await self._make()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def bus(self) -> CommandBus:
        """Return a bus of an operator, without the application's code."""
        return CommandBus(self.url, namespace=NAMESPACE, registry=HandlerRegistry(), lease=_LEASE)

    def run(self, *arguments: str, given: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the program; without `given` its standard input is empty, and never a terminal."""
        return run_program(*arguments, cwd=self.folder, env={**self.environment, **environment}, given=given or "")

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of shell, in which the program is called `command-bus`."""
        return subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self, *arguments: str, log: str = "log") -> subprocess.Popen[bytes]:
        """Start the program and leave it running; its output goes to a file."""
        with (self.folder / log).open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "command_bus", *arguments], cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )
        self._workers.append(process)
        return process

    async def _make(self) -> None:
        self.start("worker", "shop")
        async with self.bus() as bus:
            await _until(lambda: _count(bus, alive=1))
            doomed = self._workers[0]
            await bus.dispatch_raw("parcel", "p-5", "Ship", {"parcel": "p-5"}, command_id="ship-5")
            await _until(lambda: _stand(bus, {"parcel:p-5": "running"}))
            doomed.kill()
            doomed.wait()
            self.start("worker", "shop")
            await _until(lambda: _letters(bus, 1))
            for cents in (995, 2995, 150):
                await bus.dispatch_raw(
                    "order", "o-7", "Charge", {"order_id": "o-7", "cents": cents}, command_id=f"charge-{cents}"
                )
            for month in (9, 10):
                await bus.dispatch_raw(
                    "report", "sales", "Export", {"report": "sales", "month": month}, command_id=f"export-{month}"
                )
            await bus.dispatch_raw("account", "a-9", "Refund", {"account_id": "a-9", "amount": 5}, command_id="refund-1")
            await bus.dispatch_raw("account", "a-9", "Deposit", {"account_id": "a-9", "amount": 5}, command_id="deposit-9")
            await bus.entity("account", "a-3").pause("asked by support, ticket 4711")
            for number in range(4):
                fields = {"account_id": "a-3", "amount": 10 + number}
                await bus.dispatch_raw("account", "a-3", "Deposit", fields, command_id=f"deposit-3-{number}")
            wanted = {"order:o-7": "parked", "report:sales": "running", "account:a-9": "retrying", "account:a-3": "paused"}
            await _until(lambda: _stand(bus, wanted))
            await _until(lambda: _count(bus, alive=1, lost=1))

    def _end(self) -> None:
        for process in self._workers:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._server.stop()


async def _until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "the trouble did not come about"
        await asyncio.sleep(0.05)


async def _count(bus: CommandBus, *, alive: int, lost: int = 0) -> bool:
    workers = await bus.fleet.workers()
    return (sum(worker.alive for worker in workers), sum(not worker.alive for worker in workers)) == (alive, lost)


async def _stand(bus: CommandBus, wanted: dict[str, str]) -> bool:
    found = {entity.name: entity.state for entity in (await bus.entities.list()).entities}
    return wanted.items() <= found.items()


async def _letters(bus: CommandBus, count: int) -> bool:
    return (await bus.stats()).dead_letters == count
