"""The limits that code declares: written when a worker starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.limits import Limit, rule_text
from command_bus.session import Session
from command_bus.settings import BusSettings
from command_bus.transport.limits import Declared

_log = logging.getLogger("command_bus.worker")


def declared_rules(settings: BusSettings) -> dict[str, Limit]:
    """Return the limits of these settings by the names of their rules."""
    rules = {f"name:{limit.name}" if limit.name else "bus": limit for limit in settings.limits}
    for entity_type, policy in settings.entities.items():
        rules |= {f"{limit.scope}:{entity_type}": limit for limit in policy.limits}
    return rules


def named_limits(registry: HandlerRegistry) -> dict[str, set[str]]:
    """Return the names of limits that the handled classes name, by entity type; `~` for commands without an entity."""
    found: dict[str, set[str]] = {}
    for handler in registry:
        for limit in handler.spec.limits:
            found.setdefault(handler.spec.entity or "~", set()).add(limit.name or "")
    return found


async def declare_limits(session: Session, settings: BusSettings, registry: HandlerRegistry) -> None:
    """Write the limits of a worker's code where there are none yet, or of a lower revision. None refuses the worker.

    Raises:
        UnsuitableServer: There are some, and the transport knows no limits.
        TransportUnavailable: The server cannot be reached.
    """
    rules, named = declared_rules(settings), named_limits(registry)
    if not rules and not named:
        return
    limits = session.transport.limits
    found = await limits.declare(
        {name: rule_text(limit.rate, limit.concurrency, limit.revision) for name, limit in rules.items()}
    )
    _say(rules, found)
    if named:
        await limits.declare_keyed({entity_type: sorted(names) for entity_type, names in named.items()})
        known = {rule.name.removeprefix("name:") for rule in await limits.rules()}
        for name in sorted(set().union(*named.values()) - known):
            _log.warning(
                "limit %s is named by a class, without a rule that says what it allows: its commands start without it. "
                "Declare it in BusSettings(limits=…), or put it: command-bus limits put %s --rate 10/1s",
                name,
                name,
            )


def _say(rules: Mapping[str, Limit], found: Mapping[str, Declared]) -> None:
    for name, what in found.items():
        if what == "differs":
            _log.warning(
                "limit %s: other code declares it otherwise, with the same revision %d, and was first: what it says holds. "
                "Give the newer declaration a higher revision",
                name,
                rules[name].revision,
            )
        elif what == "older":
            _log.info("limit %s: a higher revision than %d is declared, and holds", name, rules[name].revision)
