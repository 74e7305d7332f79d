"""`Prefixed`: an ASGI application below a path of a proxy, `https://intern.example/ops`.

The proxy may pass the path on as it is or take the prefix off; both come to the same. What the application links to begins with
`root_path`, as where it is mounted.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from command_bus.errors import InvalidSettings

_HEADER = b"x-forwarded-prefix"
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_LONGEST = 200


def checked_prefix(text: str) -> str:
    """Return a prefix without a slash at its end; empty: there is none.

    Raises:
        InvalidSettings: It is no path of letters, digits, '.', '_', '~' and '-'.
    """
    prefix = text.rstrip("/")
    if prefix and not _is_prefix(prefix):
        raise InvalidSettings(
            f"prefix: {text[:80]!r} is no path such as /ops: letters, digits, '.', '_', '~', '-' between slashes"
        )
    return prefix


class Prefixed:
    """An application that is reached below a prefix.

    Args:
        app: The application.
        prefix: The prefix of all requests; empty: there is none, unless a proxy names one.
        proxies: Addresses or networks of proxies, whose header `X-Forwarded-Prefix` counts more than `prefix`. That of others is not looked at.

    Raises:
        InvalidSettings: The prefix is none, or a proxy is neither an address nor a network.
    """

    def __init__(self, app: Any, prefix: str = "", proxies: Sequence[str] = ()) -> None:
        self._app = app
        self._prefix = checked_prefix(prefix)
        try:
            self._proxies = [ipaddress.ip_network(each) for each in proxies]
        except ValueError as error:
            raise InvalidSettings(f"proxies: {error}; addresses or networks, as 10.0.0.0/8") from None

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] == "http" and (prefix := self._told(scope) or self._prefix):
            scope = _below(scope, prefix)
        await self._app(scope, receive, send)

    def _told(self, scope: Mapping[str, Any]) -> str:
        """Return the prefix that a proxy names; empty: none does."""
        named = [value.decode("latin-1").rstrip("/") for name, value in scope["headers"] if name == _HEADER]
        return named[0] if len(named) == 1 and _is_prefix(named[0]) and self._is_proxy(scope.get("client")) else ""

    def _is_proxy(self, client: Any) -> bool:
        try:
            address = ipaddress.ip_address(client[0])
        except (TypeError, ValueError):
            return False
        return any(address in network for network in self._proxies)


def _is_prefix(text: str) -> bool:
    parts = text.split("/")
    return len(text) <= _LONGEST and _PREFIX.fullmatch(text) is not None and "." not in parts and ".." not in parts


def _below(scope: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    path, raw = scope["path"], scope.get("raw_path") or quote(scope["path"]).encode()
    if path == prefix:
        path, raw = f"{prefix}/", f"{prefix}/".encode()
    elif not path.startswith(f"{prefix}/"):
        path, raw = prefix + path, prefix.encode() + raw
    return {**scope, "path": path, "raw_path": raw, "root_path": prefix}
