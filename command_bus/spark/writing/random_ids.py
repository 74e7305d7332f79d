"""Ids made by chance, found in Spark's plan: they survive a task that is run again, and duplicate everything in a job that is."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from command_bus.errors import InvalidSettings
from command_bus.spark.quoting import column_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check_repeatable_ids", "random_function_in"]

_CHANCE = re.compile(r"\b(uuid|monotonically_increasing_id|randn?|spark_partition_id|shuffle)\(", re.IGNORECASE)
_PROJECT = "Project ["
_REFERENCE = re.compile(r"#(\d+)L?")
_NAMED = re.compile(r"^(.*) AS .*#(\d+)L?$", re.DOTALL)


def check_repeatable_ids(rows: DataFrame, name: str) -> None:
    """See that a column of ids is the same when the rows are computed again.

    Raises:
        InvalidSettings: It is made by a function of chance or of the partition, as far as Spark's plan tells.
    """
    classic: Any = getattr(rows, "_jdf", None)
    if classic is not None and not _CHANCE.search(classic.queryExecution().analyzed().toString()):
        return  # which costs nothing: that plan is made already
    frame: Any = rows.select(column_named(name))
    plan = frame._jdf.queryExecution().toString() if classic is not None else frame._explain_string(mode="extended")  # noqa: SLF001
    found = random_function_in(plan)
    if found is not None:
        raise InvalidSettings(
            f"the command ids are made by {found}(), which gives the same rows other ids when they are computed again: a job that is run "
            "again would dispatch everything twice. Name columns that identify a row (key=[…]), or write the ids to a table first"
        )


def random_function_in(plan: str) -> str | None:
    """The function of chance that the output of a plan (as Spark explains it, `extended`) is made by, or None.

    What a cache or a file holds is what it is: looked at is only what stands above it.
    """
    text = plan.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    projections = [_parts(line) for line in takewhile(lambda each: "InMemoryRelation" not in each, text.strip().splitlines())]
    named = [match for parts in projections for part in parts if (match := _NAMED.match(part))]
    made = {match[2]: match[1] for match in reversed(named)}
    outputs = next((parts for parts in projections if parts), [])
    seen: set[str] = set()
    while outputs:
        expression = outputs.pop()
        found = _CHANCE.search(expression)
        if found is not None:
            return found[1].lower()
        references = {number for number in _REFERENCE.findall(expression) if number in made} - seen
        seen |= references
        outputs += [made[number] for number in sorted(references)]
    return None


def _parts(line: str) -> list[str]:
    """The expressions of a projection: what stands between commas that are in no brackets. None in a line of another kind."""
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
