"""The arguments of *advance* for a step: see the header of `lua/advance/1_steps.lua`."""

from __future__ import annotations

from typing import Any

from command_bus.transport.flows import NORMAL_FLOW, OUTCOME_FLOW
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.steps import (
    NO_SETTLEMENT,
    ChildOutcome,
    DeadLetterStep,
    Done,
    Extend,
    FollowUp,
    GiveBack,
    Lease,
    Park,
    PutOff,
    Refused,
    Retry,
    RunStep,
    Settlement,
    Step,
    Suspend,
    Take,
)
from command_bus.transport.unique_keys import stored_key

_VERBS = {"completed": "d", "rejected": "n", "expired": "x", "cancelled": "c"}
_FOLLOWS = {"stay": "s", "yield": "y", "leave": "l"}


def encode_step(
    space: KeySpace, lease: Lease, step: Step, names: list[str], args: list[Any], sent: list[FollowUp | ChildOutcome]
) -> None:
    """Append a step's arguments, and the keys that its operation names, in the order that the header of advance.lua gives.

    Args:
        space: All shards.
        lease: Holds the step's mailbox.
        step: To be encoded.
        names: Keys so far.
        args: Arguments so far.
        sent: Follow-ups so far.
    """
    extra: list[Any] = []
    unused = "t" if lease.is_unused else ""
    match step:
        case Done(left, follow, status, state):
            running = f"{lease.attempt_id}>{lease.ahead[-1][0]}" if lease.ahead else lease.attempt_id
            if left is not NO_SETTLEMENT or state is not None:
                flags = unused
                if state is not None:
                    names.append(space.shards[lease.shard].states)
                    extra.append(state)
                    flags += "s"
                flags += encode_left(space, lease, left, names, extra, sent)
                args += (_VERBS[status] + _FOLLOWS[follow] + flags, lease.activation, lease.holder, running, *extra)
            else:
                args += (_VERBS[status] + _FOLLOWS[follow], lease.activation, lease.holder, running)
        case Take(granted):
            args += ("ts", lease.activation, lease.holder, f"+|{granted}" if granted else lease.attempt_id)
        case Refused():
            args += ("ll", lease.activation, lease.holder, lease.attempt_id)
        case DeadLetterStep(left, record, raw, follow):
            flags = unused + encode_left(space, lease, left, names, extra, sent)
            args += ("b" + _FOLLOWS[follow] + flags, lease.activation, lease.holder, lease.attempt_id, *extra, record, raw)
        case RunStep():
            _encode_run(space, lease, step, names, args, sent)
        case Extend(last, count):
            args += ("el", lease.activation, lease.holder, lease.attempt_id, last, count)
        case Park(left, record, raw):
            flags = unused + encode_left(space, lease, left, names, extra, sent)
            args += ("pl" + flags, lease.activation, lease.holder, lease.attempt_id, *extra, record, raw)
        case _:
            _encode_pause(space, lease, step, unused, names, args)


def _encode_run(
    space: KeySpace, lease: Lease, run: RunStep, names: list[str], args: list[Any], sent: list[FollowUp | ChildOutcome]
) -> None:
    """Append the arguments of a step of a run: those of its own step, and in front of what belongs to its verb those that were settled before."""
    own: list[Any] = []
    encode_step(space, lease, run.step, names, own, sent)
    letters, verb_at = "k", len(own) - _VERB_ARGUMENTS[type(run.step)]
    more: list[Any] = []
    if run.state is not None:
        letters = "sk"
        names.append(space.shards[lease.shard].states)
        more.append(run.state)
    more += (run.run.part, run.started.message, len(run.before))
    for started, end in run.before:
        left: list[Any] = []
        verb = _VERBS[end.status] if type(end) is Done else "b"
        more += (f"{verb}s{encode_left(space, lease, end.left, names, left, sent)}", started.message, *left)
        if type(end) is DeadLetterStep:
            more += (end.record, end.raw)
    operation, *head = own[:verb_at]
    args += (operation + letters, *head, *more, *own[verb_at:])


_VERB_ARGUMENTS = {Done: 0, DeadLetterStep: 2, Park: 2, Retry: 2, PutOff: 2, GiveBack: 1}


