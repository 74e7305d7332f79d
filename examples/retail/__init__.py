"""Purchases of CDs as a stream: run it with `python -m examples.retail`.

69,659 purchases of 23,570 customers (CDNOW, 1997 and 1998; the package `Lifetimes` has the table) arrive as files, some calmly and
many at once. Structured Streaming turns them into commands for their customers; two worker processes apply them. On the way

* some rows are no purchases at all (`spoilt`): they are quarantined, with the reason;
* more arrives than the workers take: the stream waits, and nothing piles up beyond a limit;
* the query is stopped in the middle of a micro-batch and started again from its checkpoint, which sends that batch once more;
* purchases that repeat one of the same day are refused by a business rule;
* the largest payments cannot be authorised: they become dead letters, their customers' later purchases wait behind them, until the
  cause is repaired and the letters are replayed.

At the end every row is accounted for, and each customer's totals equal Spark's own `GROUP BY` over the table.

| module | holds |
| --- | --- |
| `commands` | `RecordPurchase` |
| `table` | the purchases, the spoilt rows, and the slices in which all of them arrive |
| `model` | a customer's account and how a purchase changes it |
| `ledger`, `handlers`, `worker` | what a worker process runs: read, change, write |
| `stream` | Spark's part: the query, and the expected result |
| `run`, `watch` | the parent: arrivals, the query's stop and restart, repair, reconciliation |
| `report`, `picture` | the tables and the PNG |
"""

from __future__ import annotations

__all__: list[str] = []
