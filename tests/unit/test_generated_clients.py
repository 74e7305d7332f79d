"""Whatever is read_description, `generate` writes Python that only declares, or leaves that command out and says so."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings

pytest.importorskip("typer")

from command_bus.cli.codegen.checked_source import RefusedSource, check_source
from command_bus.cli.codegen.clients import generate_clients
from command_bus.serialization.announcements import CommandInfo, read_description
from tests.fuzz.announcements import PAYLOAD, announcements

MARK = "command_bus_was_here"


def info(name: str = "Deposit", **changes: Any) -> CommandInfo:
    """Return a command as it is read from its announcement."""
    record = {
        "entity": "account", "key": "account_id", "delivery": "at_least_once", "kind": "command",
        "schema": model(),
        **changes,
    }  # fmt: skip
    found = read_description(name, json.dumps(record).encode(), ())
    assert found is not None
    return found


def fields(**properties: Any) -> CommandInfo:
    return info(schema=model(**properties))


def model(**more: Any) -> dict[str, Any]:
    """Return the schema of a command with more fields than its key."""
    return {"type": "object", "properties": {"account_id": {"type": "string"}, **more}, "required": ["account_id"]}


def run(source: str) -> ModuleType:
    """Import it."""
    module = ModuleType("generated_client")
    sys.modules["generated_client"] = module
    try:
        exec(compile(source, "generated_client", "exec"), vars(module))
    finally:
        del sys.modules["generated_client"]
    return module


CODE = f"x: int = open({MARK!r}, 'w')\n    y"
ATTACKS: dict[str, CommandInfo] = {
    "a field's name": fields(**{CODE: {"type": "string"}}),
    "a field's name on one line": fields(**{f"x: int = open({MARK!r}, 'w'); y": {"type": "string"}}),
    "a field of the reply": info(
        reply={"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {CODE: {"type": "string"}}}}}
    ),
    "a model's title": info(
        reply={"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "title": f"A:\n    x = open({MARK!r}, 'w')\nclass B"}}}
    ),
    "a docstring": info(schema=model() | {"description": f'"""\n    x = open({MARK!r}, "w")\n    """'}),
    "a docstring's end": info(schema=model() | {"description": f'a\\"""+str(open({MARK!r}, "w"))+"""'}),
    "a docstring with a line of its own": info(schema=model() | {"description": f'a\r\x0c\x1c\u2028"""\nopen({MARK!r}, \'w\')'}),
    "an entity": info(entity=f"a'), open({MARK!r}, 'w') #"),
    "a delivery": info(delivery=f"x', y=open({MARK!r}, 'w')) #"),
    "a kind": info(kind=f"query[open({MARK!r}, 'w')]"),
    "the command's name": info(name=f"A(open({MARK!r}, 'w'))"),
    "a limit": fields(n={"type": "integer", "minimum": f"open({MARK!r}, 'w')"}),
    "a pattern": fields(n={"type": "string", "pattern": f"') or open({MARK!r}, 'w') or ('"}),
    "a default": fields(n={"type": "string", "default": {f"'+open({MARK!r}, 'w')+'": f"open({MARK!r}, 'w')"}}),
    "a default of a model": fields(n={"type": "object", "default": [f"__import__('pathlib').Path({MARK!r}).touch()"]}),
    "a constant": fields(n={"const": f"open({MARK!r}, 'w')"}),
    "an enum's text": fields(n={"enum": [f"open({MARK!r}, 'w')", {"a": 1}, 1e400]}),
    "an enum's member": info(
        reply={"$ref": "#/$defs/A", "$defs": {"A": {"enum": [f"x = open({MARK!r}, 'w')\n", "__init_subclass__", "mro", ""]}}}
    ),
    "a reference": info(reply={"$ref": f"#/$defs/open({MARK!r}, 'w')"}),
    "a type": fields(n={"type": f"open({MARK!r}, 'w')", "format": f"open({MARK!r}, 'w')"}),
    "the settings of a model": fields(model_config={"type": "object", "default": {"title": "x"}}),
    "a dunder": fields(__init_subclass__={"type": "string"}),
    "a name that Python reads as another": fields(ᵈef={"type": "string"}, ﬁeld={"type": "string"}),
    "a keyword": fields(**{"def": {"type": "string"}, "None": {"type": "string"}}),
    "a name of the module's own": info(name="_default"),
    "another one": info(name="__all__"),
    "a text that pydantic would evaluate": fields(n={"anyOf": [{"const": "open('x')"}, {"type": f"'open({MARK!r})'"}]}),
    "a model that is called as a type": info(reply={"$ref": "#/$defs/Literal", "$defs": {"Literal": {"type": "object"}}}),
    "definitions that go in a circle": info(
        reply={
            "$ref": "#/$defs/A",
            "$defs": {
                "A": {"type": "array", "items": {"$ref": "#/$defs/B"}},
                "B": {"type": "array", "items": {"$ref": "#/$defs/A"}},
            },
        }
    ),
    "terminal escapes": info(schema=model() | {"description": "\x1b]0;owned\x07\u009b2J\u202e"}),
}


