"""Handlers that every worker has: of the commands that are the library's own."""

from __future__ import annotations

from collections.abc import Callable

from command_bus.handlers.handler import Handler
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import CommandContext
from command_bus.messages.event import Publish
from command_bus.messages.message import is_internal
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.messages.policies import OF_SUBSCRIPTION

_BUILT_IN = HandlerRegistry()


def lookup_in(registry: HandlerRegistry) -> Callable[[str], Handler | None]:
    """Return what finds the handler of a wire name: in the registry of a worker, or here."""

    def lookup(name: str) -> Handler | None:
        found = registry.lookup(name)
        return _BUILT_IN.lookup(name) if found is None and is_internal(name) else found

    return lookup


@_BUILT_IN.handles(Publish)
async def publish(command: Publish, context: CommandContext) -> None:
    """Publish an event with the settlement of the command that asks for it."""
    event = OutgoingMessage(
        command.event,
        (context.entity_type or "").removesuffix(OF_SUBSCRIPTION),
        context.entity_id,
        command.payload,
        context.command_id,
        headers=dict(context.headers),
        priority=command.priority,
        tenant=command.tenant,
        options=dict(command.options),
    )
    context.publish_as(event)
