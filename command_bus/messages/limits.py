"""Limits: how often, and how many at a time, commands may start: of an entity, a type, a named thing outside, or the whole bus.

    BusSettings(
        entities={"shop": EntityPolicy(limits=(Limit(rate=Rate(50, per=1.0), concurrency=20, scope="type"),))},
        limits=(Limit(concurrency=500, scope="bus"), Limit("shopify", rate=Rate(1000, per=60.0))),
    )

What code says is a default with a revision. `bus.limits.put` stands above it, at once and for the whole fleet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from command_bus.clock import duration_fault
from command_bus.errors import InvalidCommand, InvalidSettings, RegistrationError

LimitScope = Literal["entity", "type", "bus"]

FASTEST = 50_000.0
"""Starts a second: the times of buckets are quarters of a microsecond, and a rule is kept within one per cent."""
_MOST = 1_000_000_000
_SHORTEST_BURST = 0.05
"""Seconds of its rate that a bucket holds at least: what waits may be woken late."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_SCOPES = ("entity", "type", "bus")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidSettings(message)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of a limit: `count` starts `per` so many seconds. Each start takes a token, and tokens come back evenly.

    Attributes:
        count: Starts in that time; at most 50,000 a second.
        per: Seconds.
        burst: Starts that may follow at once on a pause; by default those of one second. At least those of 50 ms, and one.

    Raises:
        InvalidSettings: One is out of range.
    """

    count: float
    per: float = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        count: object = self.count
        is_number = isinstance(count, int | float) and not isinstance(count, bool) and math.isfinite(count)
        _require(is_number and self.count > 0, f"Rate({self.count!r}): a number above 0, as in Rate(50, per=1.0)")
        fault = duration_fault(self.per, zero=False)
        _require(fault is None, f"Rate(per={self.per!r}): per {fault}")
        _require(self.count / self.per <= FASTEST, f"Rate({self.count!r}, per={self.per!r}): at most {FASTEST:,.0f} a second")
        _require(
            self.burst is None or _is_whole(self.burst),
            f"Rate(burst={self.burst!r}): a whole number from 1, or None for a second's",
        )

    @property
    def tick(self) -> float:
        """Microseconds until a token comes back: never too few, so that the rate is never exceeded."""
        return math.ceil(self.per / self.count * 4_000_000) / 4

    @property
    def tokens(self) -> int:
        """How many tokens a bucket holds."""
        second = self.count / self.per
        return max(1, math.ceil(second * _SHORTEST_BURST), math.ceil(second) if self.burst is None else self.burst)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: of starts in a time, of what runs at a time, or both.

    A command that it refuses keeps its place, and its entity waits in the limit's queue, first come, first served.

    Attributes:
        name: Names a thing outside that several entities or types use (`"shopify"`); None for one of an entity, a type or the bus.
        rate: Most starts in a time, retries included; None: any number.
        concurrency: Entities that run a command at a time; None: any number.
        scope: What has one bucket: each `"entity"`, the `"type"` as a whole, or the `"bus"`.
        key: The field of a command whose value chooses the bucket of a named limit; None: it has one bucket.
        cost: Tokens that a start takes: a number, or the name of the field that says it.
        revision: Number that orders what code declares: a lower one never replaces a higher.

    Raises:
        InvalidSettings: One is out of range, or they contradict each other.
    """

    name: str | None = None
    rate: Rate | None = None
    concurrency: int | None = None
    scope: LimitScope | None = None
    key: str | None = None
    cost: int | str = 1
    revision: int = 1

    def __post_init__(self) -> None:
        name: object = self.name
        is_name = name is None or (isinstance(name, str) and _NAME.fullmatch(name) is not None)
        _require(is_name, f"Limit({self.name!r}): a name of 1 to 100 letters, digits, '_', '.' and '-', as in Limit(\"shopify\")")
        _require(self.scope is None or self.scope in _SCOPES, f"Limit(scope={self.scope!r}): 'entity', 'type' or 'bus'")
        _require(self.name is None or self.scope is None, "Limit: a named limit has a key, not a scope")
        _require(
            self.key is None or self.name is not None, 'Limit(key=…): only a named limit has a key, as in Limit("shopify", key=…)'
        )
        _require(
            self.concurrency is None or _is_whole(self.concurrency),
            f"Limit(concurrency={self.concurrency!r}): a whole number from 1",
        )
        _require(
            self.scope != "entity" or self.concurrency is None,
            "Limit(scope='entity'): an entity runs one command at a time anyway",
        )
        is_cost = isinstance(self.cost, str) or self.cost == 0 or _is_whole(self.cost)
        _require(is_cost, f"Limit(cost={self.cost!r}): a whole number from 0, or the name of a field")
        _require(_is_whole(self.revision), f"Limit(revision={self.revision!r}): a whole number from 1")

    @property
    def limits_anything(self) -> bool:
        """Whether it says a rate or a concurrency."""
        return self.rate is not None or self.concurrency is not None


