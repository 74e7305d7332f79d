"""Signed texts that expire: sessions, tokens of forms, and what is said after an act. The server keeps nothing of them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any

from command_bus.clock import wall_ms
from command_bus.errors import InvalidSettings

_SHORTEST = 32
_LONGEST = 4096


class Signer:
    """Signs and reads texts.

    Args:
        secret: At least 32 bytes; None: a random one, so that a restart ends all sessions.

    Raises:
        InvalidSettings: The secret is too short.
    """

    def __init__(self, secret: str | bytes | None = None) -> None:
        raw = secrets.token_bytes(_SHORTEST) if secret is None else secret.encode() if isinstance(secret, str) else secret
        if len(raw) < _SHORTEST:
            raise InvalidSettings(f"secret: {len(raw)} bytes, at least {_SHORTEST}: take secrets.token_urlsafe(32)")
        self._key = hashlib.sha256(b"command_bus dashboard\0" + raw).digest()

    def sign(self, kind: str, facts: Mapping[str, Any], seconds: float) -> str:
        """Return a text that holds facts for some time, and counts as this kind only."""
        body = _packed({**facts, "until": wall_ms() + int(seconds * 1000)})
        return f"{body}.{self._signature(kind, body)}"

    def read(self, kind: str, text: str | None) -> dict[str, Any] | None:
        """Return the facts of a text; None if it is not one of this kind that was signed here, or its time is over."""
        if text is None or len(text) > _LONGEST or not text.isascii():
            return None
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(self._signature(kind, body), signature):
            return None
        facts = _unpacked(body)
        return facts if facts is not None and facts.get("until", 0) > wall_ms() else None

    def _signature(self, kind: str, body: str) -> str:
        return _text(hmac.digest(self._key, f"{kind}\0{body}".encode(), "sha256"))


def _packed(facts: Mapping[str, Any]) -> str:
    return _text(json.dumps(facts, separators=(",", ":")).encode())


def _unpacked(body: str) -> dict[str, Any] | None:
    try:
        facts = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, binascii.Error):
        return None
    return facts if isinstance(facts, dict) else None


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
