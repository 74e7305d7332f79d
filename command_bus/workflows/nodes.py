"""Nodes of workflows as they travel, and what became of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from command_bus.messages.policies import Priority

Failures = Literal["fail", "ignore"]
"""What a node that fails does to its group: it fails it, or has a `NodeFailed` in its place of the list."""


class NodeFailed(BaseModel):
    """A node that did not complete, in the list of a group with `failures="ignore"`.

    Attributes:
        command: Its wire name.
        entity: Its entity, `account:a-17`; None without one.
        command_id: Its id.
        code: That of the error: of a refusal the handler's own.
        error: What happened.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    command: str
    entity: str | None
    command_id: str
    code: str
    error: str


class GroupCounts(BaseModel):
    """The result of a group with `results=False`.

    Attributes:
        completed: Nodes that completed.
        failed: Nodes that did not.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    completed: int
    failed: int


class PackedNode(BaseModel):
    """A node as it travels: the parts of an outgoing message.

    Attributes:
        name: Wire name.
        entity_type: Type of its entity.
        entity_id: Id of its entity.
        payload: Its packed fields.
        options: What its envelope says beside, by letter.
        at_most_once: Whether it is never started again after an interruption.
        priority: As its class or node says.
        tenant: Who it is for.
        headers: Text that travels with it.
        takes: The field that gets the result of what comes before; None: none does.
        undo: What is sent if a later one fails; None: nothing.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: str
    entity_type: str | None
    entity_id: str | None
    payload: bytes
    options: dict[str, Any]
    at_most_once: bool
    priority: Priority | None
    tenant: str
    headers: dict[str, str]
    takes: str | None = None
    undo: PackedNode | None = None
