"""The volume of the package: it says no more than this with no more than this. Lower a limit when the package has become smaller."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

from tests.unit.syntax import FILES, trees

FILES_AT_MOST = 477
TOKENS_AT_MOST = 560_700  # of code, without docstrings and comments
PROTOCOLS_AT_MOST = 61
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield where docstrings begin: line and column."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            yield node.body[0].lineno, node.body[0].col_offset


def tokens(source: str, tree: ast.Module) -> int:
    """Return the number of tokens of the code. An f-string is one, as before Python 3.12, which cuts them."""
    skipped = set(docstrings(tree))
    count = depth = 0
    for each in tokenize.generate_tokens(io.StringIO(source).readline):
        if not depth and each.type not in NO_CODE and not (each.type == tokenize.STRING and each.start in skipped):
            count += 1
        depth += {"FSTRING_START": 1, "FSTRING_END": -1}.get(tokenize.tok_name[each.type], 0)
    return count


def test_the_package_has_not_grown() -> None:
    kinds = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    protocols = [each.name for each in kinds if any(ast.unparse(base).partition("[")[0] == "Protocol" for base in each.bases)]
    assert len(FILES) <= FILES_AT_MOST
    assert len(protocols) <= PROTOCOLS_AT_MOST
    count = sum(tokens(FILES[name].read_text(encoding="utf-8"), tree) for name, tree in trees().items())
    assert count <= TOKENS_AT_MOST, f"{count} tokens: say the same with less, or say in the commit why it has to be more"


def test_tokens_are_those_of_code() -> None:
    source = '"""Module."""\n# a comment\ndef f(a):\n    """Text."""\n    return a + f"{a:{a}} {f\'{a}\'}" + 1\n'
    assert tokens(source, ast.parse(source)) == len(["def", "f", "(", "a", ")", ":", "return", "a", "+", 'f"…"', "+", "1"])