def rule_name(text: str) -> str:
    """Return the rule that a name means: `bus`, `type:shop`, `entity:shop`; any other is that of a named limit.

    Raises:
        InvalidSettings: It is none.
    """
    kind, colon, rest = text.partition(":")
    if text == "bus" or (colon and kind in ("type", "entity", "name") and rest and not set(rest) & set(":|\n\t ")):
        return text
    _require(
        _NAME.fullmatch(text) is not None, f"{text!r} is no limit: 'bus', 'type:<entity type>', 'entity:<entity type>' or a name"
    )
    return f"name:{text}"


def rule_text(rate: Rate | None, concurrency: int | None, revision: int = 0) -> str:
    """Return a rule as the scripts read it."""
    tick, burst = ("", "") if rate is None else (f"{rate.tick:.2f}", str(rate.tokens))
    shown = "|" if rate is None else f"{rate.count!r}|{rate.per!r}"
    return f"{tick}|{burst}|{'' if concurrency is None else concurrency}|{shown}|{revision}"


def checked_bus_limits(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Return the limits of `BusSettings`.

    Raises:
        InvalidSettings: One is not of the bus, says nothing, or is there twice.
    """
    names = [limit.name or limit.scope for limit in limits]
    _require(
        not any(name in (None, "entity", "type") for name in names),
        "each has a name, or scope='bus'; those of a type are in its EntityPolicy",
    )
    _require(all(limit.limits_anything for limit in limits), "each has a rate or a concurrency, or both")
    _require(
        all(limit.key is None and limit.cost == 1 for limit in limits),
        'key and cost are the command class\'s: class Sync(Command[None], limits=(Limit("shopify", key=…),))',
    )
    _require(len(set(names)) == len(names), "two limits have one name; put rate and concurrency into one")
    return limits


def checked_limits(owner: str, limits: Any, fields: Collection[str]) -> tuple[Limit, ...]:
    """Return the limits that a class of messages names.

    Raises:
        RegistrationError: They are none, or name a field that the class lacks.
    """
    if not isinstance(limits, Iterable) or not all(isinstance(limit, Limit) for limit in limits):
        raise RegistrationError(f'{owner}: limits is a sequence of Limit, as in limits=(Limit("shopify", key="partner"),)')
    found = tuple(limits)
    for limit in found:
        if limit.name is None or limit.limits_anything:
            raise RegistrationError(
                f'{owner}: a class names limits, as in Limit("shopify", key="partner"); what they allow is said in BusSettings(limits=…) '
                "or by bus.limits.put, and what an entity or type may do in its EntityPolicy"
            )
        for field in (limit.key, limit.cost if isinstance(limit.cost, str) else None):
            if field is not None and field not in fields:
                raise RegistrationError(f"{owner}: limit {limit.name!r} names the field {field!r}, which the class lacks")
    if len({limit.name for limit in found}) < len(found):
        raise RegistrationError(f"{owner}: two limits have one name")
    return found


def cost_of(limit: Limit, message: Any) -> int:
    """Return the tokens that a start of this message takes.

    Raises:
        InvalidCommand: Its field does not say a whole number from 0.
    """
    if not isinstance(limit.cost, str):
        return limit.cost
    value: object = getattr(message, limit.cost)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise InvalidCommand(
            f"{limit.cost} = {value!r}: it is the cost of a start for the limit {limit.name!r}, a whole number from 0 to {_MOST:,}"
        )
    return value


def check_costs(limits: Iterable[Limit], message: Any) -> None:
    """Check what a message says of its costs.

    Raises:
        InvalidCommand: One is no whole number from 0.
    """
    for limit in limits:
        cost_of(limit, message)
