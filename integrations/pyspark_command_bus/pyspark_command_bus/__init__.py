"""The module in which Spark finds the data source `command_bus`: Spark imports every top-level module called `pyspark_…` and takes `DefaultSource`.

If one such module fails to import, or its `DefaultSource` is no data source, Spark silently finds none of the sources of any module. So
this import always succeeds, whatever is wrong with the installation; the fallback raises when the format is used. Without PySpark there
is no `DefaultSource`.
"""

from __future__ import annotations

__all__: list[str] = []

try:
    from command_bus.spark.source import CommandBusSource as DefaultSource
except Exception:  # noqa: BLE001 - see above: a broken installation may raise anything
    try:
        from pyspark_command_bus.unavailable import UnavailableSource as DefaultSource  # type: ignore[assignment]  # another class
    except Exception:  # noqa: BLE001, S110 - no PySpark, or one before 4.0
        pass
    else:
        __all__ += ["DefaultSource"]
else:
    __all__ += ["DefaultSource"]
