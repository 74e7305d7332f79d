"""The digest of an outgoing command: of its fields as values, in any order and from any release."""

from __future__ import annotations

from contextlib import suppress

from command_bus.messages.outgoing import OutgoingMessage
from command_bus.serialization.equality import NotPlain, digest, digest_of_head
from command_bus.serialization.limits import Limits
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.protection import Protection
from command_bus.serialization.version_option import version_in


def command_digest(out: OutgoingMessage, limits: Limits, protection: Protection | None = None) -> bytes:
    """Return eight bytes by which a command is seen to be the same as another of its id (see `equality`).

    With a cipher they are of its fields only as far as there is a key: else a reader of the server could confirm a guess.
    """
    head, key = (out.name, out.entity_type, out.entity_id), b""
    if protection is not None and protection.cipher is not None:
        key = protection.digest_key
        if not key:
            return digest_of_head(head, version_in(out.options))
    with suppress(NotPlain):  # a serializer of the class makes data of it, or it nests deeper than Python's stack
        if out.command is not None:
            return digest(head, out.command, key=key)
    version = version_in(out.options)
    with suppress(NotPlain):
        return digest(head, unpack(out.payload, limits), version, key)
    return digest(head, out.payload, version, key)
