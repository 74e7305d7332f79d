"""Typed client classes as Python source, from the announced commands, for callers that do not have the server's code.

The same announcements always give the same text, so it can be committed and compared. Each class is one that a server could have
declared: `bus.call(Deposit(account_id="a-1", amount=5))` is typed and validated in the same way.

The text is imported on other machines than the server's, and clients that may announce commands choose words in it. So names are checked, all
else is written as literals, and `check_source` checks the result. A command that fails a check is left out, and reported.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from command_bus.cli.codegen.checked_source import IMPORTED, RefusedSource, check_source
from command_bus.cli.codegen.type_names import (
    LITERAL,
    class_name,
    default_source,
    enum_members,
    field_name_problem,
    iter_references,
    listed_values,
    python_type,
)
from command_bus.messages.message import is_entity_type, is_wire_name
from command_bus.messages.policies import Delivery
from command_bus.serialization.schema_check import schema_problems

if TYPE_CHECKING:
    from command_bus.serialization.announcements import CommandInfo

Schema = Mapping[str, Any]

_DEFAULT = '''
def _default(kind: Any, value: Any) -> Any:
    """A default that JSON cannot write."""
    return TypeAdapter(kind).validate_python(value, strict=False)
'''


def schema_document(commands: Sequence[CommandInfo], namespace: str) -> dict[str, Any]:
    """Return the commands with their schemas as one JSON document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Commands of the namespace {namespace}",
        "commands": {
            each.name: {
                "kind": each.kind,
                "entity": each.entity,
                "key": each.key,
                "delivery": each.delivery,
                **({"version": each.version} if each.version > 1 else {}),
                "fields": each.schema,
                "reply": each.reply,
            }
            for each in sorted(commands, key=lambda each: each.name)
        },
    }


class Clients(NamedTuple):
    """A module with a class for each command.

    Attributes:
        source: Its text.
        refused: The commands that it lacks, each with the reason.
    """

    source: str
    refused: Mapping[str, str]


def generate_clients(commands: Sequence[CommandInfo], namespace: str) -> Clients:
    """Generate a module with a class for each command that can have one.

    Raises:
        RefusedSource: Each command passes the check, but not all together; no announcement should cause that.
    """
    taken: dict[str, str] = {}
    sound: list[CommandInfo] = []
    refused: dict[str, str] = {}
    for each in sorted(commands, key=lambda each: each.name):
        fault = _problem_of(each, namespace)
        if fault is None and (other := taken.setdefault(class_name(each.name), each.name)) != each.name:
            fault = f"its class would have the name of that of {other}"
        if fault is None:
            sound.append(each)
        else:
            refused[each.name] = fault
    source = render_module(sound, namespace)
    check_source(source, _DEFAULT)
    return Clients(source, refused)


def _problem_of(command: CommandInfo, namespace: str) -> str | None:
    """Return why a command can have no class; None if it can."""
    if not is_wire_name(command.name):
        return "this is no name of a command"
    if command.entity is not None and not is_entity_type(command.entity):
        return f"{command.entity!r} is no entity type"
    if command.kind not in ("command", "query") or command.delivery not in get_args(Delivery):
        return "it is of a kind that this version does not know"
    if (command.entity is None) != (command.key is None) or (
        command.key is not None and command.key not in command.schema.get("properties", {})
    ):
        return "none of its fields holds the id of its entity"
    for schema in (command.schema, command.reply or {}):
        for field in _fields_in(schema):
            if (fault := field_name_problem(field)) is not None:
                return f"its field {field!r} has {fault}"
    if (misfit := _field_with_wrong_default(command.schema)) is not None:
        return f"the default of its field {misfit!r} is no value of that"
    try:
        check_source(render_module([command], namespace), _DEFAULT)
    except RefusedSource as error:
        return str(error)
    return None


def _field_with_wrong_default(schema: Schema) -> str | None:
    """Return a field whose default does not fit its type, with which the class could not be created; None if there is none."""
    definitions = schema.get("$defs", {})
    models: list[Schema] = [schema, *definitions.values()]
    return next(
        (
            name
            for model in models
            for name, each in model.get("properties", {}).items()
            if "default" in each
            and each["default"] is not None
            and schema_problems(each["default"], {**each, "$defs": definitions})
        ),
        None,
    )


def _fields_in(schema: Schema) -> list[str]:
    """Return the names of all fields that the classes would have."""
    models: list[Schema] = [schema, *schema.get("$defs", {}).values()]
    return [
        field for model in models if model is schema or model.get("type") == "object" for field in model.get("properties", {})
    ]


def render_module(commands: Sequence[CommandInfo], namespace: str) -> str:
    """Return the source of a module with a class for each command, unchecked; `generate_clients` checks it."""
    ordered = sorted(commands, key=lambda each: each.name)
    module = _Module({class_name(each.name) for each in ordered})
    found = [(each, module.names_for(each.schema, each.name), module.names_for(each.reply or {}, each.name)) for each in ordered]
    body = [*module.models(), *(_command(each, names, replies) for each, names, replies in found)]
    text = "\n\n".join(body)
    exported = sorted({*(class_name(each.name) for each in ordered), *module.class_names()})
    head = [
        f'"""Commands of the namespace {namespace}, for callers.',
        "",
        "Written by `command-bus generate`; do not edit, generate it again.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *_imports(text),
        "",
        f"__all__ = {json.dumps(exported, ensure_ascii=False)}",
        "",
    ]
    helper = [_DEFAULT] if "_default(" in text else []
    return "\n".join([*head, *helper, text, ""])


