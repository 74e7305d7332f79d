"""The first words of docstrings: a function's is a verb, a class's or module's a noun."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tests.unit.syntax import ROOT, Function, functions, parsed

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


def test_a_docstring_without_a_verb_is_found() -> None:
    found = headed_by_no_verb(ast.parse('def f():\n    """The sum."""\n@property\ndef g(self):\n    """The sum."""'))
    assert found == ["line 1: f"]


def test_a_docstring_that_begins_with_a_question_is_found() -> None:
    assert headed_by_a_question(ast.parse('"""What it costs."""\nclass C:\n    """How it works."""')) == [
        "line 1: the module",
        "line 2: C",
    ]
    assert not headed_by_a_question(ast.parse('"""Costs."""\nclass C:\n    """The way it works."""'))
