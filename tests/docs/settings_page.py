"""Writes docs/settings.md from `BusSettings`: `python -m tests.docs.settings_page`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from command_bus import BusSettings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

_HEAD = """# Settings

`BusSettings` takes arguments first, then the environment, then these defaults. Give a field to
`CommandBus(…)` as a keyword. In the environment it is `COMMAND_BUS_<FIELD>` (and `REDIS_URL` where
`COMMAND_BUS_URL` is absent). Durations are seconds. A field that has fields of its own is set as JSON,
or field by field: `COMMAND_BUS_RETRY__ATTEMPTS=5`, `COMMAND_BUS_ENTITIES__ORDER__MAX_DEPTH=100`.

A value out of range raises `InvalidSettings`, which names the field. A misspelt variable is not read;
a worker and `command-bus doctor` warn of it. `python -m tests.docs.settings_page` writes this page.

| field | default | |
| --- | --- | --- |
"""


def _default(info: Any) -> str:
    if info.default_factory is not None:
        return "none"
    return "required" if info.default is PydanticUndefined else "none" if info.default is None else str(info.default)


def rendered() -> str:
    rows = [f"| `{name}` | {_default(info)} | {info.description} |" for name, info in BusSettings.model_fields.items()]
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
