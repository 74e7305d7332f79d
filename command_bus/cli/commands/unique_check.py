"""A check of `doctor`: unique keys of classes that fold more than they should."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any

from command_bus.cli.commands.diagnosis import Finding
from command_bus.cli.output import format_duration
from command_bus.spelling import some_of

if TYPE_CHECKING:
    from command_bus.serialization.announcements import CommandInfo

_LONG = 3600.0  # seconds for which a command that fails may hold its key


def check_unique(commands: Sequence[CommandInfo]) -> list[Finding]:
    """Check the unique keys that classes have, as their workers announce them.

    Args:
        commands: All that are announced.
    """
    keyed = [(each, each.policy["unique"]) for each in commands if isinstance(each.policy.get("unique"), Mapping)]
    return [*_shared_keys(keyed), *_long_retries(keyed)]


def _shared_keys(keyed: Sequence[tuple[CommandInfo, Mapping[str, Any]]]) -> Iterator[Finding]:
    """Find keys that classes of one entity type share, and fold in different ways."""
    sharing: dict[tuple[str | None, str], dict[str, Mapping[str, Any]]] = {}
    for each, unique in keyed:
        sharing.setdefault((each.entity, str(unique.get("key"))), {})[each.name] = unique
    for (entity, key), found in sharing.items():
        if len({(unique.get("wins"), unique.get("until")) for unique in found.values()}) > 1:
            yield Finding(
                "unique keys",
                "warning",
                f"{some_of(sorted(found))} of {entity}: share the key {key!r}, and differ in which of two wins or how long it is held",
                "give each a key of its own, or the same `wins` and `until`",
            )


def _long_retries(keyed: Sequence[tuple[CommandInfo, Mapping[str, Any]]]) -> Iterator[Finding]:
    """Find commands that drop what comes for as long as their retries take."""
    for each, unique in keyed:
        held = longest_retry(each.policy)
        if unique.get("until") == "settled" and held > _LONG:
            yield Finding(
                "unique keys",
                "warning",
                f"{each.name}: one that fails is retried for up to {format_duration(held)}, and all with its key are dropped meanwhile",
                "write Unique(until='started') or wins='latest', or fewer or quicker retries",
            )


def longest_retry(policy: Mapping[str, Any]) -> float:
    """Return for how many seconds the retries of an announced policy wait at most; 0 if it does not say."""
    attempts, delays, most = policy.get("attempts"), policy.get("delays"), policy.get("max_delay")
    if not isinstance(attempts, int) or attempts < 2:
        return 0.0
    if isinstance(delays, Sequence) and delays and all(isinstance(each, int | float) for each in delays):
        return float(sum(delays[: attempts - 1]))
    factors = {"exponential": policy.get("factor"), "fixed": 1}  # of a function nothing is known
    delay, factor = policy.get("delay"), factors.get(str(policy.get("backoff")))
    if not isinstance(delay, int | float) or not isinstance(factor, int | float) or not isinstance(most, int | float):
        return 0.0
    limit: float = most
    times = min(attempts, 1000) - 2
    return float(sum(accumulate(repeat(factor, times), lambda wait, by: min(wait * by, limit), initial=min(delay, limit))))
