"""The limits that code declares: written when a worker starts."""

from __future__ import annotations

import logging

from command_bus.messages.limits import Limit, rule_text
from command_bus.session import Session
from command_bus.settings import BusSettings

__all__ = ["declare_limits", "declared_rules"]

_log = logging.getLogger("command_bus.worker")


def declared_rules(settings: BusSettings) -> dict[str, Limit]:
    """Return the limits of these settings by the names of their rules."""
    rules = {f"name:{limit.name}" if limit.name else "bus": limit for limit in settings.limits}
    for entity_type, policy in settings.entities.items():
        rules |= {f"{limit.scope}:{entity_type}": limit for limit in policy.limits}
    return rules


async def declare_limits(session: Session, settings: BusSettings) -> None:
    """Write the limits of a worker's settings where there are none yet, or of a lower revision. None refuses the worker.

    Raises:
        UnsuitableServer: There are some, and the transport knows no limits.
        TransportUnavailable: The server cannot be reached.
    """
    rules = declared_rules(settings)
    if not rules:
        return
    found = await session.transport.limits.declare(
        {name: rule_text(limit.rate, limit.concurrency, limit.revision) for name, limit in rules.items()}
    )
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
