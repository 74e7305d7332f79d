"""Nodes of workflows as they travel, and what became of them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from command_bus.messages.outgoing import PackedMessage

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


class PackedNode(PackedMessage):
    """A node as it travels.

    Attributes:
        takes: The field that gets the result of what comes before; None: none does.
        undo: What is sent if a later one fails; None: nothing.
    """

    takes: str | None = None
    undo: PackedNode | None = None
