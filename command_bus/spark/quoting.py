"""Columns by their exact names: Spark reads a dot or a backquote in a name as something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["column_named"]


def column_named(name: str) -> Column:
    """Return the column with this name, whatever characters the name has."""
    return F.col("`" + name.replace("`", "``") + "`")
