"""`Visit`: one request of a user, and what a page needs to answer it: the fields of its form, what requests share, and errors as pages."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from command_bus.admin.info import EntityTypeInfo, Stats
from command_bus.bus import CommandBus
from command_bus.dashboard.masking import Masking
from command_bus.dashboard.passwords import Passwords, Signer
from command_bus.dashboard.pulse import Pulse, SharedReads
from command_bus.dashboard.users import User, Users
from command_bus.dashboard.words import render
from command_bus.errors import (
    CommandBusError,
    InvalidCommand,
    InvalidSettings,
    TransportUnavailable,
    UnknownCommand,
    UnknownDeadLetter,
    UnknownLimit,
    UnknownSchedule,
    UnknownSubscription,
)

_MOST_BYTES = 2 * 1024 * 1024
_MOST_FIELDS = 100
_WITHIN = 10.0


PICKED = "picked"
"""The field of a row's check box. It may be sent several times; of others the last counts."""


class Fields(Mapping[str, str]):
    """The fields of a form or of an address; of several with one name the last, of check boxes a line each."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values = dict[str, str]()
        for name, value in pairs:
            text = value.replace("\r\n", "\n")
            self._values[name] = f"{self._values[name]}\n{text}" if name == PICKED and name in self._values else text

    def __getitem__(self, name: str) -> str:
        """Return the value of a field; empty if it was not sent."""
        return self._values.get(name, "")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that were sent."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return how many were sent."""
        return len(self._values)


async def read_form(request: Request) -> Fields:
    """Return the fields of a form.

    Raises:
        HTTPException: It is no form, is too large, or does not come in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "a form is expected")
    raw = bytearray()
    try:
        async with asyncio.timeout(_WITHIN):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > _MOST_BYTES:
                    raise HTTPException(413, f"the form has more than {_MOST_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, "the form did not arrive in time") from None
    except ClientDisconnect:
        raise HTTPException(400, "the form was broken off") from None
    try:
        return Fields(parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"))
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None


TraceLink = Callable[[str], str]
"""Given a trace id, returns the address of the trace's page."""


@dataclass(frozen=True, slots=True)
class State:
    """The things that requests share: the arguments of `dashboard`, checked, and what is made of them."""

    bus: CommandBus
    users: Users
    signer: Signer
    masking: Masking
    title: str
    hosts: Collection[str]
    secure: bool | None
    trace_link: TraceLink | None
    board_link: str
    reads: SharedReads
    pulse: Pulse
    pages_of: Counter[str] = field(default_factory=Counter)
    """Open pages that listen, counted by the name of their user."""


