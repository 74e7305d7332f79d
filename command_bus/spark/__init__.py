"""Spark in, Spark out: DataFrames into commands in order, and what became of them back as DataFrames.

    report = dispatch_dataframe(orders, Ship, key=["order_id"], order_by="seq", dispatch_id="orders-2026-11", outcomes="7 days")
    print(reconcile(report))

    spark.read.format("command_bus").option("view", "outcomes").option("dispatchId", "orders-2026-11").load()

| module | holds |
| --- | --- |
| `target` | where commands go, and this process's connection |
| `dispatcher` | sends one partition: chunks, results; usable bare, without Spark |
| `results`, `refusals`, `homes` | what a task tells of its rows, what is refused for now, which entities it has begun |
| `lines`, `stalls` | what waits to be sent, and stands aside for a mailbox that is full; when a task warns and gives up |
| `ids` | command ids out of natural columns |
| `options` | the options of the data source |
| `routes`, `described` | a class, or what running workers say of a wire name |
| `plans`, `encoding` | Arrow columns into packed commands |
| `writer`, `views`, `reader`, `source` | the data source |
| `frames`, `report` | `dispatch_dataframe` and its report |
| `arranging` | an entity's rows in one task, in order |
| `fingerprints`, `chance` | other rows under an old id, and ids made by chance, found out |
| `interpreters` | the Python that executors run |
| `rehearsal`, `watching` | a dry run; the driver's look at a running dispatch |
| `reconciliation` | what was dispatched against what became of it |

Importing this module makes `format("command_bus")` known to the session that is active, or to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from command_bus.errors import MissingExtra

if TYPE_CHECKING:
    from command_bus.spark.dispatch import dispatch_batch_writer, dispatch_dataframe
    from command_bus.spark.ids import command_id, command_id_of
    from command_bus.spark.reconciliation.reconciliation import Reconciliation, reconcile
    from command_bus.spark.report import DispatchReport, dispatch_report
    from command_bus.spark.source import register
    from command_bus.spark.target import Target
    from command_bus.spark.writing.ordering import in_order
    from command_bus.spark.writing.partition import PartitionDispatcher
    from command_bus.spark.writing.task_results import PartitionResult

__all__ = [
    "DispatchReport",
    "PartitionDispatcher",
    "PartitionResult",
    "Reconciliation",
    "Target",
    "command_id",
    "command_id_of",
    "dispatch_batch_writer",
    "dispatch_dataframe",
    "dispatch_report",
    "in_order",
    "reconcile",
    "register",
]

_EXTRA = ("fastjsonschema", "pandas", "pyarrow", "pyspark")
_HOMES = {
    "writing.partition": "PartitionDispatcher",
    "writing.task_results": "PartitionResult",
    "writing.ordering": "in_order",
    "dispatch": "dispatch_batch_writer dispatch_dataframe",
    "report": "DispatchReport dispatch_report",
    "ids": "command_id command_id_of",
    "reconciliation.reconciliation": "Reconciliation reconcile",
    "source": "register",
    "target": "Target",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise MissingExtra(f"command_bus.spark.{name} needs {error.name}: pip install 'command-bus[spark]'") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _announce() -> None:
    """Make the format known; executors and programs without Spark only need the dispatcher."""
    try:
        from command_bus.spark.source import register as make_known
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return
    make_known()


_announce()
