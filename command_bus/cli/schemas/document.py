"""The file of `schema export`: the commands as workers would announce them, each with values that its class has taken and packed.

Values are those of the wire, in MessagePack and base64, so that what is tried later is what an old process sends.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from command_bus.bus import CommandBus
from command_bus.cli.schemas.examples import examples_of
from command_bus.errors import InvalidSettings
from command_bus.messages.message import Message
from command_bus.messages.state import EntityState
from command_bus.serialization.announcements import CommandInfo, read_description
from command_bus.serialization.json_schemas import fields_schema
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.worker.worker_bus import announced_kinds, describe_message

STATE: Final = "state"
"""The kind of the state of an entity, and the beginning of its name, before an @ and the type of the entity."""
FORMAT: Final = 1
"""The number of the file's form. A later release reads earlier ones."""


@dataclass(frozen=True, slots=True)
class Described:
    """A command, as a file, an application or the workers describe it.

    Attributes:
        info: What workers announce; None if JSON Schema lacks the type of a field.
        mailbox: The policy of its mailboxes; None if nothing is known of it.
        example: Fields that its class has taken, as the wire carries them; empty without any.
        values: Other values of single fields, which it has taken in place of those.
        kind: Its class, if that is here.
        takes_state: Whether its handler takes the state of its entity.
    """

    info: CommandInfo | None
    mailbox: str | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    kind: type[Message[Any] | EntityState] | None = None
    takes_state: bool = False


def exported(bus: CommandBus) -> dict[str, Any]:
    """Return the document of an application."""
    commands: dict[str, Any] = {}
    for name, kind in sorted(_kinds(bus).items()):
        commands[name] = facts = _facts(bus, kind)
        if facts is not None and (found := examples_of(kind, facts["schema"])):
            example, values = found
            facts["example"] = _packed(example)
            facts["values"] = {each: [_packed(value) for value in several] for each, several in values.items()}
    return {"format": FORMAT, "commands": commands}


def described(bus: CommandBus) -> dict[str, Described]:
    """Return the commands and states of an application, with their classes."""
    kinds = _kinds(bus)
    found = read_document(json.dumps({"format": FORMAT, "commands": {name: _facts(bus, kind) for name, kind in kinds.items()}}))
    return {name: replace(each, kind=kinds[name]) for name, each in found.items()}


def _kinds(bus: CommandBus) -> dict[str, Any]:
    """Return the classes of an application's commands, events and states, by their names in the document."""
    states = {f"{STATE}@{each.state.spec().entity}": each.state for each in bus.registry if each.state}
    return {**announced_kinds(bus.registry), **states}


def _facts(bus: CommandBus, kind: Any) -> dict[str, Any] | None:
    """Return the description of a class; None if JSON Schema lacks the type of a field."""
    spec = kind.spec()
    if issubclass(kind, EntityState):
        schema, facts = fields_schema(kind), {"entity": spec.entity, "key": None, "kind": STATE, "delivery": ""}
        return (
            None if schema is None else {**facts, "schema": schema, "version": spec.version, "policy": {"keep_ms": spec.keep_ms}}
        )
    record = describe_message(kind, bus.settings)
    takes = [each.spec.name for each in bus.registry if each.state]
    return None if record is None else {**json.loads(record), "mailbox": _mailbox(bus, spec.entity), STATE: spec.name in takes}


def announced(old: Mapping[str, Described], infos: Iterable[CommandInfo]) -> dict[str, Described]:
    """Return the commands that workers have announced. States they do not announce: they are as in the old document."""
    return {name: each for name, each in old.items() if name.startswith(f"{STATE}@")} | {
        each.name: Described(each) for each in infos
    }


def read_document(text: str) -> dict[str, Described]:
    """Return the commands of a document.

    Raises:
        InvalidSettings: It is none, or of a later form.
    """
    try:
        found = json.loads(text)
        form, commands = found["format"], dict(found["commands"])
    except (ValueError, TypeError, LookupError, RecursionError):
        raise InvalidSettings("it is no document of `schema export`") from None
    if form != FORMAT:
        raise InvalidSettings(
            f"it has form {form!r}, and this release reads {FORMAT}: write it again, or use the release that wrote it"
        )
    return {name: Described(None) if facts is None else _read(name, facts) for name, facts in commands.items()}


def _read(name: str, facts: Any) -> Described:
    info = read_description(name, json.dumps(facts).encode(), ())
    if info is None:
        raise InvalidSettings(f"{name} is no description of a command")
    try:
        example = _unpacked(facts["example"]) if "example" in facts else {}
        values = {each: tuple(map(_unpacked, several)) for each, several in facts.get("values", {}).items()}
    except (Undecodable, binascii.Error, TypeError, AttributeError):
        raise InvalidSettings(f"{name} has values that cannot be read") from None
    return Described(info, facts.get("mailbox"), example, values, takes_state=facts.get(STATE) is True)


def _mailbox(bus: CommandBus, entity: str | None) -> str | None:
    return None if entity is None else str(bus.settings.entity(entity).mailbox)


def _packed(value: Any) -> str:
    return base64.b64encode(pack(value)).decode()


def _unpacked(text: Any) -> Any:
    return unpack(base64.b64decode(text, validate=True))
