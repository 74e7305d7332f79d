"""User, password and TLS files of a client: the arguments of its connections that come from the settings, not from the URL.

redis-py takes the parts of a URL before any argument, so these fill in what the URL lacks: a URL without secrets can be kept in a
configuration file, and the password comes from the environment. The development server has neither users nor TLS: without a URL
none of this is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from command_bus.errors import InvalidSettings, TransportUnavailable
from command_bus.server_urls import split_url, unverified
from command_bus.settings import BusSettings


def connection_options(settings: BusSettings) -> dict[str, Any]:
    """Return the keyword arguments for a connection to the server that the settings name.

    Raises:
        InvalidSettings: A certificate file cannot be read.
    """
    url = settings.server_url
    if url is None:
        return {}
    options: dict[str, Any] = {}
    if settings.username is not None:
        options["username"] = settings.username
    if settings.password is not None:
        options["password"] = settings.password.get_secret_value()
    if url.startswith("rediss"):
        options |= _tls(settings)
    return options


def _tls(settings: BusSettings) -> dict[str, Any]:
    """Require TLS 1.2, and read the files of the settings now: later a missing one would look like a server that cannot be reached."""
    options: dict[str, Any] = {"ssl_min_version": ssl.TLSVersion.TLSv1_2}
    if unverified(settings.server_url or "") is None:
        options["ssl_check_hostname"] = True  # the default of redis-py before 6 accepts a certificate of any host
    trial = ssl.create_default_context()
    try:
        if settings.tls_ca is not None:
            trial.load_verify_locations(str(settings.tls_ca))
            options["ssl_ca_certs"] = str(settings.tls_ca)
        if settings.tls_cert is not None and settings.tls_key is not None:
            trial.load_cert_chain(str(settings.tls_cert), str(settings.tls_key))
            options |= {"ssl_certfile": str(settings.tls_cert), "ssl_keyfile": str(settings.tls_key)}
    except (OSError, ssl.SSLError) as error:  # SSLError is an OSError, too: named for the reader
        raise InvalidSettings(
            f"tls_ca, tls_cert, tls_key: a file cannot be used ({error.__class__.__name__}: {error}); "
            "they are PEM files, and the key belongs to the certificate"
        ) from error
    return options


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
