"""`in_order`: an entity's rows in one task, sorted there, whatever plan precedes it.

Spark drops a `repartition(entity)` if a join or an aggregate on the entity has such a partitioning already, and its adaptive execution
may then read that partitioning in other pieces. An entity's rows are then in several tasks, which write at the same time. So rows are
partitioned by an expression that nothing else is partitioned by. To Spark that shuffle is the user's own: it keeps the shuffle, and
only ever merges whole partitions of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.errors import InvalidSettings
from command_bus.spark.quoting import check_named_once, column_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Order = str | Column | Sequence[str | Column]
"""The order of an entity's rows: a column by its name; several; or columns with a direction, `F.desc("day")`."""

_OURS = "command_bus"
_LEAST_BYTES, _MOST_BYTES = 2**17, 2**26  # of a task, by Spark's estimate, which may be a tenth of the truth
_RANK = "rank"


def in_order(rows: DataFrame, entity: str, order_by: Order | None = None, *, partitions: int | None = None) -> DataFrame:
    """Arrange rows so that one task writes an entity's commands, in order; for `format("command_bus")` and functions of your own.

    Nothing that moves rows (a join, another repartition, a union) may come between this and the write.

    Args:
        rows: DataFrame of a batch or a stream. Spark cannot sort a stream, so leave `order_by` out there.
        entity: The column of entity ids.
        order_by: The column that orders an entity's rows, or several, the most significant first; a name means ascending, `F.desc(name)`
            descending. None keeps the order of the source.
        partitions: The number of tasks that write; by default Spark decides.

    Raises:
        InvalidSettings: A column does not exist.
    """
    check_order(rows, entity)
    check_order(rows, order_by)
    owner = F.xxhash64(F.lit(_OURS), column_named(entity))
    rows = rows.repartition(owner) if partitions is None else rows.repartition(partitions, owner)
    return rows if order_by is None else rows.sortWithinPartitions(*_sorting(order_by))


def tasks_for_few_rows(rows: DataFrame) -> int | None:
    """Return the number of tasks that keeps all cores busy to the end; None if the rows may be many, or if Spark Connect hides their size.

    For few rows Spark chooses a number by size alone: with three tasks on two cores, one core idles while the third runs.
    """
    classic: Any = getattr(rows, "_jdf", None)
    if classic is None:
        return None
    size = int(str(classic.queryExecution().optimizedPlan().stats().sizeInBytes()))
    cores = rows.sparkSession.sparkContext.defaultParallelism
    return None if size > cores * _MOST_BYTES else max(min(cores, size // _LEAST_BYTES), 1)


def check_order(rows: DataFrame, order_by: Order | None) -> None:
    """Check that the named columns exist.

    Raises:
        InvalidSettings: One does not, Spark cannot tell it from another, or the list is empty.
    """
    if order_by is not None and not (_listed(order_by) and all(isinstance(each, str | Column) for each in _listed(order_by))):
        raise InvalidSettings(
            f"order_by = {order_by!r}: name the columns that order an entity's rows, or None if their order is of no importance"
        )
    check_named_once(rows, named_columns(order_by))


def named_columns(order_by: Order | None) -> list[str]:
    """Return the columns that are given by name."""
    return [] if order_by is None else [each for each in _listed(order_by) if isinstance(each, str)]


def with_order_column(rows: DataFrame, entity: str | None, order_by: Order | None) -> tuple[DataFrame, str | None]:
    """Return rows with one column that orders an entity's rows, and its name: their own column if it is given by name, else their rank.

    With the rank they have no other column but `command_id`, so that none of their own is in its way.

    Raises:
        InvalidSettings: There are several columns, but no entity column.
    """
    if order_by is None or isinstance(order_by, str):
        return rows, order_by
    if entity is None:
        raise InvalidSettings("order_by is more than the name of a column: give entity_column, the column within which it orders")
    rank = F.rank().over(Window.partitionBy(column_named(entity)).orderBy(*_sorting(order_by)))
    return rows.select("command_id", rank.alias(_RANK)), _RANK


def _listed(order_by: Order) -> Sequence[str | Column]:
    return [order_by] if isinstance(order_by, str | Column) or not isinstance(order_by, Sequence) else order_by


def _sorting(order_by: Order) -> list[Column]:
    return [column_named(each) if isinstance(each, str) else each for each in _listed(order_by)]
