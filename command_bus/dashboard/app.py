"""`dashboard`: puts users, pages and acts together into an ASGI application.

Protection of the dashboard: `Guard` looks at hosts and sizes, and adds headers that keep a browser from what it should not do; the sign-in.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from command_bus.bus import CommandBus
from command_bus.dashboard.acts.asking import act_page
from command_bus.dashboard.masking import Masking
from command_bus.dashboard.pages.checks import checks_page
from command_bus.dashboard.pages.commands import audit_page, command_page, history_page, letter_page, letters_page, search_page
from command_bus.dashboard.pages.entities import entities_page, entity_page, standing_page
from command_bus.dashboard.pages.fleet import limits_page, live, schedules_page, subscriptions_page, workers_page
from command_bus.dashboard.pages.selection import commands_page
from command_bus.dashboard.pages.throughput import throughput_page
from command_bus.dashboard.passwords import SESSION_COOKIE, Passwords, Signer, source_of
from command_bus.dashboard.pulse import Pulse, SharedReads
from command_bus.dashboard.users import Loopback, Users, is_loopback
from command_bus.dashboard.visit import (
    THEME_COOKIE,
    State,
    TraceLink,
    Visit,
    address,
    answer_fault,
    bare_page,
    here_of,
    read_form,
    root_of,
    safe_link,
    set_cookie,
)
from command_bus.errors import CommandBusError, InvalidSettings
from command_bus.integrations.web import PROBE, host_name, is_probe
from command_bus.spelling import several_names

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


Page = Callable[[Visit], Awaitable[Response]]
Answer = Callable[[Request], Awaitable[Response]]

PAGES: dict[str, Page] = {
    "/": standing_page,
    "/entities": entities_page,
    "/entity": entity_page,
    "/commands": commands_page,
    "/command": command_page,
    "/letters": letters_page,
    "/letter": letter_page,
    "/workers": workers_page,
    "/schedules": schedules_page,
    "/subscriptions": subscriptions_page,
    "/limits": limits_page,
    "/throughput": throughput_page,
    "/checks": checks_page,
    "/history": history_page,
    "/audit": audit_page,
    "/search": search_page,
    "/live": live,
}
"""The pages that are read. What an address names stands behind its `?`: an id may be any text."""


class Dashboard:
    """The ASGI application that `dashboard` returns. Mount it, or serve it.

    Args:
        state: The things that requests share.
        opens: Whether it opens the bus when it is served, and closes it.

    Attributes:
        state: As it was given.
    """

    def __init__(self, state: State, *, opens: bool) -> None:
        self.state = state
        self._opens = opens
        self._app = Guard(self._routes(), state.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or run the life of a served application."""
        await self._app(scope, receive, send)

    def _routes(self) -> Starlette:
        static = StaticFiles(directory=Path(__file__).parent / "static")
        routes = [Route(path, self._for_user(page), methods=["GET"]) for path, page in PAGES.items()]
        routes += [
            Route(PROBE, lambda _: PlainTextResponse("live\n"), methods=["GET"]),
            Route("/act", self._for_user(act_page), methods=["GET", "POST"]),
            Route("/sign-in", self._plain(sign_in), methods=["GET", "POST"]),
            Route("/sign-out", self._for_user(sign_out), methods=["POST"]),
            Route("/theme", self._for_user(choose_theme), methods=["POST"]),
        ]
        handlers: Any = {CommandBusError: self._fault, HTTPException: self._fault}
        return Starlette(routes=[*routes, Mount("/static", static)], exception_handlers=handlers, lifespan=self._life)

    @asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncGenerator[None]:
        """Keep the figures of each minute while the dashboard is served."""
        async with self.state.bus if self._opens else nullcontext(), self.state.pulse.keeping():
            yield

    async def _fault(self, request: Request, error: Exception) -> Response:
        return await answer_fault(self.state, request, error)

    def _plain(self, answer: Callable[[State, Request], Awaitable[Response]]) -> Answer:
        async def answered(request: Request) -> Response:
            if request.method == "POST" and not is_own_origin(request):
                raise HTTPException(403, "the form came from another site")
            return await answer(self.state, request)

        return answered

    def _for_user(self, page: Page) -> Answer:
        async def answered(_: State, request: Request) -> Response:
            visit = await self._visit(request)
            return visit if isinstance(visit, Response) else await self._page(visit, page)

        return self._plain(answered)

    async def _visit(self, request: Request) -> Visit | Response:
        """Return the visit of a user; the way to the sign-in if no user is known.

        Raises:
            HTTPException: They cannot sign in here.
        """
        user = await self.state.users.user(request)
        if user is not None:
            return Visit(request, user, self.state)
        if not isinstance(self.state.users, Passwords):
            local = isinstance(self.state.users, Loopback) and not is_loopback(request)
            raise HTTPException(403, "only this machine may look: give the dashboard users" if local else "you may not look here")
        if request.scope["path"].endswith("/live"):
            raise HTTPException(401, "the session is over")
        following = here_of(request).removeprefix(root_of(request)) if request.method == "GET" else ""
        return RedirectResponse(address(root_of(request), "/sign-in", {"next": following}), status_code=303)

    async def _page(self, visit: Visit, page: Page) -> Response:
        try:
            if not visit.bus.is_open:
                await visit.bus.open()
            return await page(visit)
        except Exception as error:  # noqa: BLE001 - its page says so, and it is logged if it is not ours
            return await answer_fault(self.state, visit.request, error, visit)


def dashboard(
    bus: CommandBus,
    *,
    users: Users,
    secret: str | bytes | None = None,
    mask: Collection[str] = (),
    title: str = "command_bus",
    hosts: Collection[str] = (),
    secure: bool | None = None,
    trace_link: TraceLink | None = None,
    board_link: str = "",
    opens: bool = False,
) -> Dashboard:
    """Return the dashboard as an ASGI application, to be mounted or served.

        app.mount("/ops", dashboard(bus, users=passwords({"ann": (ANN, "operator")}), secret=os.environ["OPS_SECRET"]))

    Args:
        bus: Opened by the first request if the application has not opened it.
        users: Who may look, and do what: `passwords`, `behind_proxy`, `host_check`, or (`loopback`) the person who sits at this machine.
        secret: Signs sessions and forms, at least 32 bytes; the same in all processes. None: a random one, so that a restart ends sessions.
        mask: Names of payload fields that are shown as dots, at any depth; `Charge.card` only of that command.
        title: Heads the pages, beside the namespace.
        hosts: Names under which the dashboard is reached; a request for another is refused. Empty: any.
        secure: Whether cookies are for https only; None: if the request came by https.
        trace_link: Returns the address of a trace, given its id.
        board_link: Address of a Grafana board, which the page of throughput links to.
        opens: Whether it opens and closes the bus by itself when it is served.

    Raises:
        InvalidSettings: There are no users, the secret is too short, `board_link` is no address, or `mask` or `hosts` has no name.
    """
    if users is None or not hasattr(users, "user"):
        raise InvalidSettings(
            "users: who may look? passwords(…), behind_proxy(…), host_check(…), or loopback() on a development machine"
        )
    signer = Signer(secret)
    if isinstance(users, Passwords):
        users.signer = signer
    reads = SharedReads()
    pulse = Pulse(bus, on_change=reads.forget)
    state = State(
        bus=bus,
        users=users,
        signer=signer,
        masking=Masking(mask),
        title=title,
        hosts=several_names("hosts", hosts),
        secure=secure,
        trace_link=trace_link,
        board_link=safe_link("board_link", board_link),
        reads=reads,
        pulse=pulse,
    )
    return Dashboard(state, opens=opens)
