"""Users with passwords: the sign-in's rules. Sessions are signed cookies; a changed password or role holds at once."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial

from starlette.requests import HTTPConnection

from command_bus.clock import mono
from command_bus.dashboard.password_hashes import check_hash, decoy_hash, is_password
from command_bus.dashboard.signing import Signer
from command_bus.dashboard.users import Role, User, checked_role
from command_bus.errors import InvalidSettings

Entry = tuple[str, Role]
"""The hash of a password, and a role."""

SESSION_COOKIE = "command_bus_session"
_SESSION = "session"
_HASHES_AT_ONCE = 2
"""Each takes 32 MiB."""
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

    async def user(self, connection: HTTPConnection) -> User | None:
        """Return whose session a request has."""
        facts = self.signer.read(_SESSION, connection.cookies.get(SESSION_COOKIE))
        name = "" if facts is None else str(facts.get("name"))
        entry = self._now().get(name)
        if facts is None or entry is None or facts.get("pin") != _pin(entry):
            return None
        return User(name, entry[1])

    async def is_user(self, name: str, password: str) -> bool:
        """Return whether the password is that user's. It takes as long for a user that there is not."""
        entry = self._now().get(name)
        async with self._hashing:
            right = await asyncio.to_thread(is_password, password, self._decoy if entry is None else entry[0])
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