@pytest.mark.promise("Announcements never become code")
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_is_announced_becomes_code(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = generate_clients([info("Innocent"), ATTACKS[attack]], "shop")
    check_source(found.source, _helper(found.source))
    assert all(letter.isprintable() or letter == "\n" for letter in found.source)
    module = run(found.source)
    assert not list(tmp_path.iterdir())
    assert issubclass(module.Innocent, object)
    for name, reason in found.refused.items():
        assert name != "Innocent"
        assert reason


@settings(max_examples=150)
@given(announcements())
def test_whatever_is_announced_the_text_only_declares(records: dict[str, bytes]) -> None:
    found = [each for name, record in records.items() if (each := read_description(name, record, ())) is not None]
    clients = generate_clients(found, "shop")
    tree = ast.parse(clients.source)
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert calls <= {"ConfigDict", "Field", "_default", "set", "TypeAdapter", "TypeAdapter(kind).validate_python"}
    assert not any(PAYLOAD in ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute))


ODD = {
    "a docstring that ends with a quote": (info(schema=model() | {"description": 'it is called "deposit"'}), "Deposit"),
    "one that is a quote": (info(schema=model() | {"description": '"'}), "Deposit"),
    "one that ends with a backslash": (info(schema=model() | {"description": "C:\\"}), "Deposit"),
    "one that ends with both": (info(schema=model() | {"description": '\\"'}), "Deposit"),
    "lines": (info(schema=model() | {"description": 'first "\nsecond "'}), "Deposit"),
    "a wire name with dots": (info("shop.Refund:v2/x"), "ShopRefundV2X"),
    "a wire name with digits first": (info("2fa"), "_2fa"),
    "a wire name of a type": (info("Query"), "Query_"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_names_and_words_of_ordinary_users_come_through(name: str) -> None:
    command, expected = ODD[name]
    found = generate_clients([command], "shop")
    assert not found.refused
    kind = getattr(run(found.source), expected)
    assert kind.spec().name == command.name
    if description := command.schema.get("description"):
        assert (kind.__doc__ or "").replace("\n    ", "\n").strip() == description


@pytest.mark.parametrize("field", ["user-id", "from", "_id", "a²", "model_config", "ﬁeld", ""])
def test_a_field_that_can_be_none_leaves_out_its_command_alone(field: str) -> None:
    found = generate_clients([info("Innocent"), fields(**{field: {"type": "string"}})], "shop")
    assert list(found.refused) == ["Deposit"]
    assert repr(field) in found.refused["Deposit"]
    assert run(found.source).Innocent(account_id="a").account_id == "a"


def test_a_class_sends_the_version_that_it_was_made_of() -> None:
    found = generate_clients([info(version=2), info("First", version="import os")], "shop")
    assert (run(found.source).Deposit.spec().version, run(found.source).First.spec().version) == (2, 1)


def test_two_commands_whose_classes_would_have_one_name() -> None:
    found = generate_clients([info("a.b"), info("a:b")], "shop")
    assert "a.b" in found.refused["a:b"]
    assert run(found.source).AB.spec().name == "a.b"


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from os import system",
        "from pydantic import *",
        "from pydantic import BaseModel as EntityId",
        "x = print()",
        "print()",
        "class A(BaseModel):\n    x: 'print()'",
        "class A(BaseModel):\n    x: list['print()']",
        "class A(BaseModel):\n    x: Annotated[str, 'print()']",
        "class A(BaseModel):\n    x: Annotated[str, Field(default_factory=print)]",
        "class A(Command['print()']):\n    pass",
        "class A(BaseModel, metaclass=print):\n    pass",
        "@print\nclass A(BaseModel):\n    pass",
        "class A(BaseModel):\n    print()",
        "class A(BaseModel):\n    def f(self): ...",
        "class A(BaseModel):\n    x: int = print()",
        "class A(BaseModel):\n    x: int = [print()]",
        "class A(BaseModel):\n    x: (print())",
        "class A(BaseModel):\n    x: dt.__class__",
        "class A(print()):\n    pass",
        "__getattr__ = Any",
        "def f(): ...",
        "if 1: pass",
        "a = b = Any",
        "del Any",
        "\x00",
        "(" * 500,
        "class A(BaseModel):\n    x: Literal[print()]",
        "class A(BaseModel):\n    x: int = _default(print(), 1)",
        "class A(BaseModel):\n    model_config = ConfigDict(extra='allow')",
    ],
)
def test_the_last_look_refuses_whatever_does_more_than_declare(text: str) -> None:
    with pytest.raises(RefusedSource):
        check_source(text)


def _helper(source: str) -> str:
    return source[source.index("def _default(") : source.index("strict=False)") + 13] if "def _default(" in source else ""
