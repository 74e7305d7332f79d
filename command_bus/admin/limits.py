"""Limits for operators: put, take back, list them, and see who waits. Reached as `bus.limits`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from command_bus.clock import wall_ms
from command_bus.errors import InvalidSettings, UnknownLimit
from command_bus.messages.limits import Rate, rule_name, rule_text
from command_bus.messages.policies import Lanes
from command_bus.serialization.odd_values import pass_over
from command_bus.session import OnSession
from command_bus.spelling import did_you_mean
from command_bus.transport.mailboxes import encoded
from command_bus.transport.ports.limits import LimitUse, StoredRule


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """A limit, or one bucket of it.

    Attributes:
        name: `bus`, `type:<entity type>`, `entity:<entity type>`, or the name of a named limit.
        key: The entity or key whose bucket this is; None of a limit that has one bucket, or of a line that they share.
        rate: Starts in `per` seconds; None: any number.
        per: Those seconds.
        burst: Tokens that a bucket holds, at least those of 50 ms.
        concurrency: Entities that may run at a time; None: any number.
        source: `put` by an operator, or declared in `code`.
        declared: What code declares where an operator put something else, for people; empty otherwise.
        used: Places that are taken.
        tokens: Starts that are free now; None without a rate, or where each bucket has its own.
        waiting: Entities that wait.
        free_in: Seconds until the first of them may start; None if that depends on what runs, or if none waits.
        held_for: Seconds for which nothing starts because a handler said so (`Snooze(hold=…)`), in the bucket that is held longest; 0: it may.
    """

    name: str
    key: str | None
    rate: float | None
    per: float | None
    burst: int | None
    concurrency: int | None
    source: str
    declared: str
    used: int
    tokens: float | None
    waiting: int
    free_in: float | None
    held_for: float

    @property
    def free_at(self) -> float:
        """When the first that waits may start, in seconds since 1970 by this machine's clock; now if nothing is in its way."""
        return wall_ms() / 1000 + (self.free_in or 0.0)


LimitInfos = list[LimitInfo]


