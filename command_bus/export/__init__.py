"""The past in files: `Export` writes ends of commands, events, acts of operators and dead letters as Parquet or JSON lines."""

from command_bus.export.exporter import Export, Exported, ExportReport, Gap, SyncExport

__all__ = ["Export", "ExportReport", "Exported", "Gap", "SyncExport"]
