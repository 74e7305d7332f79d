"""Optional protection of envelopes: a signature over their bytes, and a hook that encrypts payloads.

Any client that may write to Redis can put a command into a mailbox. With signing keys a worker runs only commands that a holder of a key
has packed, for the entity in whose mailbox they are: the signature (HMAC-SHA256) covers the namespace and every byte before it, and the
worker compares the entity with the mailbox. It does not keep a client from putting the same command into the same mailbox again: the bytes
are the same, so the handler must recognize it by the command id.

The signature is the envelope's last element, after all defaults: the signed bytes are then a prefix of the received ones, and nothing is
packed again for the check. Values are never compared after parsing: a map with a key twice parses, and signs, only one way.

What is signed and encrypted is so for one purpose: a command is no template of a schedule, of which workers make and sign further ones.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol, Self

from command_bus.errors import BadResult, InvalidCommand
from command_bus.randomness import token
from command_bus.serialization.envelope import ENCRYPTED, Sign, WireEnvelope, pack_envelope, shrunk, unpack_envelope
from command_bus.serialization.limits import DEFAULT_LIMITS, PayloadLimits, Undecodable, expanded, reading_limits
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.native import Packer
from command_bus.serialization.reply import Completed
from command_bus.settings import BusSettings

_MAC: Final = 32
_COMMAND, _TEMPLATE, _STATE = "command", "schedule", "state"
_SIGNED_AS: Final = {_COMMAND: b"command_bus envelope\0", _TEMPLATE: b"command_bus schedule\0", _STATE: b"command_bus state\0"}
_KEY: Final = 32


class PayloadCipher(Protocol):
    """Encrypts payloads and replies; pass one to `CommandBus(cipher=…)`.

    Must be authenticated encryption (AES-GCM, ChaCha20-Poly1305): `decrypt` raises if data or `aad` are not what was encrypted. It is
    called on the event loop, for one command at a time, and may be called from several threads.
    """

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        """Return the ciphertext of `data`, bound to `aad`."""
        ...

    def decrypt(self, data: bytes, aad: bytes) -> bytes:
        """Return the clear text. Whatever this raises, the command is dead-lettered as invalid."""
        ...


class Signatures:
    """Signs envelopes with the first of its keys, verifies with all.

    Args:
        namespace: Bound into every signature: what was signed for one is nothing in another.
        keys: Secret by key id.
        required: Whether an envelope without a signature is a fault.
        purpose: What it signs: commands, templates of schedules, or states of entities.
    """

    def __init__(self, namespace: str, keys: Mapping[str, bytes], *, required: bool, purpose: str = _COMMAND) -> None:
        self._prefix = _SIGNED_AS[purpose] + namespace.encode() + b"\0"
        self._keys = {key_id.encode(): secret for key_id, secret in keys.items()}
        self._first = next(iter(self._keys), None)
        self.required = required

    def __repr__(self) -> str:
        return f"<Signatures with {len(self._keys)} keys>"

    @property
    def sign(self) -> Sign | None:
        """Gives the signature of bytes; None without a key."""
        return None if self._first is None else self._sign

    def _sign(self, data: bytes) -> bytes:
        key_id = self._first or b""
        return hmac.digest(self._keys[key_id], self._prefix + data, "sha256") + key_id

    def fault(self, data: bytes, signature: bytes | None) -> str | None:
        """Return what is wrong with the signature of an envelope's bytes, or None."""
        if signature is None:
            return "it is not signed" if self.required else None
        mac, key_id = signature[:_MAC], signature[_MAC:]
        secret = self._keys.get(key_id)
        if secret is None:
            return "it is signed with a key that this worker does not have"
        end = len(data) - len(signature) - 2
        if data[end : end + 2] != bytes((0xC4, len(signature))):
            return "its signature is not where it belongs"
        if not hmac.compare_digest(mac, hmac.digest(secret, self._prefix + data[:end], "sha256")):
            return "its bytes are not what was signed"
        return None


