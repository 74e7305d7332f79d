"""No order comes from a set: that of texts differs from process to process, so nothing that happens in it can be done again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.unit.syntax import ROOT, parsed

FOLDERS = ("command_bus", "tests/simulation")
WITHOUT_ORDER = {"sorted", "set", "frozenset", "sum", "any", "all", "min", "max", "len"}
SETS, VIEWS = {"set", "frozenset", "intersection", "union", "difference", "symmetric_difference"}, {"keys", "items"}
LISTS = {"list", "tuple", "iter", "next", "enumerate", "fromkeys"}


def called(node: ast.AST) -> str:
    """Return the last name of what is called; empty if nothing is."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_set(node: ast.expr) -> bool:
    """Return whether an expression makes a set, as far as it shows by itself."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.Sub | ast.BitXor):
        return any(is_set(side) or called(side) in VIEWS for side in (node.left, node.right))
    return isinstance(node, ast.Set | ast.SetComp) or called(node) in SETS


def walked(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a node walks over, in an order that matters."""
    if isinstance(node, ast.For | ast.AsyncFor):
        yield node.iter
    elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
        yield from (part.iter for part in node.generators)
    elif called(node) in LISTS and isinstance(node, ast.Call):
        yield from node.args[:1]
    elif isinstance(node, ast.List | ast.Tuple):
        yield from (each.value for each in node.elts if isinstance(each, ast.Starred))


def ordered_by_hash(tree: ast.AST) -> list[str]:
    """Return the places where a set that is made there is walked over."""
    free = {
        id(arg) for node in ast.walk(tree) if called(node) in WITHOUT_ORDER and isinstance(node, ast.Call) for arg in node.args
    }
    nodes = [node for node in ast.walk(tree) if id(node) not in free]
    return [f"line {each.lineno}: {ast.unparse(each)}" for node in nodes for each in walked(node) if is_set(each)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_order_comes_from_a_set(folder: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix(): places
        for path in (ROOT / folder).rglob("*.py")
        if (places := ordered_by_hash(parsed(path)))
    }
    assert found == {}, "sort it, or walk over the dict or list it is made of"


@pytest.mark.parametrize(
    "source",
    ["for a in b.keys() & c: pass", "[a for a in set(b)]", "list({a, b})", "{a: 1 for a in b.intersection(c)}", "[*{a}, 1]",
     "x(a for a in {b} | c)", "for a in b - c.keys(): pass", "dict.fromkeys({a for a in b})"],
)  # fmt: skip
def test_a_walk_over_a_set_is_found(source: str) -> None:
    assert ordered_by_hash(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    ["for a in sorted({b}): pass", "any(a for a in {b})", "{a for a in set(b)}", "for a in b: pass", "a = b - c", "{*{a}, b}"],
)
def test_what_has_no_order_may_come_from_a_set(source: str) -> None:
    assert not ordered_by_hash(ast.parse(source))
