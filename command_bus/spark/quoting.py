"""Columns by their exact names: Spark reads a dot or a backquote in a name as something else, and takes other cases for the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DateType, IntegralType, StringType

from command_bus.errors import InvalidSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHOWN = 40


def column_named(name: str) -> Column:
    """Return the column with this name, whatever characters the name has."""
    return F.col("`" + name.replace("`", "``") + "`")


def there_are(columns: Sequence[str]) -> str:
    """Return the names of the columns, for an error."""
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    return f"there are {', '.join(columns[:_SHOWN])}{more}"


def check_named_once(rows: DataFrame, names: Iterable[str]) -> None:
    """Check that each name is that of one column, as the rows' session compares names.

    Raises:
        InvalidSettings: There is no such column, or Spark cannot tell which one is meant.
    """
    columns = rows.columns
    exact = rows.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    for name in names:
        if name not in columns:
            raise InvalidSettings(f"there is no column {name!r}; {there_are(columns)}")
        same = [each for each in columns if each == name or (not exact and each.casefold() == name.casefold())]
        if len(same) > 1:
            raise InvalidSettings(f"Spark cannot tell the columns {', '.join(map(repr, same))} apart: rename or drop all but one")


def entity_text(rows: DataFrame, name: str) -> Column:
    """Return a column of entity ids as text.

    Raises:
        InvalidSettings: There is no such column, or the text of its values depends on the session.
    """
    check_named_once(rows, [name])
    kind = next(each.dataType for each in rows.schema.fields if each.name == name)
    if not isinstance(kind, StringType | IntegralType | DateType):
        raise InvalidSettings(f"column {name!r} is of type {kind.simpleString()}, an entity id wants text or integers: cast it")
    return column_named(name).cast("string")
