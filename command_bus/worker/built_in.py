"""Handlers that every worker has: of the commands that are the library's own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from command_bus.clock import mono
from command_bus.errors import BadStep, CommandCancelled, CommandOutcomeError, CommandRejected, Reject
from command_bus.handlers.handler import Handler
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import CommandContext
from command_bus.messages.durable import DurableContext
from command_bus.messages.event import Publish
from command_bus.messages.message import is_internal
from command_bus.messages.outgoing import Across, OutgoingMessage
from command_bus.messages.policies import OF_SUBSCRIPTION
from command_bus.sending.several import Hold, entities_of
from command_bus.serialization.limits import DEFAULT_LIMITS
from command_bus.serialization.msgpack import pack, unpack
from command_bus.workflows.building import Chain, Group
from command_bus.workflows.nodes import GroupCounts, NodeFailed, PackedNode

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


@_BUILT_IN.handles(Chain)
async def run_chain(command: Chain, context: DurableContext) -> Any:
    """Call the nodes one after the other; return the result of the last."""
    result: Any = None
    for number, node in enumerate(command.nodes):
        result = await _one(context, node, str(number), result)
    return result


@_BUILT_IN.handles(Group)
async def run_group(command: Group[Any], context: DurableContext) -> Any:
    """Call the nodes side by side, then the chord; return what the command promises."""
    calls = [_call(context, node, str(number), counts=not command.results) for number, node in enumerate(command.nodes)]
    ended = await context.all(*calls, return_exceptions=True)
    for each in ended:
        if isinstance(each, BadStep):  # it is not known how the node ended, so nothing may be undone
            raise BadStep(f"{each.message}, or group(…, results=False)")
    errors = [(node, each) for node, each in zip(command.nodes, ended, strict=True) if isinstance(each, Exception)]
    if errors and command.failures == "fail":
        raise _refusal(*errors[0])
    results: Any = [
        _failed(node, each).model_dump() if isinstance(each, Exception) else each
        for node, each in zip(command.nodes, ended, strict=True)
    ]
    if not command.results:
        results = GroupCounts(completed=len(ended) - len(errors), failed=len(errors)).model_dump()
    return results if command.chord is None else await _one(context, command.chord, "chord", results)


@_BUILT_IN.handles(Hold)
async def hold(command: Hold, context: DurableContext) -> Any:
    """Hold the lines of one shard until the command has ended in the later ones."""
    out = command.command.outgoing()
    if context.deadline is not None:
        out.ttl_ms = max(1, int((context.deadline - mono()) * 1000))
    return await context.call_packed(out, None, "held", across=Across(context.command_id, context.fence, entities_of(out)))


async def _one(context: DurableContext, node: PackedNode, key: str, before: Any) -> Any:
    """Call a node and wait for it.

    Raises:
        Reject: It has ended otherwise than by a reply.
    """
    try:
        return await _call(context, node, key, before)
    except CommandOutcomeError as error:
        if isinstance(error, CommandCancelled) and error.command_id == context.command_id:
            raise  # it is the workflow that is to end
        raise _refusal(node, error) from error


def _call(
    context: DurableContext, node: PackedNode, key: str, before: Any = None, *, counts: bool = False
) -> Coroutine[object, None, Any]:
    payload = None
    if node.takes is not None:
        fields: Any = unpack(node.payload, DEFAULT_LIMITS)
        payload = pack({**fields, node.takes: before}, DEFAULT_LIMITS)
    undo = None if node.undo is None else node.undo.outgoing()
    return context.call_packed(node.outgoing(payload), undo, key, counts=counts)


def _failed(node: PackedNode, error: Exception) -> NodeFailed:
    entity = None if node.entity_type is None else f"{node.entity_type}:{node.entity_id}"
    return NodeFailed(
        command=node.name,
        entity=entity,
        command_id=getattr(error, "command_id", ""),
        code=getattr(error, "code", type(error).__name__),
        error=str(error),
    )


def _refusal(node: PackedNode, error: Exception) -> Reject:
    """Return the refusal of a workflow whose node has ended so: that of the node, if its handler refused it."""
    if isinstance(error, CommandRejected):
        return Reject(error.message, code=error.code, details=error.details)
    failed = _failed(node, error)
    where = "" if failed.entity is None else f" of {failed.entity}"
    return Reject(f"{failed.command}{where} has not completed: {failed.error}", code="node_failed", details=failed.model_dump())
