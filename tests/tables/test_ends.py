"""The table *ends × states*: a command that holds all it can is ended, and then nothing of it is held, and all who wait have been told.

`tests/tables/ends.py` has the rows, `ends_bench.py` carries one out. `make test` tries some ends, each of one origin, `make test-all` all of them.
"""

from __future__ import annotations

import asyncio
import traceback

import pytest

from command_bus.errors import CommandBusError
from tests.conformance import conftest
from tests.conformance.conftest import Sandbox
from tests.selection import quick
from tests.tables import ends_bench
from tests.tables.ends import CELLS, ENDS, NEVER, ORIGINS, STATES, Cell
from tests.tables.ends_bench import Bench

sandbox, servers = conftest.sandbox, conftest.servers
pytestmark = pytest.mark.server
TOGETHER = 8
FIRST = [
    "completed/call",
    "interrupted/child",
    "expired/call",
    "invalid/dispatch",
    "cancelled/call",
    "superseded/load",
    "forged/schedule",
]
PAIRS = list(dict.fromkeys(f"{cell.end}/{cell.origin}" for cell in CELLS))


@pytest.mark.parametrize("pair", quick(PAIRS, FIRST))
async def test_nothing_is_held_and_all_are_told(sandbox: Sandbox, pair: str) -> None:
    end, _, origin = pair.partition("/")
    wrong: dict[str, list[str]] = {}
    slots = asyncio.Semaphore(TOGETHER)

    async def tried(state: str) -> None:
        async with slots:
            try:
                faults = await asyncio.wait_for(Bench(sandbox, Cell(end, state, origin)).run(), 40)
            except (CommandBusError, AssertionError, TimeoutError) as error:
                at = traceback.extract_tb(error.__traceback__)
                where = next(
                    (each for each in reversed(at) if each.filename == ends_bench.__file__ and each.name != "run"), at[-1]
                )
                faults = [f"{type(error).__name__}: {error} in line {where.lineno}, {where.name}"]
            if faults:
                wrong[state] = faults

    await asyncio.gather(*(tried(cell.state) for cell in CELLS if (cell.end, cell.origin) == (end, origin)))
    assert not wrong, "\n".join(f"{end}/{state}/{origin}: {faults}" for state, faults in sorted(wrong.items()))


def test_every_row_says_why_what_is_not_there_cannot_be() -> None:
    for ends, states, origins, why in NEVER:
        assert set(ends) <= set(ENDS)
        assert set(states) <= set(STATES)
        assert set(origins) <= set(ORIGINS)
        assert why
    assert {cell.end for cell in CELLS} == set(ENDS)
    assert {cell.state for cell in CELLS} == set(STATES)
