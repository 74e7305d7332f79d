"""Where Spark looks for the data source `command_bus`: it imports every top-level module called `pyspark_…` and takes `DefaultSource`.

One such module that fails to import, or whose `DefaultSource` is no data source, hides the sources of all others from Spark, without a
word. So whatever is wrong with this installation, this import succeeds; the fallback tells who uses the format. Without PySpark nobody
asks, and there is no `DefaultSource`.
"""

from __future__ import annotations

__all__: list[str] = []

try:
    from command_bus.spark.source import CommandBusSource as DefaultSource
except Exception:  # noqa: BLE001 - see above: of a broken installation anything may come
    try:
        from pyspark_command_bus.unavailable import UnavailableSource as DefaultSource  # type: ignore[assignment]  # another class
    except Exception:  # noqa: BLE001, S110 - no PySpark, or one before 4.0
        pass
    else:
        __all__ += ["DefaultSource"]
else:
    __all__ += ["DefaultSource"]
