"""`Guard`: what holds for every request, before a page sees it: hosts, sizes, and headers that keep a browser from what it should not do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBE = "/healthz"
"""The path of a page for probes: it needs no user, and says nothing but that the process answers."""
_LONGEST_QUERY = 8_000
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "X-Robots-Tag": "noindex",
}
"""Of every answer."""


class Guard:
    """Middleware of the dashboard.

    Args:
        app: What it protects.
        hosts: Names under which the dashboard is reached; empty: any.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(each.casefold() for each in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if len(scope["query_string"]) > _LONGEST_QUERY:
            return PlainTextResponse("the address is too long", 414)
        host = HTTPConnection(scope).headers.get("host", "")
        if self._hosts and _name(host) not in self._hosts and not _is_probe(scope):
            return PlainTextResponse("this is not a name of the dashboard", 421)
        return None


def _is_probe(scope: Scope) -> bool:
    """Return whether a request asks whether this process lives: probes know its address, not its name."""
    return str(scope["path"]) == str(scope.get("root_path", "")) + PROBE


def is_own_origin(request: Request) -> bool:
    """Return whether a request that changes something comes from a page of this host. Browsers say so with every such request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return site == "same-origin"
    scheme, _, host = origin.partition("://")
    return scheme in ("http", "https") and host.casefold() == request.headers.get("host", "").casefold()


def _name(host: str) -> str:
    name: Any = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    return str(name).casefold()
