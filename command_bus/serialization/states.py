"""The stored form of an entity's state: MessagePack `[1, place, version, flags, fence, ms, payload]`, and perhaps a signature.

Of signed states the place is the mailbox, so that none can be moved to another entity; else it is nil. The fence is that of the command which
wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from command_bus.errors import BadResult, BadState, InvalidCommand, PayloadTooLarge
from command_bus.messages.state import EntityState, HeldState
from command_bus.messages.upcasting import upcast
from command_bus.serialization.envelope import signed_array
from command_bus.serialization.limits import PayloadLimits, Undecodable, compressed, expanded, reading_limits
from command_bus.serialization.models import codec_for, problems_of
from command_bus.serialization.native import Packer, unpackb
from command_bus.serialization.odd_values import stored_text
from command_bus.serialization.protection import Protection
from command_bus.settings import BusSettings

_FORM = 1
_PARTS = 7
_ENCRYPTED, _COMPRESSED = 1, 2
_TYPES: Final = (int, int, int, int, bytes)


class StoredState(NamedTuple):
    """A state as it is stored.

    Attributes:
        version: Number of the form that its fields have.
        fence: That of the command which wrote it.
        changed_ms: When it was written, by the server's clock.
        payload: Its fields, packed, in clear text; empty: it is deleted.
    """

    version: int
    fence: int
    changed_ms: int
    payload: bytes


class StateCodec:
    """Packs and reads the states of one bus.

    Args:
        settings: Limits.
        protection: Signs and encrypts, or None.
    """

    def __init__(self, settings: BusSettings, protection: Protection | None) -> None:
        self._most = settings.max_state
        self._above = settings.compress_above
        limits = reading_limits(settings)
        self._limits = replace(limits, max_bytes=max(limits.max_bytes, self._most))
        self._writing = replace(limits, max_bytes=self._most)
        self._protection = protection
        self._signatures = None if protection is None else protection.states
        self._sign = None if self._signatures is None else self._signatures.sign
        self._pack = Packer(buf_size=512).pack
        self._cipher = None if protection is None else protection.cipher

    def held(self, kind: type[EntityState], mailbox: str, known: StoredState | bytes, now_ms: int) -> HeldState:
        """Return the state of an entity for its handler, of what is stored; its defaults if nothing is, or it is kept no longer.

        Raises:
            BadState: What is stored cannot be read or verified, or is of a later version.
        """
        stored = self.read(mailbox, known) if type(known) is bytes and known else known
        if isinstance(stored, StoredState) and stored.payload and is_kept(kind, stored, now_ms):
            value = self.value(kind, stored)
            is_as_stored = stored.version == kind.spec().version
            return HeldState(value, stored.payload if is_as_stored else self.packed(value, self._limits), is_stored=True)
        try:
            before = self.packed(kind(), self._limits)
            value = codec_for(kind).decode(before, self._limits)  # a default that can be changed in place is not shared
        except BadState:
            raise
        except (Exception, SystemExit) as error:  # a worker must not stop for what a default raises
            raise BadState(f"{kind.__name__}: its defaults cannot be made: {_reason(error)}") from error
        return HeldState(value, before, is_stored=isinstance(stored, StoredState) and bool(stored.payload))

    def value(self, kind: type[EntityState], stored: StoredState) -> Any:
        """Return what is stored as an instance of a class.

        Raises:
            BadState: It does not match the class, or is of a later version.
        """
        spec, codec, version = kind.spec(), codec_for(kind), stored.version
        if version > spec.version:
            raise BadState(f"{spec.name}: stored as version {version}, and the class here has version {spec.version}")
        try:
            if version == spec.version:
                return codec.decode(stored.payload, self._limits)
            return codec.decode(stored.payload, self._limits, lambda fields: upcast(kind, fields, version))
        except InvalidCommand as error:
            raise BadState(error.message) from None

    def packed(self, value: EntityState, limits: PayloadLimits | None = None) -> bytes:
        """Return the fields of a state, packed; by default it may not be larger than `max_state`.

        Raises:
            BadState: One cannot be stored, or would not come back as it is, or all are larger than `max_state`.
        """
        try:
            return codec_for(type(value)).encode(value, limits or self._writing)
        except PayloadTooLarge as error:
            raise BadState(f"{error.message}: the limit is the setting max_state") from None
        except InvalidCommand as error:
            raise BadState(error.message) from None

    def changed(self, held: HeldState, fence: int, now_ms: int) -> StoredState | None:
        """Return what is to be stored of a state after its handler, without a payload if it is to be deleted; None if it is as it was.

        Raises:
            BadState: As `packed`.
        """
        version = held.value.spec().version
        if held.is_void:
            return None
        if held.is_deleted:
            return StoredState(version, fence, now_ms, b"") if held.is_stored else None
        payload = self.packed(held.value, self._limits)
        if payload == held.before:
            return None
        if len(payload) > self._most:
            raise BadState(
                f"{held.value.spec().name}: {len(payload):,} bytes packed, the setting max_state allows {self._most:,}"
            )
        return StoredState(version, fence, now_ms, payload)

    def pack(self, mailbox: str, state: StoredState) -> bytes:
        """Return the stored form of a state; empty for one without a payload.

        Raises:
            BadState: The cipher failed.
        """
        payload, flags = state.payload, 0
        if not payload:
            return b""
        if self._above is not None and (smaller := compressed(payload, self._above)) is not None:
            payload, flags = smaller, _COMPRESSED
        if self._cipher is not None and self._protection is not None:
            try:
                payload, flags = self._protection.sealed(mailbox, "", "state", payload), flags | _ENCRYPTED
            except BadResult as error:
                raise BadState(error.message) from None
        place = None if self._sign is None else mailbox
        data: bytes = self._pack((_FORM, place, state.version, flags, state.fence, state.changed_ms, payload))
        return data if self._sign is None else signed_array(data, self._sign)

    def read(self, mailbox: str, data: bytes) -> StoredState:
        """Return what is stored.

        Raises:
            BadState: It cannot be read or verified.
        """
        try:
            parts: list[Any] = unpackb(data, max_array_len=_PARTS + 1)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - msgpack raises many types on bad bytes
            parts = []
        if type(parts) is not list or parts[:1] != [_FORM] or not _PARTS <= len(parts) <= _PARTS + 1:
            raise BadState("it is of a later release, or not what a bus has stored")
        _, place, version, flags, fence, changed_ms, payload, *signature = parts
        if tuple(map(type, parts[2:_PARTS])) != _TYPES:
            raise BadState("it is not what a bus has stored")
        if self._signatures is not None:
            fault = self._signatures.fault(data, signature[0] if signature else None)
            if fault is None and signature and place != mailbox:
                fault = "it was signed for another entity"
            if fault is not None:
                raise BadState(f"bad signature: {fault}")
        return StoredState(version, fence, changed_ms, self._clear(mailbox, payload, flags))

    def _clear(self, mailbox: str, payload: bytes, flags: int) -> bytes:
        try:
            if flags & _ENCRYPTED:
                if self._protection is None:
                    raise BadState("it is encrypted, and this bus has no cipher")
                payload = self._protection.unsealed(mailbox, "", "state", payload)
            return expanded(payload, self._limits.max_bytes) if flags & _COMPRESSED else payload
        except (BadResult, Undecodable) as error:
            raise BadState(str(error)) from None

    def expiry(self, kinds: Iterable[type[EntityState] | None]) -> Callable[[bytes, bytes, int], bool] | None:
        """Return what says of a mailbox, what is stored there and a time whether it is kept no longer; None if all is kept for ever."""
        ending = {kind.spec().entity: kind for kind in kinds if kind is not None and kind.spec().keep_ms is not None}

        def is_over(name: bytes, data: bytes, now_ms: int) -> bool:
            mailbox = stored_text(name)
            kind = ending.get(mailbox.partition(":")[0])
            try:
                return kind is not None and not is_kept(kind, self.read(mailbox, data), now_ms)
            except BadState:
                return False

        return is_over if ending else None


def is_kept(kind: type[EntityState], stored: StoredState, now_ms: int) -> bool:
    """Return whether a state is still kept at a time."""
    keep_ms = kind.spec().keep_ms
    return keep_ms is None or stored.changed_ms + keep_ms >= now_ms


def _reason(error: Exception | SystemExit) -> str:
    """Return why values do not match a class; of another error its type."""
    return problems_of(error) if isinstance(error, ValidationError) else type(error).__qualname__
