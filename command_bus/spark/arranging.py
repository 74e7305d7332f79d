"""`in_order`: an entity's rows in one task, sorted there, whatever plan stands before.

Spark leaves a `repartition(entity)` out where a join or an aggregate on the entity has such a partitioning already, and its adaptive
execution may then read that partitioning in other pieces: an entity's rows come to be in several tasks, which write at the same time.
So rows are partitioned by an expression that nothing else is partitioned by: that shuffle is the user's own to Spark, which keeps it
and only ever puts whole partitions of it together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.errors import InvalidSettings
from command_bus.spark.fates import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["in_order"]

_OURS = "command_bus"


def in_order(rows: DataFrame, entity: str, order_by: str | None = None, *, partitions: int | None = None) -> DataFrame:
    """Arrange rows so that an entity's commands are written by one task, in order; for `format("command_bus")` and functions of your own.

    Nothing that moves rows (a join, another repartition, a union) may come between this and the write.

    Args:
        rows: Of a batch, or of a stream; Spark cannot sort a stream, so leave `order_by` out there.
        entity: The column of entity ids.
        order_by: The column that orders an entity's rows; None keeps what order the source gives them.
        partitions: How many tasks write; by default Spark decides.

    Raises:
        InvalidSettings: There is no such column.
    """
    for name in (entity, order_by):
        if name is not None and name not in rows.columns:
            raise InvalidSettings(f"there is no column {name!r}; there are {', '.join(rows.columns)}")
    home = F.xxhash64(F.lit(_OURS), column(entity))
    rows = rows.repartition(home) if partitions is None else rows.repartition(partitions, home)
    return rows if order_by is None else rows.sortWithinPartitions(column(order_by))
