"""Types that methods of a bus and its parts return can be imported from `command_bus`, for annotations."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import command_bus
import command_bus.spark
from command_bus import CommandBus, EntityScope, Middleware, SyncCommandBus, SyncEntityScope
from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import Entities
from command_bus.admin.events import Events
from command_bus.admin.fleet import Fleet

UNNAMED = {
    "RedisTransport",
    "SyncDeadLetters",
    "SyncEntities",
    "Entities",
}  # parts, reached through the bus and not made by anybody else


@pytest.mark.parametrize(
    "kind",
    [CommandBus, SyncCommandBus, EntityScope, SyncEntityScope, DeadLetters, Entities, Events, Fleet],
    ids=lambda kind: kind.__name__,
)
def test_what_methods_give_can_be_imported(kind: type[Any]) -> None:
    for name, method in vars(kind).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        words = set(re.findall(r"\b[A-Z]\w{2,}", str(inspect.signature(method).return_annotation)))
        own = {word for word in words if word not in {"Any", "Self", "None", "AsyncIterator", "Generator", "Counter"}}
        assert own <= {*command_bus.__all__, *UNNAMED}, name


def test_what_middleware_is_given_can_be_imported() -> None:
    for name, method in vars(Middleware).items():
        if not name.startswith("_"):
            words = set(re.findall(r"\b[A-Z]\w{2,}", str(inspect.signature(method))))
            assert words - {"Any", "Sequence"} <= set(command_bus.__all__), name


@pytest.mark.parametrize("name", command_bus.__all__)
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    """The reference reads it below a class or a function, or after the assignment of an alias."""
    home = command_bus._HOME.get(name, "errors")
    file = Path(import_module(f"command_bus.{home}").__file__ or "")
    files = sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]
    bodies = [ast.parse(each.read_text(encoding="utf-8")).body for each in files]
    assert any(name == named and text for body in bodies for named, text in docstrings(body)), f"{name} in {home}"


def docstrings(body: list[ast.stmt]) -> Iterator[tuple[str, str | None]]:
    for statement, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield statement.name, ast.get_docstring(statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            text = (
                following.value.value if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant) else None
            )
            yield ast.unparse(target), text if isinstance(text, str) else None


def test_spark_s_module_lists_its_public_names_only() -> None:
    assert dir(command_bus.spark) == sorted(command_bus.spark.__all__)
