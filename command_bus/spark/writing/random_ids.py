"""Random ids, found in Spark's plan: a retried task keeps them, but a repeated job makes new ones and so duplicates everything."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from command_bus.errors import InvalidSettings
from command_bus.spark.quoting import column_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RANDOM = re.compile(r"\b(uuid|monotonically_increasing_id|randn?|spark_partition_id|shuffle)\(", re.IGNORECASE)
_PROJECT = "Project ["
_REFERENCE = re.compile(r"#(\d+)L?")
_NAMED = re.compile(r"^(.*) AS .*#(\d+)L?$", re.DOTALL)


def check_repeatable_ids(rows: DataFrame, name: str) -> None:
    """Check that a column has the same ids when the rows are computed again.

    Raises:
        InvalidSettings: A random function, or one of the partition, makes it, as far as Spark's plan shows.
    """
    classic: Any = getattr(rows, "_jdf", None)
    if classic is not None and not _RANDOM.search(classic.queryExecution().analyzed().toString()):
        return  # cheap: that plan is made already
    frame: Any = rows.select(column_named(name))
    plan = frame._jdf.queryExecution().toString() if classic is not None else frame._explain_string(mode="extended")  # noqa: SLF001
    found = random_function_in(plan)
    if found is not None:
        raise InvalidSettings(
            f"the command ids are made by {found}(), which gives the same rows other ids when they are computed again: a job that is run "
            "again would dispatch everything twice. Name columns that identify a row (key=[…]), or write the ids to a table first"
        )


def random_function_in(plan: str) -> str | None:
    """Return the random function that makes the output of a plan (as Spark explains it, `extended`), or None.

    A cache or a file always returns the same rows, so only the steps above it count.
    """
    text = plan.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    projections = [_parts(line) for line in takewhile(lambda each: "InMemoryRelation" not in each, text.strip().splitlines())]
    named = [match for parts in projections for part in parts if (match := _NAMED.match(part))]
    made = {match[2]: match[1] for match in reversed(named)}
    outputs = next((parts for parts in projections if parts), [])
    seen: set[str] = set()
    while outputs:
        expression = outputs.pop()
        found = _RANDOM.search(expression)
        if found is not None:
            return found[1].lower()
        references = {number for number in _REFERENCE.findall(expression) if number in made} - seen
        seen |= references
        outputs += [made[number] for number in sorted(references)]
    return None


def _parts(line: str) -> list[str]:
    """Return the expressions of a projection, split at commas outside brackets; an empty list for other lines."""
    opening = line.find(_PROJECT)
    if opening < 0:
        return []
    text = line[opening + len(_PROJECT) : line.rfind("]")]
    parts: list[str] = []
    depth = begin = 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]
