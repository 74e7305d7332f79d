"""`Bindings`: what all commands of a handler share, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from command_bus.errors import InvalidCommand
from command_bus.handlers.handler import Handler
from command_bus.messages.handling_policy import HandlingPolicy
from command_bus.messages.limits import check_costs
from command_bus.serialization.durable_options import DURABLE, is_durable
from command_bus.serialization.limits import reading_limits
from command_bus.serialization.models import MessageCodec, codec_for
from command_bus.serialization.overrides import attempt_timeout_in, retry_in
from command_bus.serialization.protection import Protection
from command_bus.serialization.versions import decoded
from command_bus.serialization.wire_envelope import ENCRYPTED, GIVEN_ID, WireEnvelope
from command_bus.settings import BusSettings


@dataclass(slots=True)
class Bound:
    """The values that all commands of a handler share."""

    handler: Handler
    policy: HandlingPolicy
    codec: MessageCodec[Any]

    def policy_of(self, envelope: WireEnvelope) -> HandlingPolicy:
        """Return what applies to a command: what its dispatch says, else its class, its entity type, the settings."""
        options = envelope.options
        return self.policy.with_overrides(retry_in(options), attempt_timeout_in(options)) if options else self.policy


class Bindings:
    """The handlers of one worker, each with its policy and codec.

    Args:
        lookup: Finds the handler of a wire name.
        settings: Limits and policies.
        protection: Decrypts, or None.
    """

    def __init__(self, lookup: Callable[[str], Handler | None], settings: BusSettings, protection: Protection | None) -> None:
        self._lookup = lookup
        self._settings = settings
        self._protection = protection
        self._limits = reading_limits(settings)
        self._bound: dict[str, Bound] = {}

    def of(self, name: str) -> Bound | None:
        """Return what all commands of a wire name share; None if they have no handler here."""
        handler, bound = self._lookup(name), self._bound.get(name)
        if handler is not None and (bound is None or bound.handler is not handler):
            policy, codec = self._settings.handling(handler.spec), codec_for(handler.message_type)
            bound = self._bound[name] = Bound(handler, policy, codec)
        return None if handler is None else bound

    def message(self, bound: Bound, envelope: WireEnvelope) -> Any:
        """Return the message of a command.

        Raises:
            InvalidCommand: It does not match the class, names another entity than the envelope, or a cost is no such.
        """
        payload, spec = self._clear(envelope) if envelope.flags & ENCRYPTED else envelope.payload, bound.handler.spec
        if envelope.options or spec.version > 1:
            message = decoded(bound.handler.message_type, payload, envelope.options, self._limits)
        else:
            message = bound.codec.decode(payload, self._limits)
        if spec.limits:
            check_costs(spec.limits, message)
        if spec.entity is None or spec.key is None:
            return message
        named = getattr(message, spec.key)  # checked with the message
        if envelope.entity_type != spec.entity or envelope.entity_id != (named if type(named) is str else str(named)):
            raise InvalidCommand(
                f"sequenced for entity {envelope.entity_type}:{envelope.entity_id}, but its payload names {spec.entity}:{named}"
            )
        return message

    def _clear(self, envelope: WireEnvelope) -> bytes:
        """Decrypt the payload.

        Raises:
            InvalidCommand: It cannot be.
        """
        if self._protection is None:
            raise InvalidCommand("its payload is encrypted, and this worker has no cipher")
        return self._protection.payload(envelope)


def as_durable(envelope: WireEnvelope) -> WireEnvelope:
    """Return the envelope of a durable command as its class would have sent it: one that was sent without the class does not say it."""
    if is_durable(envelope.options):
        return envelope
    return replace(envelope, flags=envelope.flags | GIVEN_ID, options={**(envelope.options or {}), DURABLE: 1})
