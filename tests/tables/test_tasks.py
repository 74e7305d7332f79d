"""A run of a durable handler that has ended is over, whichever way it ran what it ran, and however it ended."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from command_bus import CommandBus
from command_bus.errors import CommandOutcomeError, UnknownCommand
from command_bus.transport.redis.memory import MemoryClients
from command_bus.worker.worker import Worker
from tests.tables.tasks import ENDS, MOMENT, OPERATIONS, WAYS, Cell, Job, registry_of

TIMED = ("wait_for less", "asyncio.timeout less", "shield", "FIRST_COMPLETED")
"""Ways with a time limit of asyncio: whether it is over first is for each run to see."""
LATER = 6 * MOMENT
PATIENCE = 100.0


def _refusal(cell: Cell) -> str | None:
    """Return the error with which a cell is refused; None: it is not."""
    if cell.way == "to_thread" and cell.operation == "dispatch":
        return "WrongEventLoop"
    if cell.way == "to_thread" and cell.operation not in ("progress", "log"):
        return "BadStep"
    return "BadStep" if cell.way == "group with ours" else None


def _cells(end: str, *, first: bool) -> dict[str, Cell]:
    """Return the cells of one end, of a part: in the first one of as many as there are ends."""
    place = list(ENDS).index(end)
    return {
        cell.name: cell
        for row, way in enumerate(WAYS)
        for column, operation in enumerate(OPERATIONS)
        if ((row + column) % len(ENDS) == place) is first
        for cell in [Cell(way, operation, end)]
    }


@pytest.mark.promise("A run that has ended is over")
@pytest.mark.timeout(180)  # many commands at a time, also on a busy machine
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("first", [pytest.param(True, id="part"), pytest.param(False, id="rest", marks=pytest.mark.slow)])
async def test_a_run_that_has_ended_is_over(end: str, first: bool) -> None:
    cells = _cells(end, first=first)
    clients = MemoryClients()
    bus = CommandBus(clients=clients, registry=registry_of(cells), concurrency=500, lease=1.0, grace=0.3)
    async with bus:
        for name in cells:
            await bus.dispatch(Job(job=name), command_id=name, keep_result=True)
            if end != "is cancelled":
                await bus.commands.signal(name, "given", "yes")
        async with bus.worker() as worker:
            await asyncio.sleep(5 * MOMENT if end in ("is cancelled", "is deployed away") else 0)
            if end == "is cancelled":
                for name in cells:
                    await bus.commands.cancel(name, running=True, reason="not wanted")
            if end == "is suspended":
                await asyncio.sleep(12 * MOMENT)
                await _go_on(bus, cells)
            faults = {} if end == "is deployed away" else await _faults(bus, worker, clients, cells)
        if end == "is deployed away":
            for cell in cells.values():
                cell.is_deployed = True
            async with bus.worker() as worker:
                faults = await _faults(bus, worker, clients, cells)
    assert not faults, "\n".join(f"{name}: {fault}" for name, fault in faults.items())


async def _go_on(bus: CommandBus, cells: dict[str, Cell]) -> None:
    for name in cells:
        with contextlib.suppress(UnknownCommand):  # it was refused
            await bus.commands.signal(name, "go")


async def _faults(bus: CommandBus, worker: Worker, clients: MemoryClients, cells: dict[str, Cell]) -> dict[str, Any]:
    """Return what is wrong, by cell."""
    ends = await asyncio.gather(*(_ended(bus, cell) for cell in cells.values()))
    await asyncio.sleep(LATER)
    letters = {letter.command_id: letter async for letter in bus.dead_letters.list()}
    faults: dict[str, Any] = {
        cell.name: found
        for cell, end in zip(cells.values(), ends, strict=True)
        if (found := _faults_of(cell, end, letters.get(cell.name)))
    }
    if lent := worker.figures.awaiting_reply:
        faults["slots"] = f"{lent} are lent"
    keys: Any = await clients.commands().keys("*}:x:*")
    kept = {bytes(key).decode().partition("}:x:")[2] for key in keys}
    if kept - set(letters):  # a letter keeps it, to be replayed
        faults["side records"] = sorted(kept - set(letters))
    return faults


async def _ended(bus: CommandBus, cell: Cell) -> str:
    """Return how a command ended; note it in its log."""
    if _refusal(cell) is not None:
        return "refused"
    try:
        await bus.result(cell.name, Job, timeout=PATIENCE)
    except CommandOutcomeError as error:
        return error.code
    else:
        return "completed"
    finally:
        cell.log.append("ended")


def _faults_of(cell: Cell, state: str, letter: Any) -> list[str]:
    log, faults = cell.log, list[str]()
    refusal = _refusal(cell)
    error = None if letter is None else letter.error_type.rpartition(".")[2]
    if refusal is not None:
        wanted, state = refusal, error or state
    else:
        wanted = {"fails": "failed", "is cancelled": "cancelled"}.get(cell.end, "completed")
    if state != wanted:
        faults.append(f"{state}, not {wanted}: {letter and letter.error_message}")
    after = log[log.index("ended") + 1 :] if "ended" in log else []
    may_follow = ("sent", "begun", "effect") if cell.operation == "call" and state == "completed" else ("sent",)
    if any(each not in may_follow for each in after):
        faults.append(f"goes on after its end: {log}")
    if log.count("effect") > 1 or log.count("undo") > 1:
        faults.append(f"twice: {log}")
    if "undo" in log and "effect" in log[log.index("undo") :]:
        faults.append(f"undone before it was done: {log}")
    if "begun" in log and log.count("begun") != log.count("effect") + log.count("cut off"):
        faults.append(f"begun and not ended: {log}")
    if any(not task.done() for task in cell.tasks if task is not None):
        faults.append("a task is left")
    if cell.way not in TIMED and len(set(map(str, cell.results))) > 1:
        faults.append(f"another result in another run: {cell.results}")
    return faults
