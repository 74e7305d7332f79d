"""The format of `--json`; docs/cli.md lists the keys, `admin/json_data.py` makes the data."""

from __future__ import annotations

import json
from typing import Any

from command_bus.admin.json_data import to_jsonable
from command_bus.cli.terminal import SafeText, escape_json


def to_json(value: Any, *, indent: int | None = 2) -> SafeText:
    """Return a value as JSON. Types that JSON lacks are written as pydantic would write them, or else as text."""
    return escape_json(json.dumps(to_jsonable(value), indent=indent, ensure_ascii=False))
