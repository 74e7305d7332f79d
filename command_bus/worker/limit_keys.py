"""The answers that limits want of a command: its named limits by its fields, which buckets at what cost, and the callers that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from command_bus.errors import InvalidCommand
from command_bus.handlers.handler import Handler
from command_bus.messages.limits import Limit, cost_of
from command_bus.serialization.callers_option import callers_in
from command_bus.serialization.envelope_reading import unpack_envelope
from command_bus.serialization.limits import Undecodable, reading_limits
from command_bus.serialization.protection import Protection
from command_bus.serialization.versions import decoded, newer_version
from command_bus.serialization.wire_envelope import ENCRYPTED, WireEnvelope
from command_bus.settings import BusSettings
from command_bus.transport.mailboxes import encoded
from command_bus.transport.steps import Asked
from command_bus.worker.decisions import is_late


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

    def keyed(self, asked: Asked) -> str:
        """Return costs and buckets: `cost scope`, with tabs between them.

        Behind them a tab and `~paid` if it was suspended, a tab and `~flow=` with its flow if it has one, and a tab and `~activation mailbox`
        for each caller that waits. What is settled or offered to others without a call of its handler takes no token, as what was suspended.
        What workers seem to die of is read once it has started, so that the attempt counts: it takes tokens of limits that need no reading.
        """
        callers, costs = "", None
        with suppress(Undecodable):
            envelope = unpack_envelope(asked.envelope or b"", self._limits)
            callers = "".join(f"\t~{activation} {mailbox}" for mailbox, activation in callers_in(envelope.options).items())
            if asked.is_suspect:
                costs = ""
            elif not (asked.due_ms and is_late(envelope, asked.message, asked.due_ms)):
                costs = self._costs(envelope)
        paid = "\t~paid" if asked.is_paid or costs is None else ""
        return (costs or "") + paid + (f"\t~flow={asked.flow}" if asked.flow else "") + callers

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
