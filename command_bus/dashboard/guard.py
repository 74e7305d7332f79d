"""Protection of the dashboard: `Guard` looks at hosts and sizes, and adds headers that keep a browser from what it should not do; the sign-in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from command_bus.dashboard.passwords import SESSION_COOKIE, Passwords, source_of
from command_bus.dashboard.visit import THEME_COOKIE, State, Visit, bare_page, read_form, root_of, set_cookie
from command_bus.integrations.web import host_name, is_probe

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
        if self._hosts and host_name(host) not in self._hosts and not is_probe(scope):
            return PlainTextResponse("this is not a name of the dashboard", 421)
        return None


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


_YEAR = 365 * 24 * 3600
_WRONG = 0.3
"""Seconds that a wrong password costs besides its hash."""


def safe_path(text: str) -> str:
    """Return a path of the dashboard to go on to; `/` for anything that could lead elsewhere."""
    harmless = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and "\\" not in text
    return text if harmless and not text.startswith("/sign-") else "/"


async def sign_in(state: State, request: Request) -> Response:
    """Show the form, or take it.

    Raises:
        HTTPException: There are no passwords here.
    """
    users = state.users
    if not isinstance(users, Passwords):
        raise HTTPException(404, "there is no sign-in here")
    following = safe_path(request.query_params.get("next", "/"))

    def answered(problem: str = "", status: int = 200, wait: float = 0.0) -> Response:
        headers = {"Retry-After": str(math.ceil(wait))} if wait else {}
        return bare_page(state, request, "sign_in.html", status, headers, following=following, problem=problem)

    if request.method == "GET":
        return answered()
    fields = await read_form(request)
    following = safe_path(fields["next"] or "/")
    source = source_of(request)
    if wait := users.attempts.wait(source):
        return answered("Too many tries. Wait some minutes.", 429, wait)
    if users.is_busy:
        return answered("Many sign in just now. Try again in some seconds.", 503, 5)
    users.attempts.begin(source)
    name = fields["name"].strip()
    if not await users.is_user(name, fields["password"]):
        await asyncio.sleep(_WRONG)
        return answered("The name or the password is wrong.", 403)
    users.attempts.succeeded(source)
    entered = RedirectResponse(f"{root_of(request)}{following}", status_code=303)
    set_cookie(entered, request, state, SESSION_COOKIE, users.session(name), users.seconds)
    return entered


async def sign_out(visit: Visit) -> Response:
    """End the session of this browser.

    Raises:
        HTTPException: The form is not of this user.
    """
    visit.check_form(await read_form(visit.request))
    response = RedirectResponse(visit.url("/sign-in"), status_code=303)
    response.delete_cookie(SESSION_COOKIE, path=visit.root or "/")
    return response


async def choose_theme(visit: Visit) -> Response:
    """Keep the theme that somebody has chosen.

    Raises:
        HTTPException: The form is not of this user.
    """
    fields = visit.check_form(await read_form(visit.request))
    response = RedirectResponse(f"{visit.root}{safe_path(fields['next'])}", status_code=303)
    set_cookie(response, visit.request, visit.state, THEME_COOKIE, fields["theme"][:10], _YEAR)
    return response