def _encode_pause(
    space: KeySpace, lease: Lease, step: Retry | PutOff | GiveBack | Suspend, unused: str, names: list[str], args: list[Any]
) -> None:
    """Append the arguments of a step that settles nothing and starts nothing."""
    match step:
        case Retry(delay_ms, counts, error):
            why = f"{int(counts)}{error.replace('%', '%25').replace('|', '%7C')}"
            args += (f"wl{unused}", lease.activation, lease.holder, lease.attempt_id, delay_ms, why)
        case PutOff(delay_ms):
            args += ("wl", lease.activation, lease.holder, lease.attempt_id, delay_ms, "s")
        case GiveBack(counts):
            args += (f"gl{unused}", lease.activation, lease.holder, lease.attempt_id, int(counts))
        case Suspend(command_id, awaited, wanted, until_ms, knows_wish):
            keys = space.shards[lease.shard]
            names += (keys.side(command_id), keys.suspended)
            until = "" if until_ms is None else until_ms
            args += (
                "ulx",
                lease.activation,
                lease.holder,
                lease.attempt_id,
                "",
                until,
                int(knows_wish),
                wanted,
                len(awaited),
                command_id,
                *awaited,
            )


def encode_left(
    space: KeySpace, lease: Lease, left: Settlement, names: list[str], args: list[Any], sent: list[FollowUp | ChildOutcome]
) -> str:
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
        names += keys.keeping(left.dispatch)
        args.append(left.outcome)
        flags += "o"
    if left.unique:
        names.append(keys.unique)
        args.append(stored_key(lease.mailbox, left.unique))
        flags += "u"
    if left.side:
        names.append(keys.side(left.command_id))
        args.append("k" if left.side == "kept" else "")
        flags += "x"
    if left.follow_ups or left.waiting is not None:
        flags += _send(space, keys, left, names, args)
        sent += left.follow_ups if left.waiting is None else (*left.follow_ups, left.waiting)
    return flags


def _send(space: KeySpace, keys: ShardKeys, left: Settlement, names: list[str], args: list[Any]) -> str:
    """Append what a settled command sends: follow-ups, and its outcome for the command that called it; return the letters for it."""
    flags, follow_ups, told = "", list[FollowUp | ChildOutcome](left.follow_ups), left.waiting
    if told is not None and space.of(told.mailbox) is keys:
        names += (keys.mailbox(told.mailbox), keys.side(told.command_id), keys.suspended)
        args += (told.call, told.child, told.reply)
        flags = "r"
    elif told is not None:
        follow_ups.append(told)
    if follow_ups:
        names += (keys.delayed, keys.delayed_counts)
        args.append(len(follow_ups))
        for each in follow_ups:
            encode_follow_up(space, keys, each, names, args)
        flags += "f"
    return flags


def encode_follow_up(space: KeySpace, keys: ShardKeys, sent: FollowUp | ChildOutcome, names: list[str], args: list[Any]) -> None:
    """Append the two keys and the four arguments of a follow-up: see `lua/shared/deliver.lua`.

    Args:
        space: All shards.
        keys: Names of the keys of the shard that sends it.
        sent: The follow-up.
        names: Keys so far.
        args: Arguments so far.
    """
    shard = space.shard_of(sent.mailbox)
    target = "" if space.shards[shard] is keys else str(shard)
    names += (f"{keys.outs}{shard}",) * 2 if target else follow_up_keys(keys, sent)
    if type(sent) is FollowUp:
        args += (follow_up_text(target, sent.flow or NORMAL_FLOW, sent), sent.delay_ms, sent.envelope, sent.mark)
    elif type(sent) is ChildOutcome:
        args += (follow_up_text(target, OUTCOME_FLOW, sent), 0, sent.reply, f"{sent.child}|{sent.call}")


def caller_arguments(space: KeySpace, keys: ShardKeys, left: Settlement, names: list[str]) -> tuple[str | bytes, ...]:
    """Return three arguments for the durable command that called one, if one did: text, outcome, extra; append its two keys to the names."""
    if left.waiting is None:
        names += (keys.mark(left.command_id),) * 2
        return "", "", ""
    told: list[Any] = []
    encode_follow_up(space, keys, left.waiting, names, told)
    return told[0], told[2], told[3]


def follow_up_keys(keys: ShardKeys, sent: FollowUp | ChildOutcome) -> tuple[str, str]:
    """Return the keys of a follow-up in its own shard: its mailbox, and its mark or the side record that an outcome is for."""
    other = keys.side(sent.command_id) if type(sent) is ChildOutcome else keys.mark(sent.command_id)
    return keys.mailbox(sent.mailbox), other


def follow_up_text(target: str, flow: str, sent: FollowUp | ChildOutcome) -> str:
    """Return the text of a follow-up: see `lua/shared/deliver.lua`."""
    return f"{target}|{flow}|{sent.mailbox}|{sent.command_id}"
