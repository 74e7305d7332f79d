"""Users and their roles. A way of knowing users is one of these, or a class of your own with the same method."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from starlette.requests import HTTPConnection

from command_bus.errors import InvalidSettings
from command_bus.integrations.web import address_of, host_name, is_from, networks_of

Role = Literal["viewer", "operator", "admin"]
"""A viewer reads. An operator also pauses, replays and cancels. An admin also deletes, and changes limits, shares and what is recorded."""

ROLES: tuple[Role, ...] = get_args(Role)
_LONGEST = 200
_PASSED_ON = (
    "forwarded", "x-forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "x-original-", "x-proxy",
    "proxy-", "cf-", "cdn-", "fastly-", "x-envoy-", "x-amzn-", "x-amz-cf-", "x-azure-", "x-arr-", "x-appengine-", "x-cloud-trace-context",
    "x-vercel-", "fly-", "x-nginx-", "x-remote-", "x-auth-request-", "x-scheme", "x-request-start", "x-request-id",
)  # fmt: skip
"""The beginnings of headers that proxies add: a browser sends none of these."""
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class User:
    """A person who has been recognised.

    Attributes:
        name: As the audit log has it.
        role: What they may do.
    """

    name: str
    role: Role = "viewer"

    def may(self, role: Role) -> bool:
        """Return whether they may do what this role may."""
        return ROLES.index(self.role) >= ROLES.index(role)


class Users(Protocol):
    """A way of knowing who sends a request."""

    async def user(self, connection: HTTPConnection) -> User | None:
        """Return who sends a request; None if it is not known, or not somebody who may look."""
        ...


Check = Callable[[HTTPConnection], User | Awaitable[User | None] | None]


class HostCheck:
    """Asks the application in which the dashboard is mounted.

    Args:
        check: Returns the user of a request, or None.
    """

    def __init__(self, check: Check) -> None:
        self._check = check

    async def user(self, connection: HTTPConnection) -> User | None:
        """Return whom the application knows."""
        found = self._check(connection)
        return await found if inspect.isawaitable(found) else found


class TrustedHeader:
    """Believes a header, if the request comes from a proxy that sets it.

    Args:
        header: Its name.
        roles: Role that each value of the header gives.
        everyone: The role of those who are not named; None: they may not look.
        proxies: Addresses or networks of the proxies.
    """

    def __init__(self, header: str, roles: Mapping[str, Role], everyone: Role | None, proxies: Sequence[str]) -> None:
        self._header = header
        self._roles = roles  # it may be that of a file, which changes
        for name, given in roles.items():
            checked_role(name, given)
        self._everyone: Role | None = None if everyone is None else checked_role("everyone", everyone)
        self._networks = networks_of(proxies)
        if not self._networks:
            raise InvalidSettings("proxies: name the addresses that the proxy's requests come from")

    async def user(self, connection: HTTPConnection) -> User | None:
        """Return whom the proxy names."""
        values = connection.headers.getlist(self._header)
        name = values[0].strip() if len(values) == 1 else ""
        if not name or len(name) > _LONGEST or not name.isprintable() or not is_from(connection.client, self._networks):
            return None
        role: Role | None = self._roles.get(name) or self._everyone
        return None if role is None else User(name, role)


class Loopback:
    """One user without a name: the person who sits at this machine.

    Args:
        role: What they may do.
    """

    def __init__(self, role: Role) -> None:
        self._role: Role = checked_role("loopback", role)

    async def user(self, connection: HTTPConnection) -> User | None:
        """Return the user of a request that comes from this machine, and was not passed on by a proxy."""
        return User("local", self._role) if is_loopback(connection) else None


def behind_proxy(
    header: str = "X-Forwarded-User",
    *,
    roles: Mapping[str, Role],
    everyone: Role | None = None,
    proxies: Sequence[str] = ("127.0.0.1", "::1"),
) -> Users:
    """Return users that a proxy has signed in, which names them in a header. It must delete the header where a client sends it.

    Args:
        header: Name of the one that the proxy sets.
        roles: Role that each value of it gives.
        everyone: The role of users that are not named; None: they may not look.
        proxies: Addresses or networks from which the proxy's requests come; others are not believed.

    Raises:
        InvalidSettings: A role or an address is none.
    """
    return TrustedHeader(header, roles, everyone, proxies)


def host_check(check: Check) -> Users:
    """Return users as the application knows them in which the dashboard is mounted.

    Args:
        check: Given a request (a Starlette `HTTPConnection`), returns its `User`, or None for somebody who may not look; may be a coroutine.
    """
    return HostCheck(check)


def loopback(role: Role = "viewer") -> Users:
    """Return the one user of a development machine: requests from this machine are let in without a sign-in, all others are not.

    Raises:
        InvalidSettings: It is no role.
    """
    return Loopback(role)


def checked_role(name: str, role: object) -> Role:
    """Return a role.

    Raises:
        InvalidSettings: It is none.
    """
    known: dict[object, Role] = {each: each for each in ROLES}
    if isinstance(role, str) and role in known:
        return known[role]
    raise InvalidSettings(f"the role of {name!r} is {role!r}: one of {', '.join(ROLES)}")


def is_loopback(connection: HTTPConnection) -> bool:
    """Return whether a request comes from a browser of this machine that was asked for a page of this machine.

    The name in `Host` counts, too: a page of another site could give its own name this machine's address.
    """
    address, host = address_of(connection.client), connection.headers.get("host", "")
    passed_on = any(name.startswith(_PASSED_ON) for name in connection.headers)
    return address is not None and address.is_loopback and not passed_on and host_name(host) in _LOCAL
