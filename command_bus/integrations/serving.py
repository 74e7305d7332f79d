"""Serves the dashboard or the gateway by itself, with uvicorn; also below a path that a proxy shows."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from command_bus.clock import mono
from command_bus.errors import InvalidSettings, MissingExtra
from command_bus.integrations.web import is_from, is_probe, networks_of, reread_on_hangup

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
        prefix: What all paths begin with; empty: nothing, unless a proxy names something.
        proxies: Addresses or networks of proxies, whose header `X-Forwarded-Prefix` counts more than `prefix`. That of others is not looked at.

    Raises:
        InvalidSettings: The prefix is none, or a proxy is neither an address nor a network.
    """

    def __init__(self, app: Any, prefix: str = "", proxies: Sequence[str] = ()) -> None:
        self._app = app
        self._prefix = checked_prefix(prefix)
        self._proxies = networks_of(proxies)

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] == "http" and (prefix := self._told(scope) or self._prefix):
            scope = _below(scope, prefix)
        await self._app(scope, receive, send)

    def _told(self, scope: Mapping[str, Any]) -> str:
        """Return the prefix that a proxy names; empty: none does."""
        named = [value.decode("latin-1").rstrip("/") for name, value in scope["headers"] if name == _HEADER]
        return named[0] if len(named) == 1 and _is_prefix(named[0]) and is_from(scope.get("client"), self._proxies) else ""


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


_GRACE = 2
"""Seconds that requests get at the end; open pages and streams listen for ever."""
_IDLE = 30
MOST_AT_ONCE = 2000
"""Requests that are answered at a time; further ones get 503, except probes. Of so many connections and some more, the idlest goes."""
_SPARE = 64
"""Connections beyond that: for probes, and for those that are answered 503."""
HEAD_TIMEOUT = 10.0
"""Seconds that a connection may be open before its first request, and in which the head of each request has to arrive."""
UNREAD_TIMEOUT = 10.0
"""Seconds in which a client has to take `_LEAST_READ` bytes of what is sent to it, or all there is."""
_LEAST_READ = 16_384
_FILES = 16_384
"""Files that should be permitted to be open: connections, those of mounted applications, and more."""


class _Impatient(asyncio.Protocol):
    """A protocol of uvicorn that closes a connection on which no request comes, or whose answers are not read.

    uvicorn itself limits only the time between two requests, so that connections which are silent, or which do not read, would use up all there
    may be. It refuses new ones then, all others included: here the one goes that has kept the server waiting for longest.
    """

    transport: asyncio.Transport
    connections: set[Any]
    cycle: Any
    waits_since: float = 0.0
    """Since when it is the client's turn."""
    _closing: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request, and make room for this connection."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=0)  # pauses at the first byte that is not read, also while it closes
        self.waits_since = mono()
        self._wait()
        if len(self.connections) > MOST_AT_ONCE + _SPARE:
            min(
                filter(_Impatient.is_waiting, self.connections), key=lambda each: each.waits_since, default=self
            ).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        if self.is_answering():
            self._end_wait()
        elif self._closing is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._end_wait()
        self._end_unread()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.waits_since = mono()
        super().on_response_complete()  # type: ignore[misc]

    def pause_writing(self) -> None:
        """Wait until the client has read."""
        super().pause_writing()
        self.waits_since = mono()
        self._look_again()

    def resume_writing(self) -> None:
        """Go on: it has."""
        self._end_unread()
        super().resume_writing()

    def is_waiting(self) -> bool:
        """Return whether it is the client's turn, to ask or to read."""
        return self._unread is not None or not (self.is_answering() or self.transport.is_closing())

    def is_answering(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._closing = asyncio.get_running_loop().call_later(HEAD_TIMEOUT, self._close)

    def _end_wait(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _look_again(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._unread = asyncio.get_running_loop().call_later(UNREAD_TIMEOUT, self._cut_off, left - _LEAST_READ)

    def _cut_off(self, most_left: int) -> None:
        """End it if too little was read. It may have been closed before: who does not read keeps that from happening."""
        if self.transport.get_write_buffer_size() > most_left:
            self.transport.abort()
        else:
            self._look_again()

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _close(self) -> None:
        self._closing = None
        if not self.is_answering():
            self.transport.close()


class _Bounded:
    """An application that answers so many requests at a time. Probes do not count: they say whether this process lives.

    Args:
        app: The application.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._answering = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or run the life of the application."""
        if scope["type"] != "http" or is_probe(scope):
            await self._app(scope, receive, send)
        elif self._answering >= MOST_AT_ONCE:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", b"5"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": b"Service Unavailable"})
        else:
            self._answering += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._answering -= 1


async def serve_until_stopped(
    app: Any,
    host: str,
    port: int,
    told: Callable[[str], None],
    *,
    extra: str,
    proxies: Sequence[str] = (),
    prefix: str = "",
    prefixing: Sequence[str] = (),
) -> None:
    """Serve until SIGINT or SIGTERM. On SIGHUP files of users and tokens are read again.

    Args:
        app: The ASGI application.
        host: Address to listen on.
        port: Number to listen at; 0 takes any free one.
        told: Is given the address once it listens.
        extra: With which uvicorn comes.
        proxies: Addresses or networks of proxies, which are believed whose requests they pass on (`X-Forwarded-For`, `X-Forwarded-Proto`).
        prefix: The path below which a proxy shows it, such as `/ops`.
        prefixing: Those of proxies that are believed what this path is (`X-Forwarded-Prefix`).

    Raises:
        InvalidSettings: The port is taken, or not permitted; the prefix is no path.
        MissingExtra: There is no uvicorn.
    """
    try:
        import uvicorn
        from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
        from uvicorn.protocols.http.h11_impl import H11Protocol  # httptools, if it is there, reads headers without a limit
    except ImportError as error:  # pragma: no cover - depends on the environment
        raise MissingExtra(f"serving it needs uvicorn: pip install 'command-bus[{extra}]'") from error

    app = _Bounded(app)
    if proxies:
        app = ProxyHeadersMiddleware(app, list(proxies))
    app = Prefixed(app, prefix, prefixing)  # outside: it looks at the proxy's own address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise InvalidSettings(f"{host}, port {port}: {error.strerror or error}") from None
    _permit_files()
    config = uvicorn.Config(
        app,
        http=type("Impatient", (_Impatient, H11Protocol), {}),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_GRACE,
    )
    reread_on_hangup(asyncio.get_running_loop())
    with listening:
        shown = f"[{host}]" if ":" in host else host
        told(f"http://{shown}:{listening.getsockname()[1]}{checked_prefix(prefix)}")
        with contextlib.suppress(asyncio.CancelledError):
            await uvicorn.Server(config).serve(sockets=[listening])


def _permit_files() -> None:
    """Raise how many files this process may have open, where its limit is low and may be raised."""
    try:
        import resource
    except ImportError:  # pragma: no cover - not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
