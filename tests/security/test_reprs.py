"""The classes whose `repr` is made of their fields: none of these is a secret, by its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import command_bus

ROOT = Path(command_bus.__file__).parent
SECRET = re.compile(r"(^|_)(passwords?|secrets?|tokens?|credentials?|signing_keys?|digest_key|pin|url|urls)(_|$)")
NO_SECRET = {
    ("spark/writing/writer.py", "PartitionTask", "token"),  # of the task's place in the dispatch
}
"""Fields of such a name that hold none, with the reason beside each."""


def made_of_fields(node: ast.ClassDef) -> bool:
    """Return whether a class is a dataclass or a named tuple that shows its fields."""
    if any(isinstance(each, ast.FunctionDef) and each.name == "__repr__" for each in node.body):
        return False
    if any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases):
        return True
    for each in node.decorator_list:
        name = each.func if isinstance(each, ast.Call) else each
        if isinstance(name, ast.Name) and name.id == "dataclass":
            options = each.keywords if isinstance(each, ast.Call) else []
            return not any(option.arg == "repr" and ast.unparse(option.value) == "False" for option in options)
    return False


def shown(node: ast.ClassDef) -> list[str]:
    """Return the fields that a class shows."""
    return [
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and not (each.value is not None and "repr=False" in ast.unparse(each.value))
        and "ClassVar" not in ast.unparse(each.annotation)
        and re.search(r"\b(str|bytes|Any|SecretStr|Mapping|Sequence|tuple|dict)\b", ast.unparse(each.annotation))
        and "SecretStr" not in ast.unparse(each.annotation)
    ]


def test_no_repr_is_made_of_a_secret() -> None:
    found = {
        (str(path.relative_to(ROOT)), node.name, name)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and made_of_fields(node)
        for name in shown(node)
        if SECRET.search(name)
    }
    assert found == NO_SECRET