class Protection:
    """Signing and encryption of one bus. `of` returns None if the bus does neither.

    Args:
        namespace: What the bus is called on the server.
        signatures: Its keys, or None.
        cipher: Its cipher, or None.
        most: Bytes of a payload or reply that is expanded.
        templates: The same for templates of schedules; None: this is of templates.

    Attributes:
        signatures: As they were given.
        cipher: As it was given.
        templates: As they were given.
        states: Signs the states of entities, or None.
        digest_key: Key of the digests of encrypted values; empty until it is agreed on: then there are none.
    """

    def __init__(
        self,
        namespace: str,
        signatures: Signatures | None,
        cipher: PayloadCipher | None,
        *,
        most: int = DEFAULT_LIMITS.max_bytes,
        templates: Protection | None = None,
    ) -> None:
        self.templates = templates or self
        self._purpose = _COMMAND if templates else _TEMPLATE
        self.digest_key = b""
        self._most = most
        self._namespace = namespace
        self.signatures = signatures
        self.cipher = cipher
        self.states: Signatures | None = None

    @classmethod
    def of(cls, settings: BusSettings, cipher: PayloadCipher | None = None) -> Self | None:
        """Return the protection that settings and arguments name, or None."""
        keys = {key_id: secret.get_secret_value().encode() for key_id, secret in settings.signing_keys.items()}
        if not keys and cipher is None:
            return None
        found, most, namespace = None, reading_limits(settings).max_bytes, settings.namespace
        for purpose in (_TEMPLATE, _COMMAND):
            signatures = Signatures(namespace, keys, required=settings.require_signatures, purpose=purpose) if keys else None
            found = cls(namespace, signatures, cipher, most=most, templates=found)
        if found is not None and keys:
            found.states = Signatures(namespace, keys, required=settings.require_signatures, purpose=_STATE)
        return found

    @property
    def sign(self) -> Sign | None:
        """Gives the signature of bytes; None without keys."""
        return None if self.signatures is None else self.signatures.sign

    def pack(self, envelope: WireEnvelope) -> bytes:
        """Return the envelope's bytes, compressed, encrypted and signed, in this order, as far as the envelope and this bus ask for it.

        Raises:
            InvalidCommand: As `pack_envelope`, or the cipher failed.
        """
        if self.cipher is not None:
            envelope = shrunk(envelope)
            try:
                payload = self.cipher.encrypt(envelope.payload, self._aad(self._purpose, *_names(envelope)))
            except Exception as error:  # noqa: BLE001 - a cipher raises what it likes
                raise InvalidCommand(f"the cipher failed to encrypt: {type(error).__name__}") from None
            envelope = replace(envelope, payload=bytes(payload), flags=envelope.flags | ENCRYPTED)
        return pack_envelope(envelope, self.sign)

    def payload(self, envelope: WireEnvelope) -> bytes:
        """Return the packed payload in clear text, expanded.

        Raises:
            InvalidCommand: It cannot be decrypted, or is larger than the limit. The cipher's own text is left out: it may contain data.
        """
        if not envelope.flags & ENCRYPTED:
            return envelope.payload
        if self.cipher is None:
            raise InvalidCommand("its payload is encrypted, and this bus has no cipher")
        try:
            clear = bytes(self.cipher.decrypt(envelope.payload, self._aad(self._purpose, *_names(envelope))))
        except Exception as error:  # noqa: BLE001 - a cipher raises what it likes
            raise InvalidCommand(f"its payload cannot be decrypted: {type(error).__name__}") from None
        try:
            return expanded(clear, self._most) if envelope.compressed else clear
        except Undecodable as error:
            raise InvalidCommand(f"its payload is {error.reason}") from None

    def reply(self, envelope: WireEnvelope, outcome: Completed) -> Completed:
        """Return the reply to a command: encrypted if the command was, since then its caller has the cipher."""
        if self.cipher is None or not envelope.flags & ENCRYPTED:
            return outcome
        names = (envelope.name, *envelope.first_entity)
        try:
            secret = bytes(self.cipher.encrypt(outcome.value, self._aad("reply", envelope.dispatched_id, *names)))
            return replace(outcome, value=secret, encrypted=names)
        except Exception as error:  # noqa: BLE001 - as above
            raise BadResult(f"the cipher failed to encrypt the reply: {type(error).__name__}") from None

    def result(self, command_id: str, outcome: Completed, of: Sequence[str | None] = ()) -> Completed:
        """Return a reply in clear text, expanded.

        Args:
            command_id: Id of its command.
            outcome: With the reply.
            of: Name of that command, or name and entity, as far as they are known.

        Raises:
            BadResult: It cannot be decrypted, or is larger than the limit, or it is that of another command.
        """
        if outcome.encrypted is None or self.cipher is None:
            return outcome
        if tuple(of) != outcome.encrypted[: len(of)]:
            raise BadResult("the reply is that of another command of this id: of another name or entity", command_id=command_id)
        try:
            clear = bytes(self.cipher.decrypt(outcome.value, self._aad("reply", command_id, *outcome.encrypted)))
        except Exception as error:  # noqa: BLE001 - as above
            raise BadResult(f"the reply cannot be decrypted: {type(error).__name__}", command_id=command_id) from None
        try:
            return Completed(expanded(clear, self._most) if outcome.compressed else clear)
        except Undecodable as error:
            raise BadResult(f"the reply is {error.reason}", command_id=command_id) from None

    def sealed(self, mailbox: str, command_id: str, name: str, data: bytes) -> bytes:
        """Return what a durable command in a mailbox stores under a name, encrypted.

        Raises:
            BadResult: The cipher failed.
        """
        if self.cipher is None:
            raise BadResult("the command is encrypted, and this bus has no cipher", command_id=command_id)
        try:
            return bytes(self.cipher.encrypt(data, self._aad("stored", mailbox, command_id, name)))
        except Exception as error:  # noqa: BLE001 - as above
            raise BadResult(f"the cipher failed to encrypt {name}: {type(error).__name__}", command_id=command_id) from None

    def unsealed(self, mailbox: str, command_id: str, name: str, data: bytes) -> bytes:
        """Return what a durable command in a mailbox has stored under a name, in clear text.

        Raises:
            BadResult: It cannot be decrypted.
        """
        if self.cipher is None:
            raise BadResult("the command is encrypted, and this bus has no cipher", command_id=command_id)
        try:
            return bytes(self.cipher.decrypt(data, self._aad("stored", mailbox, command_id, name)))
        except Exception as error:  # noqa: BLE001 - as above
            raise BadResult(f"{name} cannot be decrypted: {type(error).__name__}", command_id=command_id) from None

    def new_digest_key(self) -> bytes | None:
        """Return a new key of digests, encrypted for the namespace; None where nothing is encrypted, or the cipher fails."""
        with suppress(Exception):  # as above
            return None if self.cipher is None else bytes(self.cipher.encrypt(token(_KEY), self._aad("digests")))
        return None

    def use_digest_key(self, sealed: bytes) -> None:
        """Use the key of digests that the namespace has, if this cipher can read it. Else digests are of names and entities alone."""
        with suppress(Exception):  # as above
            if self.cipher is not None:
                self.digest_key = bytes(self.cipher.decrypt(sealed, self._aad("digests")))

    def _aad(self, purpose: str, *place: str | None) -> bytes:
        """Return the data that a ciphertext is bound to, so that it cannot be used in another place."""
        data: bytes = Packer(buf_size=256).pack((purpose, self._namespace, *place))
        return data


def _names(envelope: WireEnvelope) -> tuple[str, str, str | None, str | None]:
    return envelope.command_id, envelope.name, envelope.entity_type, envelope.entity_id


def readable_payload(raw: bytes, limits: PayloadLimits, protection: Protection | None) -> dict[str, Any] | None:
    """Return the fields of a command, given its envelope; None if they cannot be read here."""
    try:
        envelope = unpack_envelope(raw, limits)
        if envelope.flags & ENCRYPTED and protection is None:
            return None
        payload = unpack(envelope.payload if protection is None else protection.payload(envelope), limits)
    except (Undecodable, InvalidCommand):
        return None
    return payload if isinstance(payload, dict) else None
