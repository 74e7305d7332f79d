"""The first words of docstrings: a function's is a verb, a class's or module's a noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache

from tests.unit.syntax import ROOT, Function, functions, parsed, trees

FOLDERS = ("command_bus", "tests", "examples", "scripts", "benchmarks", "integrations")
QUESTIONS = {"How", "What", "When", "Where", "Whether", "Which", "Who"}
NO_VERBS = {
    *QUESTIONS,
    "A",
    "All",
    "An",
    "As",
    "Each",
    "Every",
    "First",
    "If",
    "No",
    "Some",
    "The",
    "This",
    "Those",
    "Whose",
    "Why",
}
NO_DOCUMENTATION = {"Protocol", "Generic", "ABC", "NamedTuple", "Exception"}  # bases that say nothing of methods
Headed = Callable[[ast.AST], list[str]]


def first_word(node: ast.Module | ast.ClassDef | Function) -> str:
    return ((ast.get_docstring(node) or "").split() or [""])[0].rstrip(",:")


def headed_by_no_verb(tree: ast.AST) -> list[str]:
    """Return the functions whose docstrings begin with another word; a property is named by a noun, a test tells a story."""
    return [
        f"line {function.lineno}: {function.name}"
        for function in functions(tree)
        if first_word(function) in NO_VERBS and not function.name.startswith("test_") and not is_property(function)
    ]


def is_property(function: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def headed_by_a_question(tree: ast.AST) -> list[str]:
    """Return the classes whose docstrings begin with a question word, and the module if its own does."""
    return [
        f"line {node.lineno}: {node.name}" if isinstance(node, ast.ClassDef) else "line 1: the module"
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef) and first_word(node) in QUESTIONS
    ]


def everywhere(headed: Headed) -> Iterator[str]:
    """Yield what is found in any file of this repository."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found = headed(parsed(path))
            yield from (f"{path.relative_to(ROOT)}, {each}" for each in found)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    assert not [*everywhere(headed_by_no_verb)]


def test_docstrings_of_classes_and_modules_begin_with_a_noun() -> None:
    assert not [*everywhere(headed_by_a_question)]


@cache
def documented() -> dict[str, list[tuple[ast.ClassDef, set[str]]]]:
    """Return the classes of the package by name, each with the methods that have a docstring."""
    found: dict[str, list[tuple[ast.ClassDef, set[str]]]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                described = {child.name for child in node.body if isinstance(child, Function) and ast.get_docstring(child)}
                found.setdefault(node.name, []).append((node, described))
    return found


def is_documented(owner: ast.ClassDef, method: str, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether a base class, or a class that this one's docstring names, says what the method does; other packages' classes do."""
    seen |= {owner.name}
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in owner.bases} - seen
    named = {name for name in re.findall(r"`(\w+)`", ast.get_docstring(owner) or "") if name in documented()} - seen
    if any(name not in documented() and name not in NO_DOCUMENTATION for name in bases):
        return True
    return any(
        method in described or is_documented(above, method, seen)
        for name in bases | named
        for above, described in documented().get(name, [])
    )


def described_nowhere(tree: ast.AST) -> list[str]:
    """Return public methods that no docstring describes: neither one of their own, nor that of a namesake which they implement."""
    return [
        f"line {child.lineno}: {node.name}.{child.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for child in node.body
        if isinstance(child, Function) and not child.name.startswith("_")
        if not ast.get_docstring(child) and not is_overload(child) and not is_documented(node, child.name)
    ]


def is_overload(function: Function) -> bool:
    return any(ast.unparse(decorator) in ("overload", f"{function.name}.setter") for decorator in function.decorator_list)


def test_public_methods_are_described() -> None:
    assert not [f"{module}, {each}" for module, tree in trees().items() for each in described_nowhere(tree)]


def test_a_method_that_is_described_nowhere_is_found() -> None:
    source = 'class C:\n    """It is like `Reader`."""\n    def f(self): ...\nclass D(Observer):\n    def f(self): ...\n    def handled(self): ...'
    assert described_nowhere(ast.parse(source)) == ["line 3: C.f", "line 5: D.f"]


def test_a_docstring_without_a_verb_is_found() -> None:
    found = headed_by_no_verb(ast.parse('def f():\n    """The sum."""\n@property\ndef g(self):\n    """The sum."""'))
    assert found == ["line 1: f"]


def test_a_docstring_that_begins_with_a_question_is_found() -> None:
    assert headed_by_a_question(ast.parse('"""What it costs."""\nclass C:\n    """How it works."""')) == [
        "line 1: the module",
        "line 2: C",
    ]
    assert not headed_by_a_question(ast.parse('"""Costs."""\nclass C:\n    """The way it works."""'))


def test_files_that_are_named_exist() -> None:
    there = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
    named = re.compile(r"`(?:[\w/]*/)?(\w+\.(?:py|lua))`")
    texts = sorted([*(ROOT / "command_bus").rglob("*.py"), *(ROOT / "command_bus").rglob("*.lua")])
    lost = {path.name: found - there for path in texts if (found := set(named.findall(path.read_text(encoding="utf-8")))) - there}
    assert not lost
