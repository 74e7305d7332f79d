"""The data source `command_bus`: what Spark asks for by `format("command_bus")`."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from command_bus.errors import InvalidSettings
from command_bus.spark.options import ReadOptions, WriteOptions
from command_bus.spark.writing.interpreters import choose_interpreter

__all__ = ["CommandBusSource", "register"]


class CommandBusSource(DataSource):
    """Dispatches rows as commands, and reads what became of them; see docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        """How Spark knows it."""
        return "command_bus"

    def schema(self) -> StructType:
        """Of the view that is read."""
        from command_bus.spark.reading.views import schema_of

        return schema_of(ReadOptions.parse(self.options).view)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Plan a batch write."""
        from command_bus.spark.writing.writer import BatchWriter, Writing, told

        if overwrite:
            raise InvalidSettings('commands cannot be overwritten: write with mode("append")')
        return told(lambda: BatchWriter(Writing.plan(WriteOptions.parse(self.options), schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        """Plan a streaming write."""
        from command_bus.spark.writing.writer import StreamWriter, Writing, told

        if overwrite:
            raise InvalidSettings('commands cannot be overwritten: use outputMode("append")')
        return told(lambda: StreamWriter(Writing.plan(WriteOptions.parse(self.options), schema)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a batch read."""
        from command_bus.spark.reading.reader import reader_of

        return reader_of(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Plan a streaming read."""
        from command_bus.spark.reading.reader import stream_reader_of

        return stream_reader_of(self.options)


def register(spark: SparkSession | None = None) -> None:
    """Let a session know the format; without one the active session, or the next that is made.

    `import command_bus.spark` does it, so this is for sessions made by `newSession()`.
    """
    session = spark or SparkSession.getActiveSession()
    if session is not None:
        choose_interpreter(session)
        session.dataSource.register(CommandBusSource)
    _watch()


def _watch() -> None:
    """Register with sessions to come: usually the import stands above the line that makes the session."""
    builder: Any = SparkSession.Builder
    if getattr(builder, "_command_bus", False):
        return
    made = builder.getOrCreate

    def get_or_create(self: Any) -> Any:
        session = made(self)
        choose_interpreter(session)
        session.dataSource.register(CommandBusSource)
        return session

    builder.getOrCreate = get_or_create
    builder._command_bus = True  # noqa: SLF001 - the one mark that this was done