class Limits(OnSession):
    """The limits of a namespace."""

    def __repr__(self) -> str:
        return f"<limits of {self._session.settings.namespace!r}>"

    async def put(self, name: str, rate: Rate | None = None, *, concurrency: int | None = None) -> bool:
        """Set a limit for the whole fleet, at once. It stands above what code declares. False if it was so.

        Without rate and concurrency it takes back what was put: what code declares holds again, or nothing.

        Args:
            name: `bus`, `type:<entity type>`, `entity:<entity type>`, or the name of a named limit.
            rate: Most starts in a time; None: any number.
            concurrency: Entities that run at a time; None: any number.

        Raises:
            InvalidSettings: The name is none, a value is out of range, or the entities of `entity:<entity type>` share lanes.
            TransportUnavailable: The server cannot be reached; with several shards some may have it. Asking again is safe.
        """
        rule = rule_name(name)
        given: object = rate
        if given is not None and not isinstance(given, Rate):
            raise InvalidSettings(f"limits.put({name!r}, {rate!r}): a Rate, as in Rate(50, per=1.0)")
        if concurrency is not None and (not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1):
            raise InvalidSettings(
                f"limits.put({name!r}, concurrency={concurrency!r}): a whole number from 1; pause a type to stop it"
            )
        if rule.startswith("entity:") and concurrency is not None:
            raise InvalidSettings(f"limits.put({name!r}): an entity runs one command at a time anyway")
        text = "" if rate is None and concurrency is None else rule_text(rate, concurrency)
        if text and rule.startswith("entity:"):
            await self._check_lanes(rule.removeprefix("entity:"))
        return await self._transport.limits.put(rule, text)

    async def _check_lanes(self, entity_type: str) -> None:
        """Refuse a limit for each entity of a type, by what the namespace recorded for it, if its entities share lanes."""
        agreements = self._transport.agreements
        await agreements.learn(entity_type)
        if isinstance(agreements.recorded(entity_type), Lanes):
            raise InvalidSettings(
                f"limits.put('entity:{entity_type}'): its entities share lanes and have no limit of their own; take 'type:{entity_type}'"
            )

    async def remove(self, name: str) -> bool:
        """Take back what was put: what code declares holds again. False if nothing was put.

        Raises:
            InvalidSettings, TransportUnavailable: As for `put`.
        """
        return await self._transport.limits.put(rule_name(name), "")

    async def release(self, name: str, *, key: str | None = None) -> None:
        """End the hold that a handler set by `Snooze(hold=…)`: what waits for this limit starts as it allows.

        Args:
            name: As for `put`.
            key: Value that chooses the bucket to release, for a limit with a `key`.

        Raises:
            InvalidSettings, TransportUnavailable: As for `put`.
        """
        rule = rule_name(name)
        await self._transport.limits.release(rule if key is None else f"{rule}:{encoded(key)}")

    async def list(self, name: str | None = None) -> LimitInfos:
        """Return all limits, a line each; or with a name those of its buckets that are in use, at most a thousand.

        Raises:
            UnknownLimit: There is no such limit.
            InvalidSettings, TransportUnavailable: As for `put`.
        """
        transport = self._transport.limits
        rules = {rule.name: rule for rule in await transport.rules()}
        if name is None:
            uses = await transport.uses(list(rules))
            return [_line(rule, [use for use in uses if _is_of(use.scope, each)]) for each, rule in rules.items()]
        wanted = rule_name(name)
        if wanted not in rules:
            known = [each.removeprefix("name:") for each in rules]
            raise UnknownLimit(f"there is no limit {name!r}{did_you_mean(name, known)}; `command-bus limits list` shows them")
        return [_info(rules[wanted], use) for use in await transport.uses([wanted])] or [_line(rules[wanted], [])]

    async def waiting(self) -> int:
        """Return how many entities wait for a limit.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        return await self._transport.limits.waiting()


def _is_of(scope: str, rule: str) -> bool:
    return scope == rule or scope.startswith(f"{rule}:")


def _info(rule: StoredRule, use: LimitUse) -> LimitInfo:
    name = rule.name.removeprefix("name:")
    key = use.scope[len(rule.name) + 1 :] or None
    if rule.name.startswith("entity:") and key is not None:
        key = key.removeprefix(f"{rule.name.removeprefix('entity:')}:")
    found = _numbers(rule.name, rule.in_force)
    return LimitInfo(
        name=name,
        key=key,
        rate=found.rate,
        per=found.per,
        burst=found.burst,
        concurrency=found.most,
        source="put" if rule.put else "code",
        declared=_words(rule.name, rule.declared) if rule.put and rule.declared else "",
        used=use.used,
        tokens=use.tokens,
        waiting=use.waiting,
        free_in=use.free_in if use.waiting else None,
        held_for=use.held_for,
    )


def _line(rule: StoredRule, buckets: Sequence[LimitUse]) -> LimitInfo:
    """Return a limit as a whole."""
    one = buckets[0] if len(buckets) == 1 and buckets[0].scope == rule.name else None
    times = [use.free_in for use in buckets if use.waiting and use.free_in is not None]
    whole = LimitUse(
        rule.name,
        one.tokens if one else None,
        sum(use.used for use in buckets),
        sum(use.waiting for use in buckets),
        min(times, default=None),
        max((use.held_for for use in buckets), default=0.0),
    )
    return _info(rule, whole)


def _words(name: str, text: str) -> str:
    found = _numbers(name, text)
    parts = [] if found.rate is None else [f"{found.rate:g} per {found.per or 1:g} s (burst {found.burst})"]
    return ", ".join([*parts, *([] if found.most is None else [f"{found.most} at a time"])])


class _Numbers(NamedTuple):
    """The numbers of a rule; None where it has none."""

    burst: int | None = None
    most: int | None = None
    rate: float | None = None
    per: float | None = None


def _numbers(name: str, text: str) -> _Numbers:
    """Return the numbers in the text of a rule; none where it is odd."""
    tick, burst, most, rate, per, *_ = [*text.split("|"), *[""] * 5][:6]
    try:
        found = _Numbers(
            int(burst) if tick else None, int(most) if most else None, float(rate) if rate else None, float(per) if per else None
        )
        if all(each is None or 0 <= each < float("inf") for each in found):
            return found
    except ValueError:
        pass
    pass_over("rules", name, f"is no rule: {text!r}")
    return _Numbers()
