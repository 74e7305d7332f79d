"""The digest of an outgoing command: of its fields as values, in any order and from any release."""

from __future__ import annotations

from contextlib import suppress

from command_bus.messages.outgoing import OutgoingMessage
from command_bus.serialization.equality import NotPlain, digest
from command_bus.serialization.limits import Limits
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.version_option import version_in

__all__ = ["command_digest"]


def command_digest(out: OutgoingMessage, limits: Limits) -> bytes:
    """Return eight bytes by which a command is seen to be the same as another of its id (see `equality`)."""
    head = (out.name, out.entity_type, out.entity_id)
    with suppress(NotPlain):  # a serializer of the class makes data of it, or it nests deeper than Python's stack
        if out.command is not None:
            return digest(head, out.command)
    version = version_in(out.options)
    with suppress(NotPlain):
        return digest(head, unpack(out.payload, limits), version)
    return digest(head, out.payload, version)
