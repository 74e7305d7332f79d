"""Hashes of passwords: scrypt, from the standard library, with its parameters in the text."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

from command_bus.errors import InvalidSettings

_LOG_N, _R, _P = 15, 8, 3
"""32 MiB and about a tenth of a second: what OWASP advises for scrypt."""
_LEAST = 10
_LONGEST = 1024
_FORM = re.compile(r"scrypt\$(1[4-9]|20)\$([1-9]|1\d|2[0-4])\$([1-9]|1[0-6])\$([A-Za-z0-9_-]{16,64})\$([A-Za-z0-9_-]{43})")


def hash_password(password: str) -> str:
    """Return the hash of a password, for `passwords(…)` and for a file of users.

    Raises:
        InvalidSettings: It has fewer than ten characters, or more than a thousand.
    """
    if not _LEAST <= len(password) <= _LONGEST:
        raise InvalidSettings(f"the password has {len(password)} characters: at least {_LEAST}, at most {_LONGEST}")
    salt = secrets.token_urlsafe(16)
    return f"scrypt${_LOG_N}${_R}${_P}${salt}${_derived(password, salt, _LOG_N, _R, _P)}"


def check_hash(name: str, text: object) -> str:
    """Return a hash of this form.

    Raises:
        InvalidSettings: It is none: a password in clear text, for example.
    """
    if not isinstance(text, str) or _FORM.fullmatch(text) is None:
        raise InvalidSettings(
            f"the password of {name!r} is not a hash: make one with `command-bus password`, or hash_password(…)"
        )
    return text


def decoy_hash() -> str:
    """Return what looks like a hash and is that of no password: to check one against it takes as long."""
    return f"scrypt${_LOG_N}${_R}${_P}${secrets.token_urlsafe(16)}${secrets.token_urlsafe(32)}"


def is_password(password: str, stored: str) -> bool:
    """Return whether a password is the one of a hash. It takes a tenth of a second of a processor."""
    found = _FORM.fullmatch(stored)
    if found is None or len(password) > _LONGEST:
        return False
    log_n, r, p, salt, wanted = found.groups()
    return hmac.compare_digest(_derived(password, salt, int(log_n), int(r), int(p)), wanted)


def _derived(password: str, salt: str, log_n: int, r: int, p: int) -> str:
    size = 128 * r * (2**log_n + p + 2)
    raw = hashlib.scrypt(
        password.encode(errors="replace"), salt=salt.encode(), n=2**log_n, r=r, p=p, maxmem=size + 1024 * 1024, dklen=32
    )
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
