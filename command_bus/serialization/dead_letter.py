"""The record that is kept beside the envelope of a dead-lettered command: why, when, where."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from command_bus.serialization.limits import PayloadLimits, Undecodable, capped, capped_tail
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.native import Packer

MAX_TRACEBACK = 16 * 1024
"""Bytes of a traceback; of a longer one the end is kept."""
_MAX_TEXT = 8 * 1024
_LIMITS = PayloadLimits(max_bytes=1024 * 1024, max_nesting=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord:
    """Record of a dead-lettered command, and why.

    On the wire a map by field name. Unknown keys are ignored, and missing or mistyped ones have their default, so that versions
    can differ and one bad record cannot spoil a listing.

    Attributes:
        reason: `failed`, `interrupted`, `no_handler`, `undecodable`, `invalid`, `unsupported_version`, `bad_signature` or `expired`.
        command_id: Empty if the envelope could not be read.
        name: The wire name; empty if the envelope could not be read.
        entity_type: None for an unordered command, or if unknown.
        entity_id: None for an unordered command, or if unknown.
        error_type: The exception's qualified name.
        error_message: Its text, without input values.
        traceback: Its frames, without locals; the last 16 KiB.
        attempts: How many times the command was started.
        accepted_ms: When it was accepted, in ms since the epoch; 0 if unknown, as for all times here.
        first_started_ms: When it was first started.
        failed_ms: When it was dead-lettered.
        worker: Name of the process that gave it up.
        headers: What its envelope had as headers.
    """

    reason: str
    command_id: str = ""
    name: str = ""
    entity_type: str | None = None
    entity_id: str | None = None
    error_type: str = ""
    error_message: str = ""
    traceback: str = ""
    attempts: int = 0
    accepted_ms: int = 0
    first_started_ms: int = 0
    failed_ms: int = 0
    worker: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])

    _numbers: ClassVar[frozenset[str]] = frozenset({"attempts", "accepted_ms", "first_started_ms", "failed_ms"})

    def pack(self) -> bytes:
        """Return the record as MessagePack; long texts are cut, lone surrogates escaped."""
        values: dict[str, Any] = {slot.name: self._packable(slot.name) for slot in fields(self)}
        data: bytes = Packer().pack(values)
        return data

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the record that was packed.

        Raises:
            Undecodable: It is no map.
        """
        found = unpack(data, _LIMITS)
        if type(found) is not dict:
            raise Undecodable("a dead-letter record that is no map")
        values: dict[Any, Any] = found
        known: dict[str, Any] = {
            slot.name: values[slot.name] for slot in fields(cls) if cls._fits(slot.name, values.get(slot.name))
        }
        known.setdefault("reason", "unknown")
        return cls(**known)

    def _packable(self, name: str) -> Any:
        value = getattr(self, name)
        if name == "traceback":
            return capped_tail(value, MAX_TRACEBACK)
        if name == "headers":
            return {capped(key, _MAX_TEXT): capped(text, _MAX_TEXT) for key, text in self.headers.items()}
        return capped(value, _MAX_TEXT) if isinstance(value, str) else value

    @classmethod
    def _fits(cls, name: str, value: Any) -> bool:
        if name == "headers":
            return type(value) is dict and all(type(part) is str for pair in value.items() for part in pair)
        return type(value) is (int if name in cls._numbers else str)
