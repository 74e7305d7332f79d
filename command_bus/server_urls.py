"""The URL of a server, before any client reads it: what is wrong with it, what in it weakens TLS, and how it is shown.

A password with an unquoted `/`, `?`, `#` or `@` cuts a URL in another place than was meant, and a client then complains of a host, a port or
an option that is half of the password. So a URL is looked at here first, and nothing of one that is not sound is ever shown.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

SCHEMES_OF_SEVERAL: Final = ("redis+sentinel://", "rediss+sentinel://", "redis+cluster://", "rediss+cluster://")
ALL_SCHEMES: Final = ("redis://", "rediss://", "unix://", *SCHEMES_OF_SEVERAL)

_QUOTE = "quote special characters of user and password: / as %2F, ? as %3F, # as %23, @ as %40, % as %25"
_UNQUOTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_SCHEME = re.compile(r"[a-z][a-z0-9+]*")
_PLACE = re.compile(r"(\[[^\]]+\]|[^:\[\]]+)(:[0-9]{1,5})?")
_END_OF_PLACE = re.compile(r"[/?#]")
_OPTION = re.compile(r"[a-z][a-z0-9_]*")
_WITH_AT = re.compile(r"(sentinel_)?(username|password|client_name|ssl_password)=", re.IGNORECASE)
_TAKEN = frozenset(
    (
        "db", "username", "password", "client_name", "socket_keepalive", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs",
        "ssl_certfile", "ssl_check_hostname", "ssl_ciphers", "ssl_keyfile", "ssl_min_version", "ssl_password",
    )
)  # fmt: skip
_LEFT = frozenset(
    ("health_check_interval", "max_connections", "retry_on_timeout", "socket_connect_timeout", "socket_timeout", "timeout")
)
"""URLs that are shared with other clients have these; the bus has its own limits of time, and pools of its own."""
_OURS = frozenset(
    (
        "command_packer", "connection_class", "credential_provider", "decode_responses", "driver_info", "encoder_class", "encoding",
        "encoding_errors", "event_dispatcher", "himport_registry", "host", "legacy_responses", "lib_name", "lib_version",
        "maint_notifications_config", "parser_class", "path", "port", "protocol", "redis_connect_func", "retry", "retry_on_error",
        "socket_keepalive_options", "socket_read_size", "socket_type", "ssl_exclude_verify_flags", "ssl_include_verify_flags",
        "ssl_ocsp_context", "ssl_ocsp_expected_cert", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled",
    )
)  # fmt: skip
"""Arguments of redis-py's connections that are no options here. Another name may be part of a password, and is not shown."""
_PROTOCOL = "2"
_DATABASE = re.compile(r"/?([0-9]{1,9}/?)?")
_MODERN = ("771", "772")  # ssl.TLSVersion.TLSv1_2 and TLSv1_3, as a URL writes them
_WORD_OF_SECRETS = "pass"
_OF_SERVICES = ("namespace", "shards")


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL, the same on every Python: `urlsplit` of some refuses brackets in any address but the first.

    Raises:
        ValueError: An address is not sound. The text of the error may have a part of the URL in it.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        return urlsplit(url)
    place = _END_OF_PLACE.split(rest, maxsplit=1)[0]
    login, at, hosts = place.rpartition("@")
    for host in hosts.split(",") if url.startswith(SCHEMES_OF_SEVERAL) else [hosts]:
        urlsplit(f"//{host}")
        if "[" in host and not _PLACE.fullmatch(host):
            raise ValueError("brackets stand around a whole address")
    return urlsplit(f"{scheme}://{login}{at}{rest[len(place) :]}")._replace(netloc=place)


def url_fault(url: str) -> str | None:
    """Return why a URL cannot be used, in words that have nothing of the URL in them; None if nothing is wrong with its form."""
    if not url.startswith(ALL_SCHEMES):
        return f"a server's URL begins with {', '.join(ALL_SCHEMES)}"
    if _UNQUOTABLE.search(url):
        return f"it has blanks or control characters; {_QUOTE}"
    try:
        parts = split_url(url)
        port = None if url.startswith(SCHEMES_OF_SEVERAL) else parts.port
    except ValueError:  # its text has a part of the URL in it
        return f"what stands where host and port belong is neither; {_QUOTE}"
    if port == 0 or (url.startswith(SCHEMES_OF_SEVERAL) and not all(map(_PLACE.fullmatch, _hosts(parts).split(",")))):
        return f"one of its addresses is no host:port; write host:port,host:port; {_QUOTE}"
    if parts.fragment or url.endswith("#"):
        return f"nothing may stand behind a #; {_QUOTE}"
    if _cut_password(parts):
        return f"an @ stands behind the server's name; {_QUOTE}"
    names = [name for name, _ in _options(parts)]
    if any(not _OPTION.fullmatch(name) for name in names) or not all("=" in each for each in parts.query.split("&") if each):
        return f"its options are not name=value&name=value; {_QUOTE}"
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        return f"{', '.join(repeated)}: each option once; of two, clients would read one or the other"
    return _refused_option(parts)


