"""`Visit`: one request of a user, and what a page needs to answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from command_bus.bus import CommandBus
from command_bus.dashboard.forms import Fields
from command_bus.dashboard.options import State, safe_link
from command_bus.dashboard.passwords import Passwords
from command_bus.dashboard.users import User
from command_bus.dashboard.words import render

T = TypeVar("T")
FLASH_COOKIE = "command_bus_said"
THEME_COOKIE = "command_bus_theme"
_CSRF_SECONDS = 12 * 3600
_FLASH_SECONDS = 30


@dataclass(slots=True)
class Visit:
    """A request of somebody who may look.

    Attributes:
        request: The request.
        user: Who.
        state: What requests share.
        query: The fields of the address.
    """

    request: Request
    user: User
    state: State
    query: Fields = field(init=False)

    def __post_init__(self) -> None:
        self.query = Fields(list(self.request.query_params.multi_items()))

    @property
    def bus(self) -> CommandBus:
        """The bus."""
        return self.state.bus

    @property
    def root(self) -> str:
        """The path below which the dashboard is mounted."""
        return root_of(self.request)

    def url(self, path: str, **query: object) -> str:
        """Return the address of a page; what is None or empty is left out."""
        return address(self.root, path, query)

    def trace(self, trace_id: str) -> tuple[str, str]:
        """Return a trace id and the address of its trace; empty where there is none."""
        link = self.state.options.trace_link
        return trace_id, safe_link("trace_link", link(trace_id)) if trace_id and link is not None else ""

    async def shared(self, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return what is read for this page's address, for all who look at it within a second."""
        return await self.state.reads.get((what, here_of(self.request)), read)

    async def apart(self, work: Callable[[], T]) -> T:
        """Return what a thread makes of payloads: a sender chooses how long that takes, and all others would wait for it."""
        return await asyncio.to_thread(work)

    def csrf(self) -> str:
        """Return the token of a form of this user."""
        return self.state.signer.sign("csrf", {"name": self.user.name}, _CSRF_SECONDS)

    def is_own_form(self, fields: Fields) -> bool:
        """Return whether a form was made for this user."""
        facts = self.state.signer.read("csrf", fields["csrf"])
        return facts is not None and facts.get("name") == self.user.name

    def page(self, template: str, *, code: int = 200, **values: Any) -> Response:
        """Return a page."""
        said = self.state.signer.read("said", self.request.cookies.get(FLASH_COOKIE))
        text = render(
            template,
            user=self.user,
            url=self.url,
            root=self.root,
            path=str(self.request.scope["path"]).removeprefix(self.root) or "/",
            query=self.query,
            theme=theme_of(self.request),
            title_of_all=self.state.options.title,
            namespace=self.bus.settings.namespace,
            signs_out=isinstance(self.state.users, Passwords),
            said="" if said is None else str(said.get("text", "")),
            csrf=self.csrf(),
            here=here_of(self.request),
            board_link=self.state.options.board_link,
            **values,
        )
        response = HTMLResponse(text, status_code=code)
        if said is not None:
            response.delete_cookie(FLASH_COOKIE, path=self.root or "/")
        return response

    def back(self, url: str, said: str = "") -> Response:
        """Return the way to another page, which says something."""
        response = RedirectResponse(url, status_code=303)
        if said:
            text = self.state.signer.sign("said", {"text": said[:800]}, _FLASH_SECONDS)
            set_cookie(response, self.request, self.state, FLASH_COOKIE, text, _FLASH_SECONDS)
        return response


def root_of(request: Request) -> str:
    """Return the path below which the dashboard is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def here_of(request: Request) -> str:
    """Return the path and fields that a request asks for. `request.url` is made of its Host, too, which may have another path in it."""
    path, query = str(request.scope["path"]), request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def address(root: str, path: str, query: dict[str, object]) -> str:
    """Return the address of a page."""
    kept = {name: str(value) for name, value in query.items() if value not in (None, "", False)}
    return f"{root}{path}{'?' if kept else ''}{urlencode(kept)}"


def theme_of(request: Request) -> str:
    """Return the theme that a browser has chosen; empty: that of its system."""
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in ("dark", "light") else ""


def set_cookie(response: Response, request: Request, state: State, name: str, value: str, seconds: float) -> None:
    """Set a cookie that only the dashboard gets, and no script."""
    secure = _is_https(request) if state.options.secure is None else state.options.secure
    response.set_cookie(
        name, value, max_age=int(seconds), path=root_of(request) or "/", secure=secure, httponly=True, samesite="lax"
    )


def _is_https(request: Request) -> bool:
    """Return whether the browser came by https, here or to a proxy. Who claims that falsely gets a cookie that is good for https only."""
    return request.scope["scheme"] == "https" or request.headers.get("x-forwarded-proto", "").strip().lower() == "https"
