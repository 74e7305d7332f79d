"""Command ids out of natural columns: the same row has the same id, whoever computes it, wherever and whenever.

An id must not depend on a partition, an attempt, a clock or chance: all of these are the same for a retried task, and differ for a
job that is run again, which is why their fault shows so late.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["NAMESPACE", "command_id", "command_id_of"]

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "command-bus.spark")
"""The namespace of ids for which no other is given."""

_SEPARATOR = "\x1f"
_NULL = "\x00"


def command_id(*columns: str | Column, namespace: uuid.UUID = NAMESPACE) -> Column:
    """A column of command ids, computed where Spark runs: the `uuid.uuid5` that `command_id_of` gives for the columns as text.

    Args:
        columns: Natural columns that together identify a row; NULL differs from every text.
        namespace: Keeps ids of different sources apart that have the same keys.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    if not columns:
        raise ValueError("a command id needs at least one column that identifies the row")
    texts = [F.coalesce((F.col(c) if isinstance(c, str) else c).cast("string"), F.lit(_NULL)) for c in columns]
    name = F.encode(F.concat_ws(_SEPARATOR, *texts), "UTF-8")
    digest = F.sha1(F.concat(F.unhex(F.lit(namespace.hex)), name))
    variant = F.translate(F.substring(digest, 17, 1), "0123456789abcdef", "89ab" * 4)
    parts = (
        F.substring(digest, 1, 8), F.lit("-"), F.substring(digest, 9, 4), F.lit("-5"), F.substring(digest, 14, 3), F.lit("-"),
        variant, F.substring(digest, 18, 3), F.lit("-"), F.substring(digest, 21, 12),
    )  # fmt: skip
    return F.concat(*parts)


def command_id_of(values: Sequence[str | None], *, namespace: uuid.UUID = NAMESPACE) -> str:
    """The id that `command_id` gives a row whose key columns have these texts: for code without Spark."""
    return str(uuid.uuid5(namespace, _SEPARATOR.join(_NULL if value is None else value for value in values)))