def _refused_option(parts: SplitResult) -> str | None:
    """Return what is wrong with the options; None if nothing is."""
    if parts.scheme in ("redis", "rediss") and not _DATABASE.fullmatch(parts.path):
        return f"what stands behind the address is no number of a database; {_QUOTE}"
    for given, value in _options(parts):
        name = given.removeprefix("sentinel_")
        if name == "db" and not _DATABASE.fullmatch(value):
            return f"{given} is no number of a database"
        if name in _OURS and (name, value) != ("protocol", _PROTOCOL):
            return f"{given} is no option of it: the bus decides that itself; options are {', '.join(sorted(_TAKEN))}"
        if name not in _TAKEN | _LEFT | _OURS:
            return f"its options behind the ? are not all options of a connection: {', '.join(sorted(_TAKEN))}; {_QUOTE}"
    return None


def split_service(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL of a service without the options that are not of its server, and these: `namespace` and `shards`."""
    address, _, query = url.partition("?")
    options = [each for each in query.split("&") if each]
    own = {name: unquote(value) for name, _, value in (each.partition("=") for each in options) if name in _OF_SERVICES}
    kept = [each for each in options if each.partition("=")[0] not in _OF_SERVICES]
    return f"{address}?{'&'.join(kept)}" if kept else address, own


def with_taken_options(url: str) -> str:
    """Return a sound URL with the options that the bus takes from it: with the others, redis-py would take them before the bus's own."""
    address, _, query = url.partition("?")
    kept = [each for each in query.split("&") if unquote(each.partition("=")[0]).removeprefix("sentinel_") in _TAKEN]
    return f"{address}?{'&'.join(kept)}" if kept else address


def redacted(url: str) -> str:
    """Return the URL without its password, fit for logs and errors; of one that is not sound, nothing but its scheme."""
    url = url.strip()
    scheme, found, _ = url.partition("://")
    if not found or not _SCHEME.fullmatch(scheme):
        return "***"
    if url_fault(url) is not None:
        return f"{scheme}://***"
    parts = split_url(url)
    login, at, place = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    query = "&".join(_shown_option(each) for each in parts.query.split("&"))
    return f"{scheme}://{user}{':***' if colon else ''}{at}{place}{parts.path}{'?' if query else ''}{query}"


def has_password(url: str) -> bool:
    """Return whether a sound URL has a password in it."""
    parts = split_url(url)
    login = parts.netloc.rpartition("@")[0]
    return bool(login.partition(":")[2]) or any(_WORD_OF_SECRETS in name.lower() for name, value in _options(parts) if value)


def unverified(url: str) -> str | None:
    """Return what in a URL turns off the check of the server's identity; its client reads the options decoded, so this does."""
    for given, asked in _options(_split(url)):
        name, value = given.removeprefix("sentinel_"), asked.strip().lower()  # a forged Sentinel could name any primary
        if name == "ssl_cert_reqs" and value not in ("required", "cert_required"):
            return f"ssl_cert_reqs={value}"
        if name == "ssl_check_hostname" and value not in ("1", "true", "t", "yes", "y"):
            return f"ssl_check_hostname={value}"
    return None


def weakened(url: str) -> str | None:
    """Return what in a URL allows TLS that is weaker than this library's own choice; None if nothing does."""
    for given, asked in _options(_split(url)):
        name = given.removeprefix("sentinel_")
        if name == "ssl_min_version" and asked.strip() not in _MODERN:
            return "ssl_min_version below 771 (TLS 1.2)"
        if name == "ssl_ciphers":
            return name
    return None


def _cut_password(parts: SplitResult) -> bool:
    """Return whether the @ that ends the login comes too late: a character of the password cut off what came before it."""
    if not parts.netloc:  # without a host, as for a socket's file, there is no login that could be cut
        return False
    return "@" in parts.path or any("@" in piece and not _WITH_AT.match(piece) for piece in parts.query.split("&"))


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _options(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)


def _split(url: str) -> SplitResult:
    try:
        return split_url(url)
    except ValueError:
        return urlsplit("")


def _shown_option(piece: str) -> str:
    name, equals, _ = piece.partition("=")
    secret = any(_WORD_OF_SECRETS in each.lower() for each, _ in parse_qsl(piece, keep_blank_values=True))
    return f"{name}{equals}***" if secret else piece
