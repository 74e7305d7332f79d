"""Users with passwords: the sign-in's rules. Sessions are signed cookies; a changed password or role holds at once."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import HTTPConnection

from command_bus.clock import mono, wall_ms
from command_bus.dashboard.users import Role, User, checked_role
from command_bus.errors import InvalidSettings
from command_bus.integrations.web import RereadFile, read_tables

_SHORTEST = 32
_LONGEST_TEXT = 4096


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
        if text is None or len(text) > _LONGEST_TEXT or not text.isascii():
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
    return _text(raw)


Entry = tuple[str, Role]
"""The hash of a password, and a role."""

SESSION_COOKIE = "command_bus_session"
_SESSION = "session"
_HASHES_AT_ONCE = 2
"""Each takes 32 MiB."""
_MOST_WAITING = 40
"""Passwords that are checked or wait for it: some seconds. More are not taken, since each keeps its connection."""
_NETWORK_V6 = 64
"""Bits of an IPv6 address that belong to one household."""


def source_of(connection: HTTPConnection) -> str:
    """Return what tries are counted by: the address of a request; of IPv6 its network, since one person has as many addresses as they like."""
    host = "" if connection.client is None else connection.client.host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 6 and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, _NETWORK_V6), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)


class Attempts:
    """Counts sign-ins that failed, and refuses more for a while.

    Args:
        most: Failures that are let pass.
        seconds: How long they count.
    """

    def __init__(self, most: int = 5, seconds: float = 300.0) -> None:
        self._most = most
        self._seconds = seconds
        self._failed: OrderedDict[str, list[float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """Return the seconds until a key may try again; 0.0: now."""
        recent = self._recent(key)
        return max(self._seconds - (mono() - recent[-self._most]), 0.0) if len(recent) >= self._most else 0.0

    def begin(self, key: str) -> None:
        """Count a try as failed, before its password is checked: else many at a time would all be let pass."""
        self._failed[key] = [*self._recent(key), mono()][-self._most :]
        self._failed.move_to_end(key)
        while len(self._failed) > 10_000:
            self._failed.popitem(last=False)

    def succeeded(self, key: str) -> None:
        """Take back the newest try of a key. Those before count on: who has one password of their own may be guessing another."""
        self._failed[key] = self._failed.get(key, [])[:-1]
        if not self._failed[key]:
            del self._failed[key]

    def _recent(self, key: str) -> list[float]:
        since = mono() - self._seconds
        return [at for at in self._failed.get(key, []) if at > since]


class Passwords:
    """Users with passwords and roles, and their sessions.

    Args:
        entries: By name the hash of the password, and the role; or what returns them as they are now, checked.
        hours: How long a session lasts.

    Attributes:
        attempts: Failed sign-ins by address.
        seconds: How long a session lasts.
        signer: Signs sessions; the dashboard sets it.

    Raises:
        InvalidSettings: There are no users, a hash is none, or a role is none.
    """

    def __init__(self, entries: Mapping[str, Entry] | Callable[[], Mapping[str, Entry]], hours: float = 12.0) -> None:
        self._now = entries if callable(entries) else partial(dict, checked_entries(entries))
        if not 0 < hours <= 24 * 30:
            raise InvalidSettings(f"hours={hours!r}: how long a session lasts, up to 30 days")
        self.seconds = hours * 3600
        self.attempts = Attempts()
        self.signer = Signer()
        self._decoy = decoy_hash()
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)
        self._waiting = 0

    async def user(self, connection: HTTPConnection) -> User | None:
        """Return whose session a request has."""
        facts = self.signer.read(_SESSION, connection.cookies.get(SESSION_COOKIE))
        name = "" if facts is None else str(facts.get("name"))
        entry = self._now().get(name)
        if facts is None or entry is None or facts.get("pin") != _pin(entry):
            return None
        return User(name, entry[1])

    @property
    def is_busy(self) -> bool:
        """Whether so many passwords wait to be checked that no more are taken."""
        return self._waiting >= _MOST_WAITING

    async def is_user(self, name: str, password: str) -> bool:
        """Return whether the password is that user's. It takes as long for a user that there is not."""
        entry = self._now().get(name)
        self._waiting += 1
        try:
            async with self._hashing:
                right = await asyncio.to_thread(is_password, password, self._decoy if entry is None else entry[0])
        finally:
            self._waiting -= 1
        return right and self._now().get(name) == entry is not None

    def session(self, name: str) -> str:
        """Return the value of the cookie of a session that begins now."""
        pin = _pin(self._now()[name])
        return self.signer.sign(_SESSION, {"name": name, "pin": pin, "nonce": secrets.token_hex(8)}, self.seconds)


def checked_entries(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return users with passwords.

    Raises:
        InvalidSettings: There are no users, a hash is none, or a role is none.
    """
    if not entries:
        raise InvalidSettings("users: there are none, so no one could sign in")
    return {name: (check_hash(name, password), checked_role(name, role)) for name, (password, role) in entries.items()}


def _pin(entry: Entry) -> str:
    """Return what changes with the password."""
    return hashlib.sha256(entry[0].encode()).hexdigest()[:16]


def passwords(entries: Mapping[str, tuple[str, Role]], *, hours: float = 12.0) -> Passwords:
    """Return users who sign in with a password.

    Args:
        entries: By name the hash of the password (`command-bus password` or `hash_password` make one) and the role.
        hours: How long a session lasts.

    Raises:
        InvalidSettings: There are no users, a hash is none, or a role is none.
    """
    return Passwords(entries, hours)


def read_users(file: str | Path) -> Passwords:
    """Return the users of a file: a table for each, with `password`, a hash, and `role`. The file is read again when it changes.

    Raises:
        InvalidSettings: The file cannot be read, or is not of this form.
    """
    found = RereadFile(
        file,
        lambda file: checked_entries(
            {name: _entry(str(file), name, table) for name, table in read_tables(file, "users").items()}
        ),
    )
    return Passwords(lambda: found.value)


def read_roles(file: str | Path) -> Mapping[str, Role]:
    """Return the roles in a file of users whom a proxy signs in: a table for each, with `role` alone. It is read again when it changes.

    Raises:
        InvalidSettings: The file cannot be read, or is not of this form.
    """
    return _Roles(
        RereadFile(file, lambda file: {name: _role(str(file), name, table) for name, table in read_tables(file, "users").items()})
    )


class _Roles(Mapping[str, Role]):
    """The roles that a file has now."""

    def __init__(self, found: RereadFile[dict[str, Role]]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Role:
        return self._found.value[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found.value)

    def __len__(self) -> int:
        return len(self._found.value)


def _role(file: str, name: str, table: Any) -> Role:
    if not isinstance(table, dict) or table.keys() != {"role"}:
        raise InvalidSettings(
            f'{file}: a proxy signs in, so [{name}] has role = "viewer", "operator" or "admin", and nothing else'
        )
    return checked_role(name, table["role"])


def _entry(file: str, name: str, table: Any) -> tuple[str, Any]:
    if not isinstance(table, dict) or not {"password", "role"} >= table.keys() >= {"password"}:
        raise InvalidSettings(f'{file}: [{name}] has password = "scrypt$…" and role = "viewer", "operator" or "admin"')
    return table["password"], checked_role(name, table.get("role", "viewer"))
