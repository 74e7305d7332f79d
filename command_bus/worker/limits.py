"""The limits that code declares: written when a worker starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from command_bus.errors import CommandBusError, InvalidCommand, InvalidSettings
from command_bus.handlers.handler import Handler
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.limits import Limit, cost_of, rule_text
from command_bus.messages.snooze import Snooze
from command_bus.serialization.envelope import ENCRYPTED, WireEnvelope, unpack_envelope
from command_bus.serialization.envelope_options import CALLERS
from command_bus.serialization.limits import Undecodable, printable, reading_limits
from command_bus.serialization.models import decoded, newer_version
from command_bus.serialization.protection import Protection
from command_bus.session import Session
from command_bus.settings import BusSettings
from command_bus.transport.mailboxes import encoded
from command_bus.transport.ports.limits import Declared
from command_bus.transport.ports.transport import Transport
from command_bus.transport.steps import LimitQuestion
from command_bus.worker.decisions import is_late
from command_bus.worker.runnable import Runnable

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


def scope_name(limit: Limit, message: object) -> str:
    """Return the bucket of a named limit that a message falls into."""
    return f"name:{limit.name}" if limit.key is None else f"name:{limit.name}:{encoded(str(getattr(message, limit.key)))}"


class LimitKeys:
    """Reads of a command what its class's limits ask for.

    Args:
        lookup: Finds the handler of a wire name.
        settings: Limits of what is read.
        protection: Decrypts, or None.
    """

    def __init__(self, lookup: Callable[[str], Handler | None], settings: BusSettings, protection: Protection | None) -> None:
        self._lookup = lookup
        self._limits = reading_limits(settings)
        self._protection = protection

    def keyed(self, asked: LimitQuestion) -> str:
        """Return costs and buckets: `cost scope`, with tabs between them.

        Behind them a tab and `~paid` if it was suspended, a tab and `~flow=` with its flow if it has one, and a tab and `~activation mailbox`
        for each caller that waits. What is settled or offered to others without a call of its handler takes no token, as what was suspended.
        What workers seem to die of is read once it has started, so that the attempt counts: it takes tokens of limits that need no reading.
        """
        callers, costs = "", None
        with suppress(Undecodable):
            envelope = unpack_envelope(asked.envelope or b"", self._limits)
            callers = "".join(f"\t~{activation} {mailbox}" for mailbox, activation in CALLERS.of(envelope.options).items())
            if asked.is_suspect:
                costs = ""
            elif not (asked.due_ms and is_late(envelope, asked.message, asked.due_ms)):
                costs = self._costs(envelope)
        paid = "\t~paid" if asked.is_paid or costs is None else ""
        costs = "\t".join(filter(None, (costs, asked.others)))
        return costs + paid + (f"\t~flow={asked.flow}" if asked.flow else "") + callers

    def _costs(self, envelope: WireEnvelope) -> str | None:
        """Return the costs and buckets of a command; None if this worker cannot run it."""
        try:
            handler = self._lookup(envelope.name)
            if handler is None or newer_version(handler.spec, envelope.options):
                return None
            is_secret = envelope.flags & ENCRYPTED and self._protection is not None
            payload = self._protection.payload(envelope) if is_secret and self._protection is not None else envelope.payload
            message = decoded(handler.message_type, payload, envelope.options, self._limits)
            return "\t".join(f"{cost_of(limit, message)} {scope_name(limit, message)}" for limit in handler.spec.limits)
        except (Undecodable, InvalidCommand):
            return None


_PREFIX = "limit:"


async def hold_limit(transport: Transport, run: Runnable, snooze: Snooze) -> Exception | None:
    """Hold the limit that a snooze names; return the error of a name that means none.

    A server that does not answer is a warning: the command itself waits in any case.
    """
    scope = _scope(run, snooze.hold or "")
    if scope is None:
        names = ", ".join(_names(run))
        return InvalidSettings(f"Snooze(hold={snooze.hold!r}): {run.envelope.name} may hold {names}")
    try:
        if not await transport.limits.hold(scope, snooze.seconds):
            _log.warning(
                "%s holds %s, which has no limit that could be held: declare one in BusSettings(limits=…), or put it",
                printable(run.envelope.name),
                scope,
            )
    except CommandBusError as error:
        _log.warning("%s could not hold %s: %s", printable(run.envelope.name), scope, error)
    return None


def _scope(run: Runnable, hold: str) -> str | None:
    """Return the bucket that a name means to this command."""
    if hold not in _names(run):
        return None
    name = hold.removeprefix(_PREFIX)
    return next((scope_name(limit, run.message) for limit in run.handler.spec.limits if limit.name == name), name)


def _names(run: Runnable) -> list[str]:
    named = [f"{_PREFIX}{limit.name}" for limit in run.handler.spec.limits]
    entity_type = run.handler.spec.entity
    return [*named, *([] if entity_type is None else [f"{_PREFIX}type:{entity_type}"]), f"{_PREFIX}bus"]
