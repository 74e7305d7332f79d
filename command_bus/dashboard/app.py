"""`dashboard`: puts users, pages and acts together into an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from command_bus.bus import CommandBus
from command_bus.dashboard.acts.asking import act_page
from command_bus.dashboard.guard import Guard, choose_theme, is_own_origin, sign_in, sign_out
from command_bus.dashboard.masking import Masking
from command_bus.dashboard.pages.commands import audit_page, command_page, history_page, letter_page, letters_page, search_page
from command_bus.dashboard.pages.entities import entities_page, entity_page, standing_page
from command_bus.dashboard.pages.fleet import limits_page, live, schedules_page, throughput_page, workers_page
from command_bus.dashboard.passwords import Passwords, Signer
from command_bus.dashboard.pulse import Pulse, SharedReads
from command_bus.dashboard.users import Loopback, Users, is_loopback
from command_bus.dashboard.visit import State, TraceLink, Visit, address, answer_fault, here_of, root_of, safe_link
from command_bus.errors import CommandBusError, InvalidSettings
from command_bus.integrations.web import PROBE
from command_bus.spelling import several_names

Page = Callable[[Visit], Awaitable[Response]]
Answer = Callable[[Request], Awaitable[Response]]

PAGES: dict[str, Page] = {
    "/": standing_page,
    "/entities": entities_page,
    "/entity": entity_page,
    "/command": command_page,
    "/letters": letters_page,
    "/letter": letter_page,
    "/workers": workers_page,
    "/schedules": schedules_page,
    "/limits": limits_page,
    "/throughput": throughput_page,
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
        if not visit.bus.is_open:
            await visit.bus.open()
        try:
            return await page(visit)
        except (HTTPException, CommandBusError):
            raise
        except Exception as error:  # noqa: BLE001 - it is logged, and its page says so
            return await self._fault(visit.request, error)


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
