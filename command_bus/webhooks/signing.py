"""The signature of a delivery, by Standard Webhooks (standardwebhooks.com): HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import digest
from typing import Final

from command_bus.errors import InvalidSettings

_PREFIX: Final = "whsec_"
_ENVIRONMENT: Final = "env:"
_SHORTEST, _LONGEST = 24, 64
"""Bytes of a key, as the standard has them."""


def new_secret() -> str:
    """Return a new secret of 32 random bytes, as the receiver's library takes it: `whsec_…`."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def checked_secret(secret: str) -> str:
    """Return a secret that can sign: `whsec_` and base64, or `env:NAME`, which names a variable that holds one.

    Raises:
        InvalidSettings: It is neither. The message does not show it.
    """
    if isinstance(secret, str) and secret.startswith(_ENVIRONMENT):
        if not secret.removeprefix(_ENVIRONMENT).isidentifier():
            raise InvalidSettings("secret: 'env:' and the name of a variable, as in 'env:CRM_SECRET'")
        return secret
    _key(secret)
    return secret


def signed_headers(
    secrets: Sequence[str], message_id: str, timestamp: int, body: bytes, *, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the headers that a receiver verifies; each secret signs, so that one can be replaced while receivers know the old one.

    Args:
        secrets: Each as `checked_secret` takes it.
        message_id: Id of the delivery, the same at each attempt: receivers drop what they have had.
        timestamp: Seconds since the epoch: receivers refuse old ones, which somebody may have recorded.
        body: As it is sent.
        environment: The place where variables are looked up.

    Raises:
        InvalidSettings: A variable is not set, or holds no secret.
    """
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    signatures = [base64.b64encode(digest(_key(_value(each, environment)), signed, sha256)).decode() for each in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


def _value(secret: str, environment: Mapping[str, str]) -> str:
    if not secret.startswith(_ENVIRONMENT):
        return secret
    name = secret.removeprefix(_ENVIRONMENT)
    if not (value := environment.get(name, "")):
        raise InvalidSettings(f"the secret of a webhook is in the variable {name}, which is not set in this worker")
    return value


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if secret.startswith(_PREFIX) else b""
    except (AttributeError, ValueError, binascii.Error):
        key = b""
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise InvalidSettings(
            f"secret: '{_PREFIX}' and {_SHORTEST} to {_LONGEST} bytes as base64, which `new_secret()` makes, or 'env:NAME'"
        )
    return key
