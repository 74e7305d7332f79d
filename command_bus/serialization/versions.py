"""Payloads of every version that a class knows, read into messages of the newest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from command_bus.messages.message import Message, MessageSpec
from command_bus.messages.upcasting import upcast
from command_bus.serialization.limits import Limits
from command_bus.serialization.models import codec_for
from command_bus.serialization.version_option import version_in


def newer_version(spec: MessageSpec, options: Mapping[str, Any] | None) -> str | None:
    """Return why a command is for newer workers than one with this class; None if it is not."""
    version = version_in(options)
    if version <= spec.version:
        return None
    return f"no worker handles version {version} of {spec.name!r}: this one has version {spec.version}"


def decoded(message_type: type[Message[Any]], payload: bytes, options: Mapping[str, Any] | None, limits: Limits) -> Message[Any]:
    """Return the message of a payload whose version is not newer than the class.

    Raises:
        InvalidCommand: The payload does not match the class, or an upcaster failed.
    """
    codec, version = codec_for(message_type), version_in(options)
    if version == message_type.spec().version:
        return codec.decode(payload, limits)
    return codec.decode(payload, limits, lambda fields: upcast(message_type, fields, version))
