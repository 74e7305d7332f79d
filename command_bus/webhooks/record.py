"""The record of a webhook: the events that it receives, where, and how; and how far its pump has come."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final, get_args
from urllib.parse import urlsplit

from command_bus.admin.events import CommandEvent, EventKind
from command_bus.clock import duration_fault
from command_bus.errors import InvalidSettings
from command_bus.messages.event import checked_pattern
from command_bus.messages.message import check_entity_type
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.randomness import token
from command_bus.serialization.stored_fields import JsonNote
from command_bus.transport.mailboxes import SCHEDULES
from command_bus.transport.records import SENT_KINDS
from command_bus.webhooks.signing import checked_secret

DELIVERIES: Final = "webhook"
"""The entity type of deliveries. What happens to them is never told to a webhook: it would never end."""

BUSY: Final = (429, 503)
"""Answers with which a receiver may ask to wait."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LONGEST_URL: Final = 2_000
_LONGEST_TIMEOUT: Final = 60.0
_MOST_SECRETS: Final = 5
MOST_DELAYS: Final = 30


@dataclass(frozen=True, slots=True)
class WebhookRecord(JsonNote):
    """A webhook as it is stored."""

    fault = "the record of a webhook cannot be read: remove it, or use the release that wrote it"
    is_whole = True

    name: str
    url: str = field(repr=False)  # of many receivers it is the secret
    kinds: tuple[str, ...]
    entity_types: tuple[str, ...]
    secrets: tuple[str, ...] = field(repr=False)
    timeout: float
    allow_http: bool
    allow_private: bool
    retries: tuple[float, ...] | None
    created_ms: int
    paused: str = ""
    events: tuple[str, ...] = ()
    key: str = field(default="", repr=False)
    """Of the seals of its deliveries; who may not read the record makes none. See `deliveries`."""

    def __post_init__(self) -> None:
        _ = self.retry  # checks the delays

    @property
    def retry(self) -> RetryPolicy | None:
        """How a delivery is tried again; None: as its class says."""
        if self.retries is None:
            return None
        return RetryPolicy(delays=self.retries, attempts=len(self.retries) + 1) if self.retries else RetryPolicy(attempts=1)

    def wants(self, event: CommandEvent) -> bool:
        """Return whether the webhook gets an event. It gets none that a sender can write of any command."""
        if event.kind not in self.kinds or event.kind in SENT_KINDS or event.entity_type == DELIVERIES:
            return False
        if event.schedule:
            return SCHEDULES in self.entity_types
        return not self.entity_types or event.entity_type in self.entity_types


@dataclass(frozen=True, slots=True)
class PumpState(JsonNote):
    """The place that the deliveries of a webhook have come to.

    Attributes:
        cursor: Behind the last event that was looked at.
        holder: The pump that has the lease; empty: none.
        until_ms: When that ends, by the server's time.
        events: How many events became deliveries.
        gaps: The number of times events were deleted before they were looked at.
        gap_ms: When that was noticed last; 0: never.
    """

    fault = "how far the pump of a webhook is cannot be read: remove the webhook, and put it again"

    cursor: str
    holder: str = ""
    until_ms: int = 0
    events: int = 0
    gaps: int = 0
    gap_ms: int = 0


@dataclass(frozen=True, slots=True)
class WebhookInfo:
    """A webhook, for operators. Its secrets are not shown.

    Attributes:
        name: Its name.
        url: The place where it is sent to.
        kinds: Events that it receives, by kind.
        entity_types: Events of these entity types; empty: of all.
        timeout: Seconds for a request.
        secrets: How many sign.
        published: Events of applications that it receives, by name or pattern.
        paused: Why nothing is sent; empty: it is.
        events: How many events became deliveries.
        gaps: The number of times events were deleted before its pump had looked at them: watch them with a larger `kept`.
        gap_ms: When that was noticed last; 0: never.
        pump: The process that has the lease; empty: none has.
    """

    name: str
    url: str = field(repr=False)
    kinds: tuple[str, ...]
    entity_types: tuple[str, ...]
    timeout: float
    secrets: int
    paused: str
    events: int
    gaps: int
    gap_ms: int
    pump: str
    published: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: WebhookRecord, state: PumpState | None, now_ms: int) -> WebhookInfo:
        """Return what a record and its pump's state say."""
        known = state or PumpState("")
        return cls(
            record.name,
            record.url,
            record.kinds,
            record.entity_types,
            record.timeout,
            len(record.secrets),
            record.paused,
            known.events,
            known.gaps,
            known.gap_ms,
            known.holder if known.until_ms > now_ms else "",
            record.events,
        )


def checked_name(name: str) -> str:
    """Return a webhook's name.

    Raises:
        InvalidSettings: It cannot be one.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSettings(f"webhook {name!r} must have 1 to 64 letters, digits, '_', '.' and '-'")
    return name


def checked(record: WebhookRecord) -> WebhookRecord:
    """Return the record of a webhook with sorted kinds and types, and a key.

    Raises:
        InvalidSettings: Something of it is not what it may be.
        InvalidCommand: One is no entity type.
    """
    wanted, types = set(record.kinds), set(record.entity_types)
    known = [each for each in get_args(EventKind) if each not in SENT_KINDS]
    if said := sorted(wanted.intersection(SENT_KINDS)):
        raise InvalidSettings(
            f"kinds: {', '.join(said)}: a sender says so, of any command, and what a webhook tells is signed: give kinds that workers write"
        )
    unknown = sorted(wanted.difference(known))
    if not (wanted or record.events) or unknown:
        raise InvalidSettings(f"kinds: {', '.join(unknown) or 'none is named'}: give some of {', '.join(known)}")
    if DELIVERIES in types:
        raise InvalidSettings(f"entity_types: {DELIVERIES!r} are the deliveries themselves, which no webhook is told of")
    if not 1 <= len(record.secrets) <= _MOST_SECRETS:
        raise InvalidSettings(f"{len(record.secrets)} secrets: 1 to {_MOST_SECRETS}, the newest first")
    if (fault := duration_fault(record.timeout)) is not None or record.timeout > _LONGEST_TIMEOUT:
        raise InvalidSettings(f"timeout {fault or f'is at most {_LONGEST_TIMEOUT:g} seconds'}")
    checked_name(record.name)
    _check_url(record.url, allow_http=record.allow_http)
    return replace(
        record,
        kinds=tuple(sorted(wanted)),
        entity_types=tuple(sorted(each if each == SCHEDULES else check_entity_type(each) for each in types)),
        secrets=tuple(map(checked_secret, record.secrets)),
        timeout=float(record.timeout),
        events=tuple(sorted({checked_pattern(each) for each in record.events})),
        key=token(32).hex(),
    )


def _check_url(url: str, *, allow_http: bool) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    fault = None
    if len(url) > _LONGEST_URL or not url.isprintable() or " " in url or not host or port == 0:
        fault = f"is no URL of a web server, of at most {_LONGEST_URL:,} characters"
    elif parts.scheme == "http" and not allow_http:
        fault = "is not https: what is sent could be read and changed on its way (allow_http=True allows it)"
    elif parts.scheme not in ("http", "https"):
        fault = "begins with https://"
    elif "@" in parts.netloc:
        fault = "has no user and password: the signature says who sends"
    elif parts.fragment:
        fault = "has no fragment: it would not be sent"
    if fault is not None:
        raise InvalidSettings(f"url of a webhook {fault}")
