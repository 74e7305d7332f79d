"""The data source for installations that cannot import `command_bus.spark`: the format exists, and its error says what is wrong."""

from __future__ import annotations

import importlib
import sys

from pyspark.sql.datasource import DataSource

__all__ = ["UnavailableSource"]


class UnavailableSource(DataSource):
    """A source that refuses every use, with the error of the import.

    Raises:
        ImportError: Always.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the source that it replaces."""
        return "command_bus"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        try:
            importlib.import_module("command_bus.spark.source").CommandBusSource  # noqa: B018 - only checks that it exists
        except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
            raise ImportError(
                f"the format 'command_bus' does not work in {sys.executable}: {type(error).__name__}: {error} "
                "(`pip install 'command-bus[spark]'` there installs what is missing)"
            ) from None
        raise ImportError("command_bus.spark was not there when this session looked for data sources: start a new one")
