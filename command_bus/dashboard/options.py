"""Arguments of a dashboard, and the things that its requests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from command_bus.bus import CommandBus
from command_bus.dashboard.masking import Masking
from command_bus.dashboard.pulse import Pulse
from command_bus.dashboard.shared_reads import SharedReads
from command_bus.dashboard.signing import Signer
from command_bus.dashboard.users import Users
from command_bus.errors import InvalidSettings

TraceLink = Callable[[str], str]
"""Given a trace id, returns the address of the trace's page."""


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `dashboard`, checked."""

    title: str
    hosts: Collection[str]
    secure: bool | None
    trace_link: TraceLink | None
    board_link: str


@dataclass(frozen=True, slots=True)
class State:
    """The things that requests share."""

    bus: CommandBus
    users: Users
    signer: Signer
    masking: Masking
    options: Options
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
