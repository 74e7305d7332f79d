"""The modules of the package as syntax trees, for the tests of their shape.

The files are parsed, not imported, so that a module of an extra that is not installed is checked like any other.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["FILES", "PACKAGE", "ROOT", "Function", "functions", "parsed", "trees"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "command_bus"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parsed(path: Path) -> ast.Module:
    """Parse a file. The garbage collector rests, because it makes `ast.parse` fail now and then (python/cpython#106905)."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    finally:
        gc.enable()


FILES = {module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module of the package."""
    return {name: parsed(path) for name, path in FILES.items()}


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))
