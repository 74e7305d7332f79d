"""Events on their way: what subscribers without the class get, what publishing is told and returns, and the command that publishes one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, TypedDict
from uuid import UUID

from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.message import Command, Message, checked_id
from command_bus.messages.policies import Delivery, OnPoison, Priority, parts_of_delivery
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.spelling import shown

MOST_ID_BYTES: Final = 400
"""Bytes of an event id: the ids of its deliveries have the subscription's name behind it."""
_TAKEN: Final = "schedules"
"""Who watches events asks by `@schedules` for those of schedules."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:/*-]{1,200}")


class RawEvent(Message[None], name="command_bus.RawEvent"):
    """An event as a subscription by names or patterns gets it: without its class.

    Attributes:
        name: The wire name under which it was published.
        entity_type: Type of its entity.
        id: That entity's id; `entity_id()` is the same.
        event_id: Its id.
        fields: Its fields, as plain data.
    """

    name: str
    entity_type: str
    id: str
    event_id: str
    fields: dict[str, Any]

    def entity_id(self) -> str:
        """Return the id of its entity."""
        return self.id


class Publish(Command[None], name="command_bus.Publish"):
    """The command that publishes an event, for what sends commands only: a schedule, an outbox. Its id is the event's.

    Attributes:
        event: Wire name of what is published.
        payload: Its packed fields.
        options: What its envelope says beside, by letter.
        priority: As its class or its sender says.
        tenant: Who it is for.
    """

    event: str
    payload: bytes
    options: dict[str, Any]
    priority: Priority | None
    tenant: str


class Published(NamedTuple):
    """The server has an event, for each of its subscriptions.

    Attributes:
        event_id: Given or generated.
        subscriptions: Names of those that get it, or have got it before under this id; none if no subscription is for it.
    """

    event_id: str
    subscriptions: tuple[str, ...]


class EventOptions(TypedDict, total=False):
    """Options of an event that a handler publishes; see `CommandContext.publish`."""

    headers: Mapping[str, str] | None
    priority: Priority | None
    delay: float
    at: datetime | None
    expires: float | None


class PublishOptions(EventOptions, total=False):
    """Options of `CommandBus.publish`."""

    event_id: str | UUID | None


class SubscriptionOptions(TypedDict, total=False):
    """Options of a subscription: what it says of its deliveries, as a class says it of its commands; see `subscribes`."""

    retry: RetryPolicy | None
    delivery: Delivery | None
    attempt_timeout: float | None
    on_poison: OnPoison | None
    durable: bool


class Declared(NamedTuple):
    """The part of a subscription that one handler is.

    Attributes:
        subscription: Its name.
        pattern: The event's name, or a pattern of names.
        revision: Number of the declaration.
    """

    subscription: str
    pattern: str
    revision: int


def checked_event_id(event_id: str | UUID) -> str:
    """Return an event id as text.

    Raises:
        InvalidCommand: It is empty, too long or no text.
    """
    text = checked_id(event_id)
    if (size := len(text.encode())) > MOST_ID_BYTES:
        raise InvalidCommand(f"an event id may have {MOST_ID_BYTES} bytes, this one has {size}: use a digest of it")
    return text


def checked_subscription(name: str) -> str:
    """Return the name of a subscription.

    Raises:
        InvalidSettings: It cannot be one.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == _TAKEN:
        raise InvalidSettings(
            f"subscription {shown(name)} must have 1 to 64 letters, digits, '_', '.' and '-', and not be {_TAKEN!r}"
        )
    return name


def checked_pattern(pattern: str) -> str:
    """Return a pattern of names of events: a name in which each `*` stands for any text.

    Raises:
        InvalidSettings: It is none.
    """
    if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
        raise InvalidSettings(
            f"{shown(pattern)} is no name of events: 1 to 200 of letters, digits, '_', '.', ':', '/', '-', and '*'"
        )
    return pattern


def matcher(pattern: str) -> Callable[[str], object]:
    """Return what says whether a pattern stands for a name."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL).fullmatch


_BUILT_IN: Final = frozenset({Publish.spec().name, "command_bus.Chain", "command_bus.Group", "command_bus.Hold"})


def handles(commands: Collection[str], name: str) -> bool:
    """Return whether a worker that announces these names, and patterns of them, handles a command of this name."""
    if name in commands or name in _BUILT_IN:
        return True
    event, subscription = parts_of_delivery(name)
    if not subscription:
        return False
    parts = (each for each in map(parts_of_delivery, commands) if each[1] in (subscription, family_of(subscription)))
    return any("*" in pattern and matcher(pattern)(event) for pattern, _ in parts)


def family_of(subscription: str) -> str:
    """Return what stands for all subscriptions whose name begins as this one's: `webhook.*` for `webhook.crm`. Handlers may be of all of them."""
    return subscription.partition(".")[0] + ".*"
