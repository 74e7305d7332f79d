"""Workflows of commands: `chain` runs one after the other, `group` side by side, `group(…).then(…)` is a chord.

Each is a durable command without an entity, so all that takes a command takes it.
"""

from command_bus.workflows.building import Group, Node, chain, group, node
from command_bus.workflows.nodes import GroupCounts, NodeFailed

__all__ = ["Group", "GroupCounts", "Node", "NodeFailed", "chain", "group", "node"]
