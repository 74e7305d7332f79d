"""Hashes of tokens. A token has 256 random bits, so one round of SHA-256 is enough: no one can guess what it was made of."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets

from command_bus.errors import InvalidSettings

_LEAST = 20
_LONGEST = 512
_PREFIX = "sha256$"
_HASH = re.compile(r"sha256\$[A-Za-z0-9_-]{43}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What may stand behind `Bearer` (RFC 6750)."""


def new_token() -> str:
    """Return a token that did not exist before."""
    return f"cb_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """Return the hash of a token, for `Grant` and for a file of tokens.

    Raises:
        InvalidSettings: It is too short, too long, or has characters that no token may have.
    """
    if not isinstance(token, str) or not _LEAST <= len(token) <= _LONGEST or _TOKEN.fullmatch(token) is None:
        raise InvalidSettings(
            f"a token has {_LEAST} to {_LONGEST} of letters, digits and . _ ~ + / -: make one with `command-bus token`"
        )
    return f"{_PREFIX}{base64.urlsafe_b64encode(digest_of(token.encode())).decode().rstrip('=')}"


def checked_hash(name: str, text: object) -> str:
    """Return a hash of this form.

    Raises:
        InvalidSettings: It is none: a token in clear text, for example.
    """
    if not isinstance(text, str) or _HASH.fullmatch(text) is None:
        raise InvalidSettings(f"the token of {name!r} is not a hash: make both with `command-bus token`, or use hash_token(…)")
    return text


def digest_of(token: bytes) -> bytes:
    """Return the digest by which a token is found."""
    return hashlib.sha256(token).digest()
