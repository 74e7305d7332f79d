"""Typed client classes as Python source, from what the workers announced: for callers that do not have the server's code.

The same announcements give the same text, whoever asks and whenever, so that it can be committed and compared. Each class is one that
a server could have declared: `bus.call(Deposit(account_id="a-1", amount=5))` is typed and checked as there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from command_bus.cli.type_names import class_name, default_of, members_of, references_of, type_of

if TYPE_CHECKING:
    from command_bus.facts import CommandInfo

__all__ = ["client_source", "schema_document"]

Schema = Mapping[str, Any]

_DEFAULT = '''
def _default(kind: Any, value: Any) -> Any:
    """A default that JSON cannot write."""
    return TypeAdapter(kind).validate_python(value, strict=False)
'''


def schema_document(commands: Sequence[CommandInfo], namespace: str) -> dict[str, Any]:
    """The commands with their schemas, as one JSON document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Commands of the namespace {namespace}",
        "commands": {
            each.name: {
                "kind": each.kind,
                "entity": each.entity,
                "key": each.key,
                "delivery": each.delivery,
                "fields": each.schema,
                "reply": each.reply,
            }
            for each in sorted(commands, key=lambda each: each.name)
        },
    }


def client_source(commands: Sequence[CommandInfo], namespace: str) -> str:
    """A module with a class for each command."""
    ordered = sorted(commands, key=lambda each: each.name)
    module = _Module({class_name(each.name) for each in ordered})
    found = [(each, module.names_for(each.schema, each.name), module.names_for(each.reply or {}, each.name)) for each in ordered]
    body = [*module.models(), *(_command(each, names, replies) for each, names, replies in found)]
    text = "\n\n".join(body)
    exported = sorted({*(class_name(each.name) for each in ordered), *module.class_names()})
    head = [
        f'"""Commands of the namespace {namespace}, for callers.',
        "",
        "Written by `command-bus generate`; do not edit, write it anew.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *_imports(text),
        "",
        f"__all__ = {json.dumps(exported)}",
        "",
    ]
    helper = [_DEFAULT] if "_default(" in text else []
    return "\n".join([*head, *helper, text, ""])


class _Module:
    """The models that commands and replies refer to, each under one name.

    Args:
        taken: Names of the commands' classes.
    """

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._known: dict[tuple[str, str], str] = {}
        self._schemas: dict[str, tuple[Schema, dict[str, str]]] = {}

    def names_for(self, schema: Schema, owner: str) -> dict[str, str]:
        """What the definitions of a schema are called: by their own name, or with the owner's if another has that."""
        definitions: Mapping[str, Schema] = schema.get("$defs", {})
        names: dict[str, str] = {}
        fresh: list[str] = []
        for key, each in sorted(definitions.items()):
            identity = (key, json.dumps([each, {name: definitions.get(name) for name in references_of(each)}], sort_keys=True))
            if identity not in self._known:
                plain = class_name(str(each.get("title", key)))
                choices = [plain, class_name(f"{owner} {plain}"), *(class_name(f"{owner} {plain} {n}") for n in range(2, 100))]
                self._known[identity] = next(name for name in choices if name not in self._taken)
                self._taken.add(self._known[identity])
                fresh.append(key)
            names[key] = self._known[identity]
        for key in fresh:
            self._schemas[names[key]] = (definitions[key], names)
        return names

    def class_names(self) -> list[str]:
        """Of all models."""
        return list(self._schemas)

    def models(self) -> list[str]:
        """Their source, each after those that it needs."""
        done: dict[str, str] = {}
        under_way: set[str] = set()

        def visit(name: str) -> None:
            if name in done or name in under_way:
                return
            under_way.add(name)
            schema, names = self._schemas[name]
            for key in references_of(schema):
                visit(names[key])
            done[name] = _model(name, schema, names)

        for name in sorted(self._schemas):
            visit(name)
        return list(done.values())


def _model(name: str, schema: Schema, names: Mapping[str, str]) -> str:
    if "enum" in schema or "const" in schema:
        lines = [f"class {name}(Enum):", *_doc(schema), *(f"    {member} = {value!r}" for member, value in members_of(schema))]
        return "\n".join([*lines, ""])
    if schema.get("type") != "object":
        return f"{name} = {type_of(schema, names)}\n"
    lines = [f"class {name}(BaseModel):", *_doc(schema)]
    if schema.get("additionalProperties") is False:
        lines += ['    model_config = ConfigDict(extra="forbid")', ""]
    fields = _fields(schema, names, None)
    return "\n".join([*lines, *fields, *([] if fields or len(lines) > 1 else ["    pass"]), ""])


def _command(command: CommandInfo, names: Mapping[str, str], replies: Mapping[str, str]) -> str:
    name = class_name(command.name)
    reply = "Any" if command.reply is None else type_of(command.reply, replies)
    arguments = [f"{'Query' if command.kind == 'query' else 'Command'}[{reply}]"]
    if command.entity is not None:
        arguments.append(f"entity={command.entity!r}")
    if name != command.name:
        arguments.append(f"name={command.name!r}")
    if command.delivery != "at_least_once":
        arguments.append(f"delivery={command.delivery!r}")
    lines = [f"class {name}({', '.join(arguments)}):", *_doc(command.schema)]
    fields = _fields(command.schema, names, command.key)
    return "\n".join([*lines, *fields, *([] if fields or len(lines) > 1 else ["    pass"]), ""])


def _fields(schema: Schema, names: Mapping[str, str], key: str | None) -> list[str]:
    required = schema.get("required", ())
    lines: list[str] = []
    for field, each in schema.get("properties", {}).items():
        kind = "EntityId" if field == key else type_of(each, names)
        default = None if field in required else default_of(each, kind)
        lines.append(f"    {field}: {kind}{'' if default is None else f' = {default}'}")
    return lines


def _doc(schema: Schema) -> list[str]:
    text = schema.get("description")
    if not text:
        return []
    lines = str(text).replace("\\", "\\\\").replace('"""', "'''").splitlines()
    return (
        [f'    """{lines[0]}', *(f"    {line}".rstrip() for line in lines[1:]), '    """', ""]
        if len(lines) > 1
        else [f'    """{lines[0]}"""', ""]
    )


def _imports(text: str) -> list[str]:
    """What the source needs, as an import sorter would write it."""
    if "_default(" in text:
        text += " Any TypeAdapter"

    def used(*names: str) -> list[str]:
        return [name for name in names if re.search(rf"\b{name}\b", text)]

    lines = ["import datetime as dt"] if "dt." in text else []
    standard = {
        "decimal": used("Decimal"),
        "enum": used("Enum"),
        "typing": used("Annotated", "Any", "Literal"),
        "uuid": used("UUID"),
    }
    lines += [f"from {module} import {', '.join(names)}" for module, names in standard.items() if names]
    foreign = used("BaseModel", "ConfigDict", "Field", "TypeAdapter")
    lines += ["", f"from pydantic import {', '.join(foreign)}"] if foreign else []
    return [*lines, "", f"from command_bus import {', '.join(used('Command', 'EntityId', 'Query'))}"]
