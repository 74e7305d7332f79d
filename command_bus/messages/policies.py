"""The policies of delivery, as frozen values: per message class, per entity type.

Nothing here does I/O. The defaults are those of the project's design: at least once, three attempts with exponential backoff,
one mailbox per entity, a poisoned command is dead-lettered and its entity goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from command_bus.clock import duration_fault
from command_bus.errors import InvalidSettings
from command_bus.messages.limits import Limit

__all__ = [
    "Delivery",
    "EntityPolicy",
    "Lanes",
    "Mailbox",
    "MailboxPolicy",
    "OnPoison",
    "PerEntity",
    "RetryPolicy",
    "lanes",
    "mailbox_from_text",
    "per_entity",
]

Delivery = Literal["at_least_once", "at_most_once"]
OnPoison = Literal["skip", "park"]
_STEEPEST = 1000  # its 64th power is still a float


def require(condition: bool, message: str) -> None:
    """Raise `InvalidSettings(message)` unless the condition holds."""
    if not condition:
        raise InvalidSettings(message)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The policy of retries: how often and how soon. While a failed command waits it keeps its place: no command of its entity overtakes it.

    Attributes:
        attempts: Starts in all, at least 1; interrupted starts count.
        delay: Seconds before the second attempt.
        backoff: `"exponential"` multiplies by `factor` each time, `"fixed"` does not.
        factor: The multiplier of exponential backoff, 1 to 1,000.
        max_delay: Cap in seconds.
        jitter: Share of the delay that is random, 0 to 1: the actual delay is uniform in `delay * (1 ± jitter)`.
        retry_on: Exception types that are retried; others are dead-lettered at once.
        give_up_on: Exception types that are never retried, even if `retry_on` has a base of theirs.
    """

    attempts: int = 3
    delay: float = 0.1
    backoff: Literal["exponential", "fixed"] = "exponential"
    factor: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.2
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        require(isinstance(self.attempts, int) and self.attempts >= 1, f"RetryPolicy(attempts={self.attempts!r}): at least 1")
        for name, value in (("delay", self.delay), ("max_delay", self.max_delay)):
            fault = duration_fault(value, zero=True)
            require(fault is None, f"RetryPolicy({name}={value!r}): {name} {fault}")
        require(1 <= self.factor <= _STEEPEST, f"RetryPolicy(factor={self.factor!r}): from 1 to {_STEEPEST:,}")
        require(0 <= self.jitter <= 1, f"RetryPolicy(jitter={self.jitter!r}): a share from 0 to 1")
        require(self.backoff in ("exponential", "fixed"), f"RetryPolicy(backoff={self.backoff!r}): 'exponential' or 'fixed'")

    def retries(self, error: BaseException) -> bool:
        """Return whether an error of this type is worth another attempt."""
        return isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)

    def delay_after(self, attempt: int, uniform: Callable[[float, float], float]) -> float:
        """Return the seconds to wait after the given failed attempt (1 for the first)."""
        base = self.delay if self.backoff == "fixed" else self.delay * self.factor ** min(attempt - 1, 64)
        base = min(base, self.max_delay)
        return max(0.0, base * uniform(1 - self.jitter, 1 + self.jitter)) if self.jitter else base


@dataclass(frozen=True, slots=True)
class PerEntity:
    """Every entity has a mailbox of its own, which exists only while it has work. The default."""

    def __str__(self) -> str:
        return "per_entity"


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


def per_entity() -> PerEntity:
    """Return the default mailbox policy."""
    return PerEntity()


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
    kind, _, count = text.partition(":")
    if kind == "lanes" and count.isdecimal():
        return Lanes(int(count))
    raise InvalidSettings(f"unknown mailbox policy {text!r}: this namespace is used by a newer version")


@dataclass(frozen=True, slots=True)
class EntityPolicy:
    """The policies of all entities of one type.

    Attributes:
        mailbox: `per_entity()` or `lanes(n)`; recorded in Redis, a client that disagrees is refused.
        max_depth: Commands that one mailbox may hold; None takes the bus's `max_depth`.
        on_poison: What a poisoned command does to its entity; None takes `"skip"`. A command class may say otherwise.
        limits: Of each entity (`scope="entity"`), and of all of them together (`scope="type"`); at most one of each.
    """

    mailbox: MailboxPolicy = field(default_factory=PerEntity)
    max_depth: int | None = None
    on_poison: OnPoison | None = None
    limits: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        require(self.max_depth is None or self.max_depth >= 1, f"EntityPolicy(max_depth={self.max_depth!r}): at least 1")
        require(self.on_poison in (None, "skip", "park"), f"EntityPolicy(on_poison={self.on_poison!r}): 'skip' or 'park'")
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
