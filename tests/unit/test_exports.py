"""The names that each module exports, and the tree in CONTRIBUTING.md, which names each package."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

from tests.unit.syntax import FILES, PACKAGE, ROOT, trees


def bound_names(nodes: list[ast.stmt]) -> Iterator[str]:
    """Return the names that the statements bind at the module's level."""
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
    """Return the value of `__all__`, which must be a plain list of strings; None if there is none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            assert value is not None
            return list(ast.literal_eval(value))
    return None


def is_face(tree: ast.Module) -> bool:
    """Return whether a package hands on names of its modules: what users import from, so it lists them."""
    return any(isinstance(node, ast.ImportFrom) and node.module != "__future__" for node in ast.walk(tree))


def faults_of_all(module: str, tree: ast.Module, *, is_package: bool) -> Iterator[str]:
    """Yield what is wrong with a module's `__all__`: packages that hand on names have one, modules do not repeat what they define."""
    names = exported(tree)
    if names is None or not is_package:
        if (names is not None) != (is_package and is_face(tree)):
            yield "has no __all__" if names is None else "repeats its names in __all__"
        return
    if len(names) > len(set(names)):
        yield "a name stands twice in __all__"
    missing = set(names) - set(bound_names(tree.body))
    if missing and "__getattr__" in bound_names(tree.body):  # it loads names when they are asked for: ask
        imported = importlib.import_module(module)
        missing = {name for name in missing if not hasattr(imported, name)}
    if missing:
        yield f"{', '.join(sorted(missing))}: in __all__, but not in the module"


def test_all_is_exact() -> None:
    assert not [
        f"{module}: {fault}"
        for module, tree in trees().items()
        for fault in faults_of_all(module, tree, is_package=FILES[module].name == "__init__.py")
    ]


def test_a_fault_of_all_is_found() -> None:
    def found(text: str, *, is_package: bool = True) -> int:
        return len([*faults_of_all("command_bus.x", ast.parse(text), is_package=is_package)])

    assert found("from command_bus.x.y import a") == 1
    assert found("__all__ = ['a', 'a', 'b']\nfrom command_bus.x.y import a") == 2
    assert found("__all__ = ['a']\na = 1", is_package=False) == 1
    assert found("from __future__ import annotations") == found("from command_bus.x.y import a", is_package=False) == 0


def mapped_folders(page: str) -> set[str]:
    """Return the folders of the package on a page's tree, as paths."""
    tree = page.partition("```text\n")[2].partition("```")[0]
    found: set[str] = set()
    above: list[str] = []
    for line in tree.splitlines():
        name, depth = line.split()[0], (len(line) - len(line.lstrip())) // 2
        if name.endswith("/") and depth <= len(above):
            above = [*above[:depth], name.rstrip("/")]
            found.add("/".join(above))
    return {name for name in found if name.startswith(f"{PACKAGE}/")}


def test_the_map_in_contributing_names_every_package() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / PACKAGE).rglob("__init__.py")} - {PACKAGE}
    assert mapped_folders(page) - {f"{PACKAGE}/transport/redis/lua"} == packages
