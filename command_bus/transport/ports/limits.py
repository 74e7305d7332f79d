"""The side of a transport that concerns limits: plain values, and the protocol for operators and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Declared = Literal["written", "same", "older", "differs"]


class StoredRule(NamedTuple):
    """A rule in the texts of `messages.limits.rule_text`.

    Attributes:
        name: `bus`, `type:<entity type>`, `entity:<entity type>` or `name:<name>`.
        declared: What code declares; empty if it declares none.
        put: What an operator put; empty if none did.
    """

    name: str
    declared: str
    put: str

    @property
    def in_force(self) -> str:
        """What holds."""
        return self.put or self.declared


class LimitUse(NamedTuple):
    """A bucket, and who is behind it.

    Attributes:
        scope: A rule's name, behind it a colon and the entity or the key if each has its own bucket.
        tokens: Free now; None if there is no rate.
        used: Places that are taken.
        waiting: Entities that wait.
        free_in: Seconds until the first of them may start; None if that depends on a place that is given up.
        held_for: Seconds for which a handler's hold goes on; 0 if there is none.
    """

    scope: str
    tokens: float | None
    used: int
    waiting: int
    free_in: float | None
    held_for: float = 0.0


@dataclass(frozen=True, slots=True)
class LimitWaitInfo:
    """The place of an entity that waits for a limit.

    Attributes:
        limit: For people: `bus`, `type:shop`, `entity:shop[7]`, `shopify[acme]`.
        since_ms: When it was refused first, by the server's clock.
        before: Entities that stand before it.
        free_in: Seconds until the first of them may start; None if that depends on what runs.
    """

    limit: str
    since_ms: int
    before: int
    free_in: float | None

    def __str__(self) -> str:
        when = "free when one ends" if self.free_in is None else f"free in {self.free_in:.1f} s"
        return f"limit {self.limit}: {when} ({self.before:,} before it)"


def limit_label(scope: str) -> str:
    """Return a scope for people: `bus`, `type:shop`, `entity:shop[7]`, `shopify[acme]`."""
    kind, _, rest = scope.partition(":")
    name, colon, key = rest.partition(":")
    if kind == "name":
        return f"{name}[{key}]" if colon else name
    return f"{kind}:{name}[{key}]" if colon else scope


class BusLimits(Protocol):
    """Writes and reads the limits of a namespace."""

    async def declare(self, rules: Mapping[str, str]) -> dict[str, Declared]:
        """Write what code declares, rule by rule; return what came of each."""
        ...

    async def declare_keyed(self, names: Mapping[str, Sequence[str]]) -> None:
        """Write which entity types have classes that name limits by a key, each with the limits' names."""
        ...

    async def put(self, rule: str, text: str) -> bool:
        """Write what an operator puts; empty takes it back. Return whether something changed."""
        ...

    async def hold(self, scope: str, seconds: float) -> bool:
        """Let nothing of a scope start for so long; return False if no limit is set for it, so that nothing is held."""
        ...

    async def release(self, scope: str) -> None:
        """End what `hold` began."""
        ...

    async def rules(self) -> list[StoredRule]:
        """Return all rules, by name."""
        ...

    async def keyed(self) -> dict[str, list[str]]:
        """Return the names of limits that classes name, by entity type."""
        ...

    async def uses(self, rules: Sequence[str]) -> list[LimitUse]:
        """Return the scopes of rules that are in use, by name; at most a thousand of each rule."""
        ...

    async def waits(self, mailboxes: Sequence[str]) -> dict[str, LimitWaitInfo]:
        """Return where mailboxes stand that wait for a limit."""
        ...

    async def waiting(self) -> int:
        """Return how many mailboxes wait for a limit."""
        ...
