"""The last check of generated Python before it can be imported: it may declare data, and do nothing else.

Whatever was announced, the source passes only if its syntax tree consists of imports, classes with annotated fields and constant
defaults, and names for types. Annotations contain strings only within `Literal`, because pydantic evaluates other strings as code.
"""

from __future__ import annotations

import ast
from typing import Final

IMPORTED: Final = {
    "__future__": ("annotations",),
    "decimal": ("Decimal",),
    "enum": ("Enum",),
    "typing": ("Annotated", "Any", "Literal"),
    "uuid": ("UUID",),
    "pydantic": ("Base64Bytes", "Base64Str", "Base64UrlBytes", "Base64UrlStr", "BaseModel", "ConfigDict", "Field", "TypeAdapter"),
    "command_bus": ("Command", "EntityId", "Query"),
}
FIELD_ARGUMENTS: Final = frozenset({"ge", "le", "gt", "lt", "multiple_of", "min_length", "max_length", "pattern"})
_TIMES: Final = frozenset({"datetime", "date", "time", "timedelta"})
_BUILT_IN: Final = frozenset({"str", "int", "float", "bool", "bytes", "dict", "list", "set", "tuple"})
_CLASS_ARGUMENTS: Final = frozenset({"entity", "name", "delivery", "version"})


class RefusedSource(ValueError):
    """The source is no Python, or does more than declare data."""


def check_source(text: str, helper: str = "") -> None:
    """Check that a module only declares data.

    Args:
        text: Its source.
        helper: The source of functions that are also allowed.

    Raises:
        RefusedSource: It is no Python, or does more.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise RefusedSource("it would be no Python") from None
    allowed = {ast.dump(node) for node in ast.parse(helper).body}
    declared = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    declared |= {name for node in tree.body if isinstance(node, ast.Assign) for name in _targets(node)}
    checker = _SourceChecker(frozenset(name for names in IMPORTED.values() for name in names) | _BUILT_IN | declared)
    for number, node in enumerate(tree.body):
        documents = number == 0 and checker.is_text(node)
        if not (documents or ast.dump(node) in allowed or checker.declares(node)):
            raise RefusedSource(f"line {node.lineno} would do more than declare data")


class _SourceChecker:
    """Checks parts of a syntax tree.

    Args:
        names: Those that are types.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def declares(self, node: ast.stmt) -> bool:
        """Return whether this is an import, a class, a name for a type, or `__all__`."""
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                return all(each.asname is None and each.name in IMPORTED.get(module, ()) for each in names)
            case ast.Import(names=[ast.alias(name="datetime", asname="dt")]):
                return True
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements)):
                return all(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in elements)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                return not name.startswith("__") and self.is_type(value)
            case ast.ClassDef():
                return self._is_class(node)
            case _:
                return False

    def is_text(self, node: ast.stmt) -> bool:
        """Return whether this is a docstring."""
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

    def is_type(self, node: ast.expr) -> bool:
        """Return whether this is a type, without strings that would be evaluated."""
        match node:
            case ast.Constant(value=None):
                return True
            case ast.Name(id=name):
                return name in self._names
            case ast.Attribute(value=ast.Name(id="dt"), attr=name):
                return name in _TIMES
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self.is_type(left) and self.is_type(right)
            case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
                return all(_is_literal(each) for each in _elements(inner))
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, ast.Call() as field])):
                return self.is_type(inner) and _is_field(field)
            case ast.Subscript(value=ast.Name(id=name), slice=inner):
                return name in self._names and all(self.is_type(each) for each in _elements(inner))
            case _:
                return False

    def _is_class(self, node: ast.ClassDef) -> bool:
        if node.decorator_list or len(node.bases) != 1 or not self.is_type(node.bases[0]):
            return False
        if not all(each.arg in _CLASS_ARGUMENTS and isinstance(each.value, ast.Constant) for each in node.keywords):
            return False
        return all(
            isinstance(each, ast.Pass) or (number == 0 and self.is_text(each)) or self._is_member(each)
            for number, each in enumerate(node.body)
        )

    def _is_member(self, node: ast.stmt) -> bool:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value, simple=1):
                return not name.startswith("_") and self.is_type(kind) and (value is None or self._is_default(value))
            case ast.Assign(targets=[ast.Name(id="model_config")], value=value):
                return ast.unparse(value) == "ConfigDict(extra='forbid')"
            case ast.Assign(targets=[ast.Name(id=name)], value=value):  # of an enum
                return not name.startswith("_") and _is_literal(value)
            case _:
                return False

    def _is_default(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="_default"), args=[kind, value], keywords=[]):
                return self.is_type(kind) and _is_literal(value)
            case ast.Call(func=ast.Name(id="set"), args=[], keywords=[]):
                return True
            case _:
                return _is_literal(node)


def _targets(node: ast.Assign) -> list[str]:
    return [each.id for each in node.targets if isinstance(each, ast.Name)]


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _is_field(node: ast.Call) -> bool:
    named = isinstance(node.func, ast.Name) and node.func.id == "Field" and not node.args
    return named and all(each.arg in FIELD_ARGUMENTS and _is_literal(each.value) for each in node.keywords)


def _is_literal(node: ast.expr) -> bool:
    """Return whether this is a literal value: a number, a string, or lists and dicts of them."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True
