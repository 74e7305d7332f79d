"""The declarations of applications: messages, policies, and the context that a handler runs in."""

from command_bus.messages.message import (
    Command,
    EntityId,
    Message,
    MessageSpec,
    Query,
    canonical_entity_id,
    check_entity_type,
    check_wire_name,
    is_entity_type,
    is_wire_name,
)

__all__ = [
    "Command",
    "EntityId",
    "Message",
    "MessageSpec",
    "Query",
    "canonical_entity_id",
    "check_entity_type",
    "check_wire_name",
    "is_entity_type",
    "is_wire_name",
]
