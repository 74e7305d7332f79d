"""Commands whose entities are of several shards: the parts that stand for them in the lines of each.

In the order of the shards' numbers. In all but the last it is a `Hold`, which stands there until what it calls, the next part, has ended. The last
part is the command itself. So who waits in a shard waits for what came before it there, or for what holds lines there and waits in a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from command_bus.messages.message import Command
from command_bus.messages.outgoing import Across, OutgoingMessage, PackedMessage
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.serialization.envelope_options import ACROSS, DURABLE, OTHERS, RETRY
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import codec_for

_FOR_EVER = RetryPolicy(attempts=1_000_000_000)
"""A hold that gave up would let others into the lines of a command that runs."""
_LIMITS = PayloadLimits(max_bytes=1 << 31)
"""The command itself was checked."""


class Hold(Command[Any], name="command_bus.Hold", durable=True):
    """The command that holds the lines of another one's entities of one shard while that waits and runs in later ones.

    Attributes:
        command: It, with all its entities.
    """

    command: PackedMessage


def entities_of(out: OutgoingMessage) -> tuple[tuple[str, str], ...]:
    """Return types and ids of the entities in whose lines a message stands."""
    first = () if out.entity_type is None or out.entity_id is None else ((out.entity_type, out.entity_id),)
    return (*first, *OTHERS.of(out.options))


def part_of(out: OutgoingMessage, shards: Sequence[int], behind: int = -1, across: Across | None = None) -> OutgoingMessage:
    """Return the part of a message in its lines of the first shard behind this one; the message itself if all are of one shard.

    Args:
        out: The message.
        shards: The shard of each of its entities.
        behind: Number of a shard; -1: the part is the first one.
        across: What the part says of the whole; nothing if it is the first.
    """
    later = sorted({each for each in shards if each > behind})
    if len(later) == 1 and across is None:
        return out
    here = [entity for entity, shard in zip(entities_of(out), shards, strict=True) if shard == later[0]]
    options = dict(out.options) if len(later) == 1 else {}
    if len(later) > 1:
        DURABLE.put(options, True)
        RETRY.put(options, _FOR_EVER)
    options = OTHERS.replaced(options, tuple(here[1:])) or {}
    ACROSS.put(options, across)
    part = replace(out, entity_type=here[0][0], entity_id=here[0][1], options=options, across_shards=False)
    if len(later) == 1:
        return part
    payload = codec_for(Hold).encode(Hold(command=PackedMessage(**PackedMessage.facts_of(out))), _LIMITS)
    return replace(part, name=Hold.spec().name, payload=payload, command=None, given_id=True, at_most_once=False)
