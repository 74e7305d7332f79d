"""What Spark finds where `command_bus.spark` cannot be imported: the format exists, and says what is wrong with it."""

from __future__ import annotations

import importlib
import sys

from pyspark.sql.datasource import DataSource

__all__ = ["UnavailableSource"]


class UnavailableSource(DataSource):
    """Refuses every use, with the error of the import.

    Raises:
        ImportError: Always.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the source it stands for."""
        return "command_bus"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        try:
            importlib.import_module("command_bus.spark.source").CommandBusSource  # noqa: B018 - only whether it is there
        except Exception as error:  # noqa: BLE001 - of a broken installation anything may come
            raise ImportError(
                f"the format 'command_bus' does not work in {sys.executable}: {type(error).__name__}: {error} "
                "(`pip install 'command-bus[spark]'` there mends what is missing)"
            ) from None
        raise ImportError("command_bus.spark was not there when this session looked for data sources: start a new one")