class _Module:
    """The models that commands and replies refer to, each under one name.

    Args:
        taken: The names of the commands' classes.
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._known: dict[tuple[str, str], str] = {}
        self._schemas: dict[str, tuple[Schema, dict[str, str]]] = {}

    def names_for(self, schema: Schema, owner: str) -> dict[str, str]:
        """Return the class names of a schema's definitions: their own names, prefixed with the owner's if another has the same."""
        definitions: Mapping[str, Schema] = schema.get("$defs", {})
        names: dict[str, str] = {}
        fresh: list[str] = []
        for key, each in sorted(definitions.items()):
            identity = (key, json.dumps([each, {name: definitions.get(name) for name in iter_references(each)}], sort_keys=True))
            if identity not in self._known:
                plain = class_name(str(each.get("title", key)))
                further = (class_name(f"{owner} {plain} {number}") for number in itertools.count(2))
                choices = itertools.chain([plain, class_name(f"{owner} {plain}")], further)
                self._known[identity] = next(name for name in choices if name not in self._taken)
                self._taken.add(self._known[identity])
                fresh.append(key)
            names[key] = self._known[identity]
        for key in fresh:
            self._schemas[names[key]] = (definitions[key], names)
        return names

    def class_names(self) -> list[str]:
        """Return the class names of all models."""
        return list(self._schemas)

    def models(self) -> list[str]:
        """Return the models' source, each after the models that it needs."""
        done: dict[str, str] = {}
        under_way: set[str] = set()

        def visit(name: str) -> None:
            if name in done or name in under_way:
                return
            under_way.add(name)
            schema, names = self._schemas[name]
            for key in iter_references(schema):
                if key in names:  # otherwise it is not within a schema, and no model needs it
                    visit(names[key])
            # A name for a type is evaluated at once, so where it refers to itself it is Any.
            at_once = schema.get("type") != "object" and "enum" not in schema and "const" not in schema
            ready = {key: "Any" if at_once and each not in done else each for key, each in names.items()}
            done[name] = _model(name, schema, ready)

        for name in sorted(self._schemas):
            visit(name)
        return list(done.values())


def _model(name: str, schema: Schema, names: Mapping[str, str]) -> str:
    if ("enum" in schema or "const" in schema) and all(isinstance(each, LITERAL) for each in listed_values(schema)):
        lines = [f"class {name}(Enum):", *_doc(schema), *(f"    {member} = {value!r}" for member, value in enum_members(schema))]
        return "\n".join([*lines, ""])
    if schema.get("type") != "object":
        return f"{name} = {python_type(schema, names)}\n"
    lines = [f"class {name}(BaseModel):", *_doc(schema)]
    if schema.get("additionalProperties") is False:
        lines += ['    model_config = ConfigDict(extra="forbid")', ""]
    elif schema.get("additionalProperties"):
        lines += ['    model_config = ConfigDict(extra="allow")', ""]
    return _class(lines, schema, names, None)


def _command(command: CommandInfo, names: Mapping[str, str], replies: Mapping[str, str]) -> str:
    name = class_name(command.name)
    reply = "Any" if command.reply is None else python_type(command.reply, replies)
    arguments = [f"{'Query' if command.kind == 'query' else 'Command'}[{reply}]"]
    if command.entity is not None:
        arguments.append(f"entity={command.entity!r}")
    if name != command.name:
        arguments.append(f"name={command.name!r}")
    if command.delivery != "at_least_once":
        arguments.append(f"delivery={command.delivery!r}")
    if command.version > 1:
        arguments.append(f"version={command.version}")
    lines = [f"class {name}({', '.join(arguments)}):", *_doc(command.schema)]
    return _class(lines, command.schema, names, command.key)


def _class(head: Sequence[str], schema: Schema, names: Mapping[str, str], key: str | None) -> str:
    """Return a class that begins with these lines and has the schema's fields."""
    required = schema.get("required", ())
    lines = [*head]
    for field, each in schema.get("properties", {}).items():
        kind = "EntityId" if field == key else python_type(each, names)
        default = None if field in required else default_source(each, kind)
        lines.append(f"    {field}: {kind}{'' if default is None else f' = {default}'}")
    return "\n".join([*lines, *(["    pass"] if len(lines) == 1 else []), ""])


def _doc(schema: Schema) -> list[str]:
    lines = [_in_docstring(line) for line in str(schema.get("description", "")).splitlines()]
    if not lines:
        return []
    if len(lines) > 1:
        return [f'    """{lines[0]}', *(f"    {line}".rstrip() for line in lines[1:]), '    """', ""]
    closing = lines[0][:-1] + '\\"' if lines[0].endswith('"') else lines[0]
    return [f'    """{closing}"""', ""]


def _in_docstring(line: str) -> str:
    """Return a line that neither ends the docstring nor is obeyed by a terminal."""
    plain = line.replace("\\", "\\\\").replace('"""', "'''")
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in plain)


def _imports(text: str) -> list[str]:
    """Return the imports that the source needs, as an import sorter would write them."""
    if "_default(" in text:
        text += " Any TypeAdapter"

    def used(*names: str) -> list[str]:
        return [name for name in names if re.search(rf"\b{name}\b", text)]

    lines = ["import datetime as dt"] if "dt." in text else []
    standard = {module: used(*IMPORTED[module]) for module in ("decimal", "enum", "typing", "uuid")}
    lines += [f"from {module} import {', '.join(names)}" for module, names in standard.items() if names]
    foreign, own = used(*IMPORTED["pydantic"]), used(*IMPORTED["command_bus"])
    lines += ["", f"from pydantic import {', '.join(foreign)}"] if foreign else []
    return [*lines, "", f"from command_bus import {', '.join(own)}"] if own else lines
