"""The data source `command_bus`: the class behind `format("command_bus")`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from command_bus.spark.errors import without_spark_frames
from command_bus.spark.options import ReadOptions, WriteOptions
from command_bus.spark.writing.interpreters import choose_interpreter

if TYPE_CHECKING:
    from command_bus.spark.writing.writer import WritePlan


class CommandBusSource(DataSource):
    """Writes rows as commands, and reads their outcomes; see docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "command_bus"

    def schema(self) -> StructType:
        """Return the columns of the view that is read."""
        from command_bus.spark.reading.tasks import ReadPlan
        from command_bus.spark.reading.views import schema_of

        with without_spark_frames():
            read = ReadOptions.parse(self.options)
            return schema_of(read.view) if read.command is None else ReadPlan.build(read).schema()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Plan a batch write."""
        from command_bus.spark.writing.writer import BatchWriter

        with without_spark_frames():
            return BatchWriter(self._write_plan(schema, overwrite, 'write with mode("append")'))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        """Plan a streaming write."""
        from command_bus.spark.writing.writer import StreamWriter

        with without_spark_frames():
            return StreamWriter(self._write_plan(schema, overwrite, 'use outputMode("append")'))

    def _write_plan(self, schema: StructType, overwrite: bool, instead: str) -> WritePlan:
        from command_bus.spark.writing.column_types import check_movable
        from command_bus.spark.writing.writer import WritePlan

        if overwrite:
            raise InvalidSettings(f"commands cannot be overwritten: {instead}")
        check_movable(schema)
        return WritePlan.build(WriteOptions.parse(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a batch read."""
        from command_bus.spark.reading.reader import reader_of

        self._check_columns(schema)
        return reader_of(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Plan a streaming read."""
        from command_bus.spark.reading.reader import stream_reader_of

        self._check_columns(schema)
        return stream_reader_of(self.options)

    def _check_columns(self, schema: StructType) -> None:
        """Check that a view is read with its own columns.

        Raises:
            InvalidSettings: The query gives it others.
        """
        own = self.schema()
        if schema.simpleString() != own.simpleString():
            raise InvalidSettings(
                f"a view has columns of its own ({', '.join(own.names)}): leave out schema(…) or the columns of CREATE VIEW, and select"
            )


def register(spark: SparkSession | None = None) -> None:
    """Register the format with a session; without one, with the active session, or the next that is made.

    `import command_bus.spark` does this, so call it only for sessions made by `newSession()`.
    """
    session = spark or SparkSession.getActiveSession()
    if session is not None:
        choose_interpreter(session)
        session.dataSource.register(CommandBusSource)
    _register_with_later_sessions()


def _register_with_later_sessions() -> None:
    """Register the format with later sessions: the import usually precedes the line that makes the session."""
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
    builder._command_bus = True  # noqa: SLF001 - marks that this was done
