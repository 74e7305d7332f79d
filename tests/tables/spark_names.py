"""Options that name columns in a write by Spark, and the ways in which a name can be wrong: rows and columns of `test_spark_names.py`."""

from __future__ import annotations

import json
from collections.abc import Callable

__all__ = ["NAMES", "OPTIONS", "WRONG"]

NAMES = ["plain", "a.b", "a`b", "a,b", "a b", " a ", "a=b", "a;b", "`", ".", "a'b", 'a"b', "{", "é", "a\nb", "seq=x,note=y"]
"""Names with any character: a column with one is found by it."""

OPTIONS: dict[str, tuple[str, str, Callable[[str], dict[str, str]]]] = {
    "commandIdColumn": ("string", "bigint", lambda name: {"commandIdColumn": name}),
    "commandColumn": ("string", "bigint", lambda name: {"commandColumn": name}),
    "entityColumn": ("string", "double", lambda name: {"entityColumn": name}),
    "entityColumn of a mapper": (
        "string", "decimal(9,2)", lambda name: {"entityColumn": name, "command": "", "mapper": "tests.spark.trucks:halved"},
    ),
    "sequenceColumn": ("bigint", "string", lambda name: {"sequenceColumn": name}),
    "priority": ("string", "bigint", lambda name: {"priority": name}),
    "columns": ("string", "bigint", lambda name: {"columns": json.dumps({"note": name})}),
}  # fmt: skip
"""By what names a column: a type that it takes, one that it does not take, and the options with a name."""

WRONG: dict[str, Callable[[str, str, str], list[tuple[str, str]]]] = {
    "missing": lambda name, kind, other: [],
    "in another case": lambda name, kind, other: [(name.upper() if name.upper() != name else name.lower(), kind)],
    "a part of one": lambda name, kind, other: [(f"{name}s", kind)],
    "with a space": lambda name, kind, other: [(f"{name} ", kind)],
    "twice": lambda name, kind, other: [(name, kind), (name, kind)],
    "of another type": lambda name, kind, other: [(name, other)],
    "a variant": lambda name, kind, other: [(name, "variant")],
    "an interval": lambda name, kind, other: [(name, "interval month")],
}
"""By how a name is wrong: the columns that there are besides those of the command, given name and types."""
