"""`gateway`: puts tokens, limits and answers together into an ASGI application."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from command_bus.bus import CommandBus
from command_bus.errors import CommandBusError, InvalidSettings
from command_bus.gateway.catalogue import Catalogue
from command_bus.gateway.following import get_events, get_progress
from command_bus.gateway.hubs import EventHub, ProgressHub
from command_bus.gateway.incoming import ClientGone, Incoming, Options, State, header_of, segments_of
from command_bus.gateway.inspecting import (
    delete_command,
    get_command,
    get_entities,
    get_entity,
    get_letter,
    get_letters,
    get_schedule,
    get_schedules,
    get_state,
)
from command_bus.gateway.openapi import get_openapi
from command_bus.gateway.problems import HEADERS, Problem, problem_of, retry_later
from command_bus.gateway.sending import post_batch, post_command, post_event
from command_bus.gateway.tokens import Holder, Tokens
from command_bus.integrations.web import counted, host_name, is_probe
from command_bus.spelling import several_names

Answer = Callable[[Incoming], Awaitable[Response]]
_ANY = "*"
ROUTES: Mapping[tuple[str, ...], Mapping[str, Answer]] = {
    ("commands",): {"POST": post_batch},
    ("commands", _ANY): {"POST": post_command, "GET": get_command, "DELETE": delete_command},
    ("commands", _ANY, "progress"): {"GET": get_progress},
    ("events",): {"GET": get_events},
    ("events", _ANY): {"POST": post_event},
    ("entities",): {"GET": get_entities},
    ("entities", _ANY, _ANY): {"GET": get_entity},
    ("entities", _ANY, _ANY, "state"): {"GET": get_state},
    ("dead-letters",): {"GET": get_letters},
    ("dead-letters", _ANY): {"GET": get_letter},
    ("schedules",): {"GET": get_schedules},
    ("schedules", _ANY): {"GET": get_schedule},
    ("openapi.json",): {"GET": get_openapi},
}
"""What is answered, by the segments of the path and the method. What is not here does not exist, for anybody."""
_UNAUTHORIZED = {"WWW-Authenticate": 'Bearer realm="command_bus"'}
_log = logging.getLogger("command_bus.gateway")


class Gateway:
    """The ASGI application that `gateway` returns. Mount it, or serve it.

    Args:
        state: The things that requests share.
        opens: Whether it opens the bus when it is served, and closes it.

    Attributes:
        state: As it was given.
    """

    def __init__(self, state: State, *, opens: bool) -> None:
        self.state = state
        self._opens = opens
        self._life = Router(lifespan=self._lifespan)
        self._hosts = frozenset(each.casefold() for each in state.options.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or run the life of a served application."""
        if scope["type"] == "http":
            try:
                response = (
                    _live() if scope["method"] in ("GET", "HEAD") and is_probe(scope) else await self._answer(scope, receive)
                )
            except ClientGone:
                return
            await response(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._life(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        try:
            holder = self._admitted(scope)
            path = segments_of(scope)
            answering = _answering(path, scope["method"])
            if not self.state.bus.is_open:
                await self.state.bus.open()
            requests, most = self.state.requests_of, self.state.options.max_requests_each
            if requests[holder.name] >= most:  # who waits must leave room for others
                raise retry_later(429, "too_many_requests", f"this token has {most} requests that are not answered yet", 1)
            with counted(requests, holder.name):
                return await answering(Incoming(scope, receive, self.state, holder, path))
        except Problem as problem:
            return problem.response()
        except CommandBusError as error:
            found = problem_of(error)
            if found.status == 500:
                _log.exception("%s %s failed", scope["method"], scope["path"])
            return found.response()
        except ClientGone:
            raise
        except Exception:  # noqa: BLE001 - it is logged, and the answer says so
            _log.exception("%s %s failed", scope["method"], scope["path"])
            return Problem(500, "internal", "this failed; the log of the gateway says why").response()

    def _admitted(self, scope: Scope) -> Holder:
        """Return who asks.

        Raises:
            Problem: Their token is not known, they ask too often, or for another host.
        """
        if self._hosts and host_name((header_of(scope, b"host") or b"").decode("latin-1")) not in self._hosts:
            raise Problem(421, "wrong_host", "this is not a name of the gateway")
        holder = self.state.allow.holder(header_of(scope, b"authorization"))
        if holder is None:
            raise Problem(401, "unauthorized", "Authorization: Bearer <token>, with a token that is known", headers=_UNAUTHORIZED)
        wait = 0.0 if holder.rate is None else holder.rate.wait()
        if wait > 0:
            raise retry_later(429, "too_many_requests", "this token has used up its rate", wait)
        return holder

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncGenerator[None]:
        async with self.state.bus if self._opens else nullcontext():
            yield


def gateway(
    bus: CommandBus,
    *,
    allow: Tokens,
    max_body: int = 1024 * 1024,
    body_timeout: float = 10.0,
    max_batch: int = 1000,
    max_wait: float = 60.0,
    max_streams: int = 2000,
    max_streams_each: int | None = None,
    max_requests_each: int = 500,
    hosts: Collection[str] = (),
    opens: bool = False,
) -> Gateway:
    """Return the gateway as an ASGI application, to be mounted or served.

        app.mount("/bus", gateway(bus, allow=tokens({"ci": Grant(CI_TOKEN, ("send:Deposit", "look"))})))

    Args:
        bus: Opened by the first request if the application has not opened it.
        allow: Who may do what: `tokens(…)`, or `read_tokens(file)`. Nothing is open to anybody else.
        max_body: Bytes of a request's body.
        body_timeout: Seconds in which it has to arrive.
        max_batch: Commands of one batch.
        max_wait: Seconds that a request may wait for an outcome; one that prefers to wait longer waits so long.
        max_streams: Streams of events and progress that are open at a time.
        max_streams_each: How many of these streams one token may have open; None: a quarter.
        max_requests_each: Requests of one token that are answered at a time, those that wait among them.
        hosts: Names under which the gateway is reached; a request for another is refused. Empty: any.
        opens: Whether it opens and closes the bus by itself when it is served.

    Raises:
        InvalidSettings: There are no tokens, or a limit is none.
    """
    if not isinstance(allow, Tokens):
        raise InvalidSettings('allow: who may do what? tokens({"ci": Grant(token, ("send:Deposit", "look"))})')
    counts = {
        "max_body": max_body,
        "max_batch": max_batch,
        "max_streams": max_streams,
        "max_requests_each": max_requests_each,
    }
    for name, value in (counts if max_streams_each is None else {**counts, "max_streams_each": max_streams_each}).items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidSettings(f"{name} = {value!r} must be a whole number of at least 1")
    for name, seconds in {"body_timeout": body_timeout, "max_wait": max_wait}.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not (math.isfinite(seconds) and seconds > 0):
            raise InvalidSettings(f"{name} = {seconds!r}: a positive number of seconds")
    each = max(1, max_streams // 4) if max_streams_each is None else max_streams_each
    options = Options(
        max_body, body_timeout, max_batch, max_wait, max_streams, each, max_requests_each, several_names("hosts", hosts)
    )
    return Gateway(State(bus, allow, options, Catalogue(bus), EventHub(bus), ProgressHub(bus)), opens=opens)


def _answering(path: tuple[str, ...], method: str) -> Answer:
    """Return what answers a request.

    Raises:
        Problem: There is nothing at this path, or not by this method.
    """
    methods = ROUTES.get(path) or next((ROUTES[shape] for shape in _shapes(path) if shape in ROUTES), None)
    if methods is None or "" in path:
        raise Problem(404, "not_found", "there is nothing at this path")
    if method not in methods:
        allowed = ", ".join(sorted(methods))
        raise Problem(405, "method_not_allowed", f"by {allowed} only", headers={"Allow": allowed})
    return methods[method]


def _shapes(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    if len(path) == 2:
        return [(path[0], _ANY)]
    if len(path) == 3:
        return [(path[0], _ANY, path[2]), (path[0], _ANY, _ANY)]
    return [(path[0], _ANY, _ANY, path[3])] if len(path) == 4 else []


def _live() -> Response:
    return Response("live\n", headers=HEADERS, media_type="text/plain")
