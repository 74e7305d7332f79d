"""The file of `schema export`: the commands as workers would announce them, each with values that its class has taken and packed.

Values are those of the wire, in MessagePack and base64, so that what is tried later is what an old process sends.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from command_bus.bus import CommandBus
from command_bus.cli.schemas.examples import examples_of
from command_bus.errors import InvalidSettings
from command_bus.messages.message import Message
from command_bus.serialization.announcements import CommandInfo, read_description
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.worker.worker_bus import announced_kinds, describe_message

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
    """

    info: CommandInfo | None
    mailbox: str | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    kind: type[Message[Any]] | None = None


def exported(bus: CommandBus) -> dict[str, Any]:
    """Return the document of an application."""
    commands: dict[str, Any] = {}
    for name, kind in sorted(announced_kinds(bus.registry).items()):
        record = describe_message(kind, bus.settings)
        if record is None:
            commands[name] = None
            continue
        facts = {**json.loads(record), "mailbox": _mailbox(bus, kind)}
        if found := examples_of(kind, facts["schema"]):
            example, values = found
            facts["example"] = _packed(example)
            facts["values"] = {each: [_packed(value) for value in several] for each, several in values.items()}
        commands[name] = facts
    return {"format": FORMAT, "commands": commands}


def described(bus: CommandBus) -> dict[str, Described]:
    """Return the commands of an application, with their classes."""
    found: dict[str, Described] = {}
    for name, kind in announced_kinds(bus.registry).items():
        record = describe_message(kind, bus.settings)
        info = None if record is None else read_description(name, record, ())
        found[name] = Described(info, _mailbox(bus, kind), kind=kind)
    return found


def announced(infos: Iterable[CommandInfo]) -> dict[str, Described]:
    """Return the commands that workers have announced."""
    return {each.name: Described(each) for each in infos}


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
    return Described(info, facts.get("mailbox"), example, values)


def _mailbox(bus: CommandBus, kind: type[Message[Any]]) -> str | None:
    entity = kind.spec().entity
    policy = None if entity is None else bus.settings.entities.get(entity)
    return str(policy.mailbox) if policy is not None else None if entity is None else "per_entity"


def _packed(value: Any) -> str:
    return base64.b64encode(pack(value)).decode()


def _unpacked(text: Any) -> Any:
    return unpack(base64.b64decode(text, validate=True))
