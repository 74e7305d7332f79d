"""The past in files: `Export` writes ends of commands, events, acts of operators and dead letters as Parquet or JSON lines."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from command_bus.export.exporter import Export, Exported, ExportReport, Gap, SyncExport

__all__ = ["Export", "ExportReport", "Exported", "Gap", "SyncExport"]


def __getattr__(name: str) -> Any:
    """Import a name when it is used: the columns of views need no pyarrow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from command_bus.export import exporter

    return getattr(exporter, name)
