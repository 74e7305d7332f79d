"""A TypeScript module for the gateway: a type for each announced command and its reply, and a client on `fetch` without dependencies."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence

from command_bus.cli.codegen.typescript_types import comment, declarations, quoted, type_name
from command_bus.serialization.announcements import CommandInfo

_CLIENT = "client.ts"


def typescript_source(commands: Sequence[CommandInfo], namespace: str) -> str:
    """Return the module. The same commands give the same text."""
    names = _type_names(commands)
    parts = [_HEAD.format(namespace=quoted(namespace))]
    rows: list[str] = []
    for each in sorted(commands, key=lambda each: each.name):
        name = names[each.name]
        parts += declarations(name, each.schema)
        parts += declarations(f"{name}Reply", {} if each.reply is None else each.reply)
        kind = quoted("query" if each.kind == "query" else "command")
        rows.append(f"  {quoted(each.name)}: {{ fields: {name}; reply: {name}Reply; kind: {kind} }};\n")
    table = comment("All commands, by their names.") + f"export interface Commands {{\n{''.join(rows)}}}\n"
    client = importlib.resources.files("command_bus.cli.codegen").joinpath(_CLIENT).read_text(encoding="utf-8")
    return "\n".join([*parts, table, client])


def _type_names(commands: Sequence[CommandInfo]) -> dict[str, str]:
    """Return a name for the type of each command, which no other has."""
    found: dict[str, str] = {}
    taken = {f"{each}{end}" for each in _OWN for end in ("", "Reply")}
    for each in sorted(commands, key=lambda each: each.name):
        plain = name = type_name(each.name)
        number = 1
        while {name, f"{name}Reply"} & taken:
            number += 1
            name = f"{plain}{number}"
        taken |= {name, f"{name}Reply"}
        found[each.name] = name
    return found


_HEAD = """\
// Written by `command-bus generate --ts` from the commands of the namespace {namespace}: do not edit.
// It is for the gateway (`command-bus serve`).
"""
_OWN = (
    "Array", "AsyncGenerator", "BatchItem", "BatchOutcome", "BatchResult", "BusEvent", "CallOptions", "Client", "ClientOptions", "CommandName",
    "Commands", "Error", "Problem", "Progress", "Promise", "Receipt", "Record", "Response", "SendOptions", "Status", "TextDecoder", "any", "boolean",
    "never", "null", "number", "object", "string", "undefined", "unknown", "void",
)  # fmt: skip
"""Names that the client declares or uses."""
