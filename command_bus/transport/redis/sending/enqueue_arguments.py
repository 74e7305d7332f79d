"""Keys and arguments of the enqueue scripts: few arguments, because each costs time on the server."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import pack
from typing import Any

from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.submissions import Submission

_KINDS = {(False, False): "p", (True, False): "m", (False, True): "d", (True, True): "b"}


def enqueue_arguments(
    keys: ShardKeys, head_keys: list[str], head: list[Any], submissions: Iterable[Submission]
) -> tuple[list[str], list[Any]]:
    """Return the keys and arguments of a batch, in the order that the header of the script gives.

    Args:
        keys: The keys of the shard.
        head_keys: Those before the mailboxes.
        head: The arguments that are not of these commands.
        submissions: In the order in which they are to be accepted.
    """
    boxes: dict[str, int] = {}
    rooms: list[int] = []
    targets: list[int] = []
    kinds: list[str] = []
    envelopes: list[bytes] = []
    marks: list[str] = []
    digests: list[bytes] = []
    delays: list[Any] = []
    flows: dict[str, int] = {}
    flow_numbers: list[int] = []
    for submission in submissions:
        box = boxes.get(submission.mailbox)
        if box is None:
            box = boxes[submission.mailbox] = len(boxes) + 1
            rooms.append(submission.max_depth)
        targets.append(box)
        envelopes.append(submission.envelope)
        if flows or submission.flow:
            flow_numbers += [0] * (len(targets) - 1 - len(flow_numbers))
            flow_numbers.append(flows.setdefault(submission.flow, len(flows) + 1) if submission.flow else 0)
        if not submission.marked and not submission.delay_ms:
            kinds.append("p")
            continue
        kinds.append(_KINDS[submission.marked, submission.delay_ms != 0])
        if submission.marked:
            marks.append(keys.mark(submission.command_id))
            digests.append(submission.digest)
        if submission.delay_ms:
            delays += (submission.delay_ms, submission.command_id)
    prefix = keys.mailboxes
    spaces = "".join(f"{room}:{sum(1 for _ in same)} " for room, same in itertools.groupby(rooms))
    letters = "".join(kinds) if marks or delays or flows else ""
    of_flows = _flow_area(flows, flow_numbers) if flows else b""
    args: list[Any] = [
        *head, len(prefix), spaces,
        pack(f">{len(targets)}H", *targets), letters.encode() + of_flows, *envelopes, *digests, *delays,
    ]  # fmt: skip
    return [*head_keys, *[prefix + mailbox for mailbox in boxes], *marks], args


def flow_argument(flows: Sequence[str]) -> bytes:
    """Return the flows of commands as the scripts take them; empty if none of them has a class or a tenant."""
    if not any(flows):
        return b""
    numbers: dict[str, int] = {}
    of_commands = [numbers.setdefault(flow, len(numbers) + 1) if flow else 0 for flow in flows]
    return _flow_area(numbers, of_commands)


def _flow_area(flows: Iterable[str], numbers: Sequence[int]) -> bytes:
    return "".join(f"{flow} " for flow in flows).encode() + b":" + pack(f">{len(numbers)}H", *numbers)


def enqueue_one_arguments(
    keys: ShardKeys, head_keys: list[str], head: list[Any], submission: Submission
) -> tuple[list[str], list[Any]]:
    """Return the keys and arguments of enqueue_one.lua for a command without delay.

    Args:
        keys: The keys of the shard.
        head_keys: Those before the mailbox.
        head: The arguments that are not of this command.
        submission: The command.
    """
    names = [*head_keys, keys.mailboxes + submission.mailbox]
    args: list[Any] = [*head, submission.max_depth, submission.envelope]
    if submission.marked:
        names.append(keys.mark(submission.command_id))
        args.append(submission.digest)
    return names, args


def renew(submissions: Iterable[Submission]) -> bool:
    """Pack again the envelopes that contain a deadline; return whether there are any. Only the envelopes change, so it is the same batch."""
    found = False
    for submission in submissions:
        if submission.renewed is not None:
            found = True
            with suppress(Exception):  # an application's cipher may raise anything: then the envelope stays
                submission.envelope = submission.renewed()
    return found
