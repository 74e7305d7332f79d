"""The policies of delivery, as frozen values: per message class, per entity type, per bus.

Nothing here does I/O. The defaults are those of the project's design: at least once, three attempts with exponential backoff,
one mailbox per entity, a poisoned command is dead-lettered and its entity goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from command_bus.clock import duration_fault
from command_bus.errors import InvalidSettings
from command_bus.messages.history import HistoryChoice, checked_history
from command_bus.messages.limits import Limit
from command_bus.messages.retry_policy import RetryPolicy, require

Delivery = Literal["at_least_once", "at_most_once"]
OnPoison = Literal["skip", "park"]
Priority = Literal["high", "normal", "low"]
"""Which entities that wait for a worker come first. While all three wait they start as 16 : 4 : 1; none waits for ever."""
PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")


@dataclass(frozen=True, slots=True)
class PerEntity:
    """Every entity has a mailbox of its own, which exists only while it has work. The default.

    Attributes:
        shard_by: The part of an id before this text alone decides its shard, whatever the entity's type; None: the whole mailbox name does.
    """

    shard_by: str | None = None

    def __post_init__(self) -> None:
        require(
            self.shard_by is None
            or (isinstance(self.shard_by, str) and 1 <= len(self.shard_by) <= 16 and self.shard_by.isascii()),
            f"per_entity(shard_by={self.shard_by!r}): 1 to 16 ASCII characters, as in shard_by='/'",
        )

    def __str__(self) -> str:
        return "per_entity" if self.shard_by is None else f"per_entity:{self.shard_by}"


@dataclass(frozen=True, slots=True)
class Lanes:
    """Entities are pinned to `count` shared mailboxes, each strictly sequential: less memory for huge fan-outs.

    A slow or parked entity holds up the others of its lane.
    """

    count: int

    def __post_init__(self) -> None:
        require(isinstance(self.count, int) and 1 <= self.count <= 65_536, f"lanes({self.count!r}): from 1 to 65,536")

    def __str__(self) -> str:
        return f"lanes:{self.count}"


MailboxPolicy = PerEntity | Lanes
"""What mailboxes the entities of a type have."""

Mailbox = MailboxPolicy
"""The former name of `MailboxPolicy`."""


def per_entity(shard_by: str | None = None) -> PerEntity:
    """Return the default mailbox policy.

    With `shard_by="/"`, entities whose ids have the same text before the first slash are in one shard, whatever their types: so a command of
    several of them can be accepted where there are several shards. It is recorded in Redis and changes only when drained.
    """
    return PerEntity(shard_by)


def lanes(count: int) -> Lanes:
    """Pin the entities of a type to `count` shared mailboxes; the count is recorded in Redis and changes only when drained."""
    return Lanes(count)


def mailbox_from_text(text: str) -> MailboxPolicy:
    """Read the policy that `str(policy)` wrote.

    Raises:
        InvalidSettings: The text is of no known policy.
    """
    if text == "per_entity":
        return PerEntity()
    kind, _, value = text.partition(":")
    if kind == "lanes" and value.isdecimal():
        return Lanes(int(value))
    if kind == "per_entity" and value:
        return PerEntity(value)
    raise InvalidSettings(f"unknown mailbox policy {text!r}: this namespace is used by a newer version")


@dataclass(frozen=True, slots=True)
class EntityPolicy:
    """The policies of all entities of one type.

    Attributes:
        mailbox: `per_entity()` or `lanes(n)`; recorded in Redis, a client that disagrees is refused.
        max_depth: Commands that one mailbox may hold; None takes the bus's `max_depth`.
        on_poison: What a poisoned command does to its entity; None takes `"skip"`. A command class may say otherwise.
        priority: What its commands have whose class or dispatch says nothing else.
        delivery: What an interruption means to commands whose class does not say; None takes the bus's `delivery`.
        retry: How failures of commands are retried whose class does not say; None takes the bus's `retry`.
        attempt_timeout: Seconds that one attempt may take of commands whose class does not say; None takes the bus's `attempt_timeout`.
        call_timeout: Seconds that a call waits if it names no timeout; None takes the bus's `call_timeout`.
        history: What is kept of the ends of commands whose class does not say; None takes the bus's `history`, `False` is nothing.
        limits: Those of each entity (`scope="entity"`), and of all of them together (`scope="type"`); at most one of each.
    """

    mailbox: MailboxPolicy = field(default_factory=PerEntity)
    max_depth: int | None = None
    on_poison: OnPoison | None = None
    priority: Priority = "normal"
    delivery: Delivery | None = None
    retry: RetryPolicy | None = None
    attempt_timeout: float | None = None
    call_timeout: float | None = None
    history: HistoryChoice | None = None
    limits: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        require(self.max_depth is None or self.max_depth >= 1, f"EntityPolicy(max_depth={self.max_depth!r}): at least 1")
        require(self.on_poison in (None, "skip", "park"), f"EntityPolicy(on_poison={self.on_poison!r}): 'skip' or 'park'")
        require(self.priority in PRIORITIES, f"EntityPolicy(priority={self.priority!r}): 'high', 'normal' or 'low'")
        deliveries = "'at_least_once' or 'at_most_once'"
        require(
            self.delivery in (None, "at_least_once", "at_most_once"), f"EntityPolicy(delivery={self.delivery!r}): {deliveries}"
        )
        require(self.retry is None or isinstance(self.retry, RetryPolicy), f"EntityPolicy(retry={self.retry!r}): a RetryPolicy")
        for name, value in (("attempt_timeout", self.attempt_timeout), ("call_timeout", self.call_timeout)):
            fault = None if value is None else duration_fault(value)
            require(fault is None, f"EntityPolicy({name}={value!r}): {name} {fault}")
        checked_history("EntityPolicy(history=…)", self.history)
        for limit in self.limits:
            require(
                limit.scope in ("entity", "type") and limit.limits_anything,
                "EntityPolicy(limits=…): each has scope='entity' or 'type', and a rate or a concurrency",
            )
        scopes = [limit.scope for limit in self.limits]
        require(
            len(set(scopes)) == len(scopes),
            "EntityPolicy(limits=…): two limits have one scope; put rate and concurrency into one",
        )
        require(
            "entity" not in scopes or not isinstance(self.mailbox, Lanes),
            "EntityPolicy(limits=…): entities that share lanes have no limit of their own; take scope='type'",
        )


OF_SUBSCRIPTION: Final = "@"
"""Stands between the entity type of an event and the subscription that it is delivered to, as in `account@ledger`."""


def delivered_name(event: str, subscription: str) -> str:
    """Return the wire name, entity type or id under which a subscription gets what has this one."""
    return f"{event}{OF_SUBSCRIPTION}{subscription}"


def parts_of_delivery(name: str) -> tuple[str, str]:
    """Return the name of an event and of the subscription that it is delivered to; the latter is empty for a name that is no delivery's."""
    event, at, subscription = name.rpartition(OF_SUBSCRIPTION)
    return (event, subscription) if at else (name, "")
