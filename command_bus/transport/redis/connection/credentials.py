"""User, password and TLS files of a client: the arguments of its connections that come from the settings, not from the URL.

redis-py takes the parts of a URL before any argument, so these fill in what the URL lacks: a URL without secrets can be kept in a
configuration file, and the password comes from the environment. The development server has neither users nor TLS: without a URL
none of this is used.
"""

from __future__ import annotations

import ssl
from typing import Any

from command_bus.errors import InvalidSettings
from command_bus.server_urls import unverified
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
