"""A dead letter's command with another payload: what is replayed when an operator corrects it.

All else of the command stays: its id, its entity, its caller. It is encrypted and signed again, so the operator's bus needs the keys. The
header `edited_letter` says which letter was edited, in the command's context and in its next dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.message import Message, canonical_entity_id
from command_bus.serialization.announcements import CommandInfo, read_description
from command_bus.serialization.envelope import pack_envelope
from command_bus.serialization.json_fields import JsonFields
from command_bus.serialization.limits import Limits
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import pack
from command_bus.serialization.version_option import with_version
from command_bus.serialization.wire_envelope import ENCRYPTED, WireEnvelope
from command_bus.session import Session

EDITED = "edited_letter"
"""The header of a command that was edited: the id of its dead letter."""


async def edited_envelope(
    session: Session, letter_id: str, envelope: WireEnvelope, payload: Mapping[str, Any] | Message[Any]
) -> bytes:
    """Return the packed envelope of a command with another payload.

    Raises:
        InvalidCommand: The payload is not one of this command, or of another entity.
        InvalidSettings: This bus cannot sign or encrypt as the command was.
    """
    limits = Limits(max_bytes=session.settings.max_payload, max_nesting=session.settings.max_nesting)
    if isinstance(payload, Message):
        packed, entity_id, version = _of_class(envelope, payload, limits)
    else:
        packed, entity_id, version = await _of_mapping(session, envelope, payload, limits)
    if entity_id != envelope.entity_id:
        raise InvalidCommand(
            f"{envelope.name}: the payload is of entity {entity_id!r}, the letter of {envelope.entity_id!r}: a replay moves no command to "
            "another entity. Discard the letter and dispatch a new command"
        )
    headers = {**(envelope.headers or {}), EDITED: letter_id}
    options = with_version(envelope.options, version)
    return _protected(session, replace(envelope, payload=packed, headers=headers, options=options, signature=None))


def _protected(session: Session, envelope: WireEnvelope) -> bytes:
    """Return the envelope's bytes, encrypted and signed as the bus does that.

    Raises:
        InvalidSettings: It was encrypted, and this bus does not do that.
    """
    protection = session.protection
    if envelope.flags & ENCRYPTED and (protection is None or protection.cipher is None):
        raise InvalidSettings("the command was encrypted: edit it with a bus that has the cipher, CommandBus(cipher=…)")
    envelope = replace(envelope, flags=envelope.flags & ~ENCRYPTED)
    return pack_envelope(envelope) if protection is None else protection.pack(envelope)


def _of_class(envelope: WireEnvelope, message: Message[Any], limits: Limits) -> tuple[bytes, str | None, int]:
    spec = type(message).spec()
    if spec.name != envelope.name:
        raise InvalidCommand(f"the letter is of {envelope.name!r}, and the payload is a {spec.name!r}")
    entity_id = None if spec.key is None else canonical_entity_id(getattr(message, spec.key, None))
    return codec_for(type(message)).encode(message, limits), entity_id, spec.version


async def _of_mapping(
    session: Session, envelope: WireEnvelope, payload: Mapping[str, Any], limits: Limits
) -> tuple[bytes, str | None, int]:
    if not isinstance(payload, Mapping):
        raise InvalidCommand(f"the payload of {envelope.name!r} is a mapping of field names to values")
    info = await _announced(session, envelope.name)
    fields = JsonFields(info.schema).read(envelope.name, dict(payload))
    entity_id = None if info.key is None else canonical_entity_id(fields.get(info.key))
    return pack(fields, limits), entity_id, info.version


async def _announced(session: Session, name: str) -> CommandInfo:
    """Return the announcement of a command.

    Raises:
        InvalidCommand: There is none.
    """
    records = await session.transport.announcements.commands()
    info = read_description(name, records[name], ()) if name in records else None
    if info is None:
        raise InvalidCommand(f"no worker has announced {name!r}, so its fields cannot be checked: give an instance of its class")
    return info
