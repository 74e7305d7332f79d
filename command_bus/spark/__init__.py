"""Spark in, Spark out: DataFrames into ordered commands, and their outcomes back as DataFrames.

    report = dispatch_dataframe(orders, Ship, key=["order_id"], order_by="seq", dispatch_id="orders-2026-11", outcomes="7 days")
    print(reconcile(report))

    spark.read.format("command_bus").option("view", "outcomes").option("dispatchId", "orders-2026-11").load()

| module | holds |
| --- | --- |
| `dispatch`, `report` | `dispatch_dataframe` and its report |
| `source`, `options` | the data source and its options |
| `target` | the namespace to write to, and this process's connection |
| `ids` | command ids made of natural columns |
| `errors`, `quoting` | errors that cross Spark; columns by their exact names |
| `writing.writer` | the data source's writers: plan, tasks, commit |
| `writing.partition` | sends one partition; usable without Spark |
| `writing.send_queue` | the commands to send, full mailboxes, when a task warns and gives up |
| `writing.task_results` | a task's counts and rejects |
| `writing.command_lookup` | the commands that options name: by class, by value, from what workers publish |
| `writing.command_mapping` | how columns feed a command's fields |
| `writing.columns`, `field_checks`, `encoder` | Arrow columns into packed commands |
| `writing.ordering` | an entity's rows in one task, in order |
| `writing.fingerprint`, `random_ids`, `interpreters` | checks for changed rows, random ids, the wrong Python |
| `writing.dry_run`, `progress` | a dispatch that sends nothing; the driver's log of progress |
| `reading` | readers of views, in batches and as streams |
| `reconciliation` | dispatched rows compared with their outcomes |

Importing this module registers `format("command_bus")` with the active session, or with the next one.
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

_EXTRA = ("jinja2", "markupsafe", "pandas", "pyarrow", "pyspark")
_NAMES = {
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
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise MissingExtra(f"command_bus.spark.{name} needs {error.name}: pip install 'command-bus[spark]'") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _register() -> None:
    """Register the format, if PySpark is installed; programs without Spark only need the dispatcher."""
    try:
        from command_bus.spark.source import register as register_format
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return
    register_format()


_register()
