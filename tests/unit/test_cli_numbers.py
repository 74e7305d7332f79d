"""Numbers on the command line: no option and no argument takes `nan` or `inf`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from command_bus.cli.app import app


def taken(value: str) -> Iterator[tuple[str, Any]]:
    """Yield each option and argument that takes a value, and what it makes of it."""
    waiting: list[tuple[str, Any]] = [("", get_command(app))]
    while waiting:
        path, command = waiting.pop()
        waiting += [(f"{path} {name}", each) for name, each in getattr(command, "commands", {}).items()]
        for param in command.params:
            try:
                yield f"{path} {param.name}", param.process_value(typer.Context(command), value)
            except Exception as error:
                yield f"{path} {param.name}", error


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_is_finite(value: str) -> None:
    found = dict(taken(value))
    odd = [path for path, made in found.items() if isinstance(made, float) and not math.isfinite(made)]
    assert not odd
    assert any("finite" in str(made) for made in found.values())


def test_a_number_is_taken() -> None:
    assert sum(type(made) is float for _, made in taken("1")) > 10
