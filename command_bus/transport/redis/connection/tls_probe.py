"""`with_tls_hint`: find out whether a server cannot be reached because only one side uses TLS.

TLS on one side alone looks like a server that closes the connection, or one that never answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from command_bus.errors import TransportUnavailable
from command_bus.server_urls import split_url

_PATIENCE = 1.0  # seconds for one look at a server that was asked in vain for longer
_PORT = 6379


@asynccontextmanager
async def with_tls_hint(url: str) -> AsyncGenerator[None]:
    """Add to the error of a server that cannot be reached what is wrong, if it speaks TLS and the URL does not, or the reverse.

    Raises:
        TransportUnavailable: As the body raised it.
    """
    try:
        yield
    except TransportUnavailable as error:
        hint = await _hint(url)
        if hint is None:
            raise
        raise TransportUnavailable(f"{error.message}: {hint}", outcome_unknown=error.outcome_unknown) from error


async def _hint(url: str) -> str | None:
    parts = split_url(url)
    if parts.scheme not in ("redis", "rediss") or parts.hostname is None:
        return None
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(_PATIENCE):
            if parts.scheme == "redis" and await _speaks_tls(parts.hostname, parts.port or _PORT):
                return "the server speaks TLS, use rediss:// instead of redis://"
            if parts.scheme == "rediss" and await _speaks_plainly(parts.hostname, parts.port or _PORT):
                return "the server does not speak TLS on this port, give its TLS port, or use redis:// instead of rediss://"
    return None


async def _speaks_tls(host: str, port: int) -> bool:
    """Return whether the server shakes hands. Nothing is sent over that connection, so any certificate will do."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, port, ssl=anybody)
    writer.close()
    return True


async def _speaks_plainly(host: str, port: int) -> bool:
    """Return whether the server answers a PING, be it with a refusal."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"PING\r\n")
        return (await reader.read(1)) in (b"+", b"-")
    finally:
        writer.close()
