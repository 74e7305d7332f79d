"""The arguments of *advance* for a step: see the header of `lua/advance/1_read.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from command_bus.transport.flows import NORMAL_FLOW
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.steps import (
    NO_SETTLEMENT,
    DeadLetterStep,
    Done,
    FollowUp,
    GiveBack,
    Lease,
    Park,
    PutOff,
    Refused,
    Retry,
    Settlement,
    Step,
    Take,
)
from command_bus.transport.unique_keys import stored_key

__all__ = ["encode_step"]

_VERBS = {"completed": "d", "rejected": "n", "expired": "x"}
_FOLLOWS = {"stay": "s", "yield": "y", "leave": "l"}


def encode_step(space: KeySpace, lease: Lease, step: Step, names: list[str], args: list[Any], sent: list[FollowUp]) -> None:
    """Append a step's arguments, and the keys that its operation names, in the order that the header of advance.lua gives.

    Args:
        space: All shards.
        lease: Of the step's mailbox.
        step: To be encoded.
        names: Keys so far.
        args: Arguments so far.
        sent: Follow-ups so far.
    """
    extra: list[Any] = []
    match step:
        case Done(left, follow, status):
            running = f"{lease.attempt_id}>{lease.ahead[-1][0]}" if lease.ahead else lease.attempt_id
            if left is not NO_SETTLEMENT:
                flags = _leave(space, lease, left, names, extra, sent)
                args += (_VERBS[status] + _FOLLOWS[follow] + flags, lease.activation, lease.holder, running, *extra)
            else:
                args += (_VERBS[status] + _FOLLOWS[follow], lease.activation, lease.holder, running)
        case Take(granted):
            args += ("ts", lease.activation, lease.holder, f"+|{granted}" if granted else lease.attempt_id)
        case Refused():
            args += ("ll", lease.activation, lease.holder, lease.attempt_id)
        case Retry(delay_ms, counts):
            args += ("wl", lease.activation, lease.holder, lease.attempt_id, delay_ms, int(counts))
        case PutOff(delay_ms):
            args += ("wl", lease.activation, lease.holder, lease.attempt_id, delay_ms, "s")
        case GiveBack(counts):
            args += ("gl", lease.activation, lease.holder, lease.attempt_id, int(counts))
        case DeadLetterStep(left, record, raw, follow):
            flags = _leave(space, lease, left, names, extra, sent)
            args += ("b" + _FOLLOWS[follow] + flags, lease.activation, lease.holder, lease.attempt_id, *extra, record, raw)
        case Park(left, record, raw):
            flags = _leave(space, lease, left, names, extra, sent)
            args += ("pl" + flags, lease.activation, lease.holder, lease.attempt_id, *extra, record, raw)


def _leave(space: KeySpace, lease: Lease, left: Settlement, names: list[str], args: list[Any], sent: list[FollowUp]) -> str:
    """Append what a settled command leaves; return the letters for it."""
    keys, flags = space.shards[lease.shard], ""
    if left.mark:
        names.append(keys.mark(left.command_id))
        args += (left.mark_ms, left.mark)
        flags = "m"
    elif left.waits_ms:
        names.append(keys.mark(left.command_id))
        args.append(left.waits_ms)
        flags = "e"
    if left.reply:
        names.append(keys.inbox(left.inbox))
        args.append(left.reply)
        flags += "i"
    if left.outcome:
        names += (keys.dispatch(left.dispatch), keys.outcomes(left.dispatch))
        args.append(left.outcome)
        flags += "o"
    if left.unique:
        names.append(keys.unique)
        args.append(stored_key(lease.mailbox, left.unique))
        flags += "u"
    if left.follow_ups:
        _send(space, keys, left.follow_ups, names, args)
        sent += left.follow_ups
        flags += "f"
    return flags


def _send(space: KeySpace, keys: ShardKeys, follow_ups: Sequence[FollowUp], names: list[str], args: list[Any]) -> None:
    names += (keys.delayed, keys.delayed_counts)
    args.append(len(follow_ups))
    for each in follow_ups:
        shard = space.shard_of(each.mailbox)
        is_here = space.shards[shard] is keys
        names.append(keys.mailbox(each.mailbox) if is_here else f"{keys.outs}{shard}")
        text = f"{'' if is_here else shard}|{each.flow or NORMAL_FLOW}|{each.mailbox}|{each.command_id}"
        args += (text, each.delay_ms, each.envelope)
