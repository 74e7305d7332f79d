"""A durable handler of twenty stages whose worker is killed behind each script that ran, and between any two of its lines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.selection import quick
from tests.simulation.durable_load import Stage, Travel
from tests.simulation.history import Journey
from tests.simulation.loop import LANE
from tests.simulation.simulation import Run, Shape, Simulation, run

_KINDS = (
    "step", "call", "undo", "compensate", "signal", "step", "sleep", "all", "gather", "fail",
    "step", "undo", "first", "call", "step", "signal", "compensate", "undo", "sleep", "step",
)  # fmt: skip


def stages() -> list[Stage]:
    """Return twenty stages of all kinds."""
    return [Stage(kind, f"trip.{number}", 0.07 if kind == "sleep" else 0.001, None) for number, kind in enumerate(_KINDS)]


def journey(end: str, arm: Callable[[Simulation], None]) -> Run:
    """Run one journey with one worker at a time, and the drain and the checks of any seed."""

    def prepare(simulation: Simulation) -> None:
        async def phases() -> None:
            simulation.workers = [simulation.add_worker()]
            process = simulation.process("p1")
            await process.spawn(_send(simulation, process, end))
            arm(simulation)
            drain = simulation.process("end")
            await drain.spawn(simulation._drain(drain))
            simulation._look()

        simulation.scripted_load = ""
        simulation.run_phases = phases  # type: ignore[method-assign]

    return run(4, Shape(commands=0, faults=0, producers=0, workers=1), prepare=prepare)


async def _send(simulation: Simulation, process: Any, end: str) -> None:
    trip = simulation.history.journeys["trip"] = Journey("trip", "j0", plan=(stages(), end))
    trip.signals = [f"trip signal {number}" for number in range(3)]
    async with simulation.bus(process) as bus:
        await bus.dispatch(Travel(journey="j0", tag="trip"), command_id="trip")
    trip.acked = True


def kill(simulation: Simulation, process: Any) -> None:
    """Kill a worker; another takes its place."""
    process.troubles.append(("kill", simulation.loop.time(), 1e9))
    simulation.network.count("kill")
    process.kill()
    simulation.network.drop_connections(process.name, noticed_after=0.0)
    simulation.replace(process)


def behind_script(number: int) -> Callable[[Simulation], None]:
    """Kill the worker when so many scripts have run that concern the journey: the server has done it, and the worker does not know."""

    def arm(simulation: Simulation) -> None:
        history, ran, count = simulation.history, simulation.history.ran, 0

        def counted(store: Any, keys: list[bytes]) -> None:
            nonlocal count
            ran(store, keys)
            is_counted = any(key.endswith((b"m:journey:j0", b"x:trip")) for key in keys)
            count += is_counted
            if is_counted and count == number:
                kill(simulation, simulation.workers[0])

        history.ran = counted  # type: ignore[method-assign]

    return arm


def before(*keys: str) -> Callable[[Simulation], None]:
    """Kill the worker at these lines, each time that a handler comes there first."""
    left = list(keys)

    def arm(simulation: Simulation) -> None:
        async def between_lines(where: str) -> None:
            if where in left:
                left.remove(where)
                lane = LANE.get()
                assert lane is not None
                kill(simulation, lane.process)
                await asyncio.get_running_loop().create_future()

        simulation.between_lines = between_lines  # type: ignore[method-assign]

    return arm


@pytest.mark.parametrize("end", ["return", "reject"])
def test_without_a_kill_it_ends_as_planned(end: str) -> None:
    done = journey(end, lambda _: None)
    assert not done.broken
    assert done.history is not None
    assert done.history.journeys["trip"].outcome == ("value trip" if end == "return" else "rejected")


_NUMBERS = 6
"""Tests that share the scripts of a journey: `make test` kills behind each sixth."""


@pytest.mark.promise("A stored step is not repeated")
@pytest.mark.parametrize("first", quick(range(1, _NUMBERS + 1), [4]))
@pytest.mark.parametrize("end", quick(["return", "reject"], ["reject"]))
def test_a_kill_behind_each_script(end: str, first: int) -> None:
    number = 0
    for number in itertools.count(first, _NUMBERS):
        done = journey(end, behind_script(number))
        assert not done.broken, number
        if not done.faults:
            break  # it ended before so many scripts ran
    assert number > 30


@pytest.mark.promise("A stored step is not repeated")
@pytest.mark.parametrize("end", quick(["return", "reject"], ["reject"]))
def test_a_kill_before_each_line(end: str) -> None:
    lines = [*(stage.key for stage in stages()), "end"]
    for line in lines:
        done = journey(end, before(line))
        assert not done.broken, line
        assert done.faults["kill"] == 1, line
    done = journey(end, before(*lines))
    assert not done.broken
    assert done.faults["kill"] == len(lines)
