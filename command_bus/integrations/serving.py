"""Serves the dashboard or the gateway by itself, with uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from command_bus.errors import InvalidSettings, MissingExtra

__all__ = ["serve_until_stopped"]

_GRACE = 2
"""Seconds that requests get at the end; open pages and streams listen for ever."""
_MOST_AT_ONCE = 2000
_IDLE = 30


async def serve_until_stopped(
    app: Any, host: str, port: int, told: Callable[[str], None], *, extra: str, proxies: Sequence[str] = ()
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        app: The ASGI application.
        host: Address to listen on.
        port: Port; 0 takes any free one.
        told: Is given the address once it listens.
        extra: With which uvicorn comes.
        proxies: Addresses or networks of proxies, which are believed whose requests they pass on (`X-Forwarded-For`, `X-Forwarded-Proto`).

    Raises:
        InvalidSettings: The port is taken, or not permitted.
        MissingExtra: There is no uvicorn.
    """
    try:
        import uvicorn
    except ImportError as error:  # pragma: no cover - depends on the environment
        raise MissingExtra(f"serving it needs uvicorn: pip install 'command-bus[{extra}]'") from error

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise InvalidSettings(f"{host}, port {port}: {error.strerror or error}") from None
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        limit_concurrency=_MOST_AT_ONCE,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_GRACE,
    )
    with listening:
        shown = f"[{host}]" if ":" in host else host
        told(f"http://{shown}:{listening.getsockname()[1]}")
        with contextlib.suppress(asyncio.CancelledError):
            await uvicorn.Server(config).serve(sockets=[listening])