def safe_link(what: str, address: str) -> str:
    """Return an address that a page may link to: of the web, a path of this host, or empty.

    Raises:
        InvalidSettings: It is something else, which a browser might run.
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit("?")
    is_path = address.startswith("/") and not address.startswith(("//", "/\\"))
    is_address = parts.scheme in ("http", "https") and bool(parts.netloc)
    if address and not (address.isprintable() and (is_path or is_address)):
        raise InvalidSettings(f"{what}={address!r}: an address as https://grafana.example/d/command-bus")
    return address


def trace_link_of(pattern: str) -> TraceLink:
    """Return what makes addresses of traces from a pattern with `{trace_id}` in it.

    Raises:
        InvalidSettings: It has no `{trace_id}`, or is no address.
    """
    if "{trace_id}" not in pattern:
        raise InvalidSettings(f"{pattern!r}: an address with {{trace_id}} in it, as https://jaeger.example/trace/{{trace_id}}")
    safe_link("trace_link", pattern)
    return lambda trace_id: pattern.replace("{trace_id}", trace_id)


T = TypeVar("T")
FLASH_COOKIE = "command_bus_said"
THEME_COOKIE = "command_bus_theme"
_CSRF_SECONDS = 12 * 3600
_FLASH_SECONDS = 30


@dataclass(eq=False, slots=True)
class Visit:
    """A request of somebody who may look.

    Attributes:
        request: What is answered.
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
        link = self.state.trace_link
        return trace_id, safe_link("trace_link", link(trace_id)) if trace_id and link is not None else ""

    async def shared(self, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return what is read for this page's address, for all who look at it within a second."""
        return await self.state.reads.get((what, here_of(self.request)), read)

    def stats(self) -> Awaitable[Stats]:
        """Return the stats of the bus, one for all who look within a second."""
        return self.state.reads.get("stats", self.bus.stats)

    def types(self) -> Awaitable[list[EntityTypeInfo]]:
        """Return the entity types, as `stats`."""
        return self.state.reads.get("types", self.bus.entities.types)

    async def apart(self, work: Callable[[], T]) -> T:
        """Return what a thread makes of payloads: a sender chooses how long that takes, and all others would wait for it."""
        return await asyncio.to_thread(work)

    def csrf(self) -> str:
        """Return the token of a form of this user."""
        return self.state.signer.sign("csrf", {"name": self.user.name}, _CSRF_SECONDS)

    def check_form(self, fields: Fields) -> Fields:
        """Return the fields of a form that was made for this user.

        Raises:
            HTTPException: It was not.
        """
        facts = self.state.signer.read("csrf", fields["csrf"])
        if facts is None or facts.get("name") != self.user.name:
            raise HTTPException(403, "the form is too old, or of somebody else: load the page again")
        return fields

    def page(self, template: str, *, code: int = 200, **values: Any) -> Response:
        """Return a page."""
        said = self.state.signer.read("said", self.request.cookies.get(FLASH_COOKIE))
        response = bare_page(
            self.state,
            self.request,
            template,
            code,
            user=self.user,
            url=self.url,
            path=str(self.request.scope["path"]).removeprefix(self.root) or "/",
            query=self.query,
            signs_out=isinstance(self.state.users, Passwords),
            said="" if said is None else str(said.get("text", "")),
            csrf=self.csrf(),
            here=here_of(self.request),
            board_link=self.state.board_link,
            **values,
        )
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
    secure = _is_https(request) if state.secure is None else state.secure
    response.set_cookie(
        name, value, max_age=int(seconds), path=root_of(request) or "/", secure=secure, httponly=True, samesite="lax"
    )


def _is_https(request: Request) -> bool:
    """Return whether the browser came by https, here or to a proxy. Who claims that falsely gets a cookie that is good for https only."""
    return request.scope["scheme"] == "https" or request.headers.get("x-forwarded-proto", "").strip().lower() == "https"


_UNKNOWN = (UnknownCommand, UnknownDeadLetter, UnknownLimit, UnknownSchedule, UnknownSubscription)
_WORDS = {400: "This cannot be read", 403: "Not allowed", 404: "Not found", 503: "The server does not answer"}
_log = logging.getLogger("command_bus.dashboard")


def status_of(error: CommandBusError) -> int:
    """Return the status of an answer that an error leads to."""
    if isinstance(error, _UNKNOWN):
        return 404
    if isinstance(error, TransportUnavailable):
        return 503
    return 400 if isinstance(error, InvalidSettings | InvalidCommand) else 409


async def answer_fault(state: State, request: Request, error: Exception, visit: Visit | None = None) -> Response:
    """Return the page of an error, for a user with the menu and what they have typed. What is not ours is logged, and not shown."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, error.detail, dict(error.headers or {})
    elif isinstance(error, CommandBusError):
        status, message = status_of(error), error.message or type(error).__name__
    else:
        _log.error("a page failed", exc_info=error)
        status, message = 500, "This page failed. The log of the dashboard says why."
    if status == 503:
        headers.setdefault("Retry-After", "5")
    told: dict[str, Any] = {"status": status, "words": _WORDS.get(status, "This did not work"), "message": message}
    if visit is None:
        return bare_page(state, request, "fault.html", status, headers, **told)
    answer = visit.page("fault_page.html", code=status, **told)
    answer.headers.update(headers)
    return answer


def bare_page(
    state: State, request: Request, template: str, code: int = 200, sent: Mapping[str, str] | None = None, /, **values: Any
) -> HTMLResponse:
    """Return a page that may have no user.

    Args:
        state: The things that requests share.
        request: What is answered.
        template: Name of the page's file.
        code: The status of the answer.
        sent: The headers of the answer.
        **values: What the template shows.
    """
    text = render(
        template,
        root=root_of(request),
        theme=theme_of(request),
        title_of_all=state.title,
        namespace=state.bus.settings.namespace,
        **values,
    )
    return HTMLResponse(text, code, sent)
