"""Tables of the pages against the code that they tell of."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

from command_bus import RetryPolicy

DOCS = Path(__file__).parents[2] / "docs"


def shown(value: object) -> str:
    """A default as the table has it."""
    if isinstance(value, tuple):
        return f"({', '.join(kind.__name__ for kind in value)}{',' if len(value) == 1 else ''})"
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_the_defaults_of_a_retry_policy() -> None:
    text = (DOCS / "retries.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", text, re.MULTILINE))
    assert rows == {each.name: shown(each.default) for each in fields(RetryPolicy) if each.default is not MISSING}
    assert len(rows) == len(fields(RetryPolicy))
