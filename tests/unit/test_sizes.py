"""The limits of size: of modules, functions, classes and files of tests."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.syntax import FILES, ROOT, Function, functions, trees

MODULE_LINES = 500  # without docstrings, as for functions
FUNCTION_LINES = 40  # of its body, without the docstring: what explains is not to be paid for
PUBLIC_METHODS = 12
EXCEPTIONS = {
    # What may be larger: the class or function, its limit, and why.
    "CommandContext": (20, "what one run of a handler may know, send, say and change"),
    "CommandBus": (22, "the public facade: each method hands on to one part"),
    "SyncCommandBus": (16, "the same for blocking code"),
    "HandlerRegistry": (14, "who registers, each way, and who looks up"),
    "Sender": (13, "a method for each way to send, and for each who sends by other means"),
    "TestBus": (13, "the ways to send, time, crashes and what was recorded"),
    "Connections": (13, "scripts and plain requests, each posted, awaited or confirmed"),
    "Decisions": (17, "a method for each end of a run, one for who runs with it, and three for the state of its entity"),
    "OperatorSide": (15, "a property for each part of an operator's side"),
    "ShardKeys": (13, "a method for each kind of name"),
    "EntityScope": (13, "what may be sent to an entity, asked of it, and done with it"),
    "Transport": (17, "a property for each part of a transport"),
    "Worker": (15, "what an application, its supervisor and its own parts each need of it"),
    "Schedules": (13, "what may be done to a schedule, and to all of them"),
    "SyncSchedules": (13, "the same for blocking code"),
    "Slots": (14, "what readers, handlers and the worker each need of it"),
    "PrometheusMetrics": (14, "a method for each thing that an observer receives"),
    "LeaseKeeper": (13, "what the event loop and the renewing thread each need of it"),
    "DurableContext": (14, "what a durable handler may await, and how a workflow calls what is packed"),
    "DurableOperations": (13, "the same, as the context knows it"),
    "HandlerOperations": (13, "the same, for one run"),
    "DurableRun": (15, "what the operations of a handler, its waits and its worker each need of it"),
    "stats": (45, "names each figure of the statistics once"),
    "_read": (45, "reads every envelope: a call costs more than it says (measured)"),
}
PARAMETERS = 7  # without self and keyword-only ones, which name themselves at the call


def docstring_length(node: ast.Module | ast.ClassDef | Function) -> int:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return (first.end_lineno or first.lineno) - first.lineno + 1
    return 0


def docstring_lines(tree: ast.Module) -> int:
    return sum(docstring_length(node) for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | Function))


def code_lines(function: Function) -> int:
    """Return the lines of the body, without the docstring."""
    first = function.body[0]
    return (function.end_lineno or function.lineno) - first.lineno + 1 - docstring_length(function)


def parameters(function: Function) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (1 if names[:1] in (["self"], ["cls"]) else 0)


def limit_of(name: str, usual: int) -> int:
    return EXCEPTIONS[name][0] if name in EXCEPTIONS else usual


def oversized(tree: ast.Module, lines: int) -> list[str]:
    """Return what has outgrown the limits at the top of this file."""
    found = [f"{lines} lines: split the module (at most {MODULE_LINES})"] if lines > MODULE_LINES else []
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


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_nothing_outgrows_its_limit() -> None:
    lines = {module: length(FILES[module]) - docstring_lines(tree) for module, tree in trees().items()}
    assert not [f"{module}, {found}" for module, tree in trees().items() for found in oversized(tree, lines[module])]


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
    sizes = {}
    for path in (ROOT / "tests").rglob("*.py"):
        marks = path.read_text(encoding="utf-8").count("\n@pytest.mark.promise(")  # an index, not code
        sizes[path.relative_to(ROOT).as_posix()] = length(path) - marks
    assert {name: size for name, size in sizes.items() if size > TEST_LINES} == {}
