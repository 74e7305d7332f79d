"""Keys and arguments of the enqueue scripts: few arguments, because each costs time on the server."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import pack
from typing import Any

from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.sending.unique_batches import fold_argument, named_standers
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Submission

_KINDS = {(False, False): "p", (True, False): "m", (False, True): "d", (True, True): "b"}


def enqueue_arguments(
    keys: ShardKeys, head_keys: list[str], head: list[Any], submissions: Sequence[Submission], retention: Retention
) -> tuple[list[str], list[Any]]:
    """Return the keys and arguments of a batch, in the order that the header of the script gives.

    Args:
        keys: Names of the shard's keys.
        head_keys: Those before the mailboxes.
        head: The arguments that are not of these commands.
        submissions: In the order in which they are to be accepted; all of them have unique keys, or none.
        retention: Says how long the mark of a command is kept that is replaced.
    """
    boxes: dict[str, int] = {}
    rooms: list[int] = []
    targets: list[int] = []
    kinds: list[str] = []
    envelopes: list[bytes] = []
    marks: list[str] = []
    digests: list[bytes] = []
    delays: list[Any] = []
    lines: list[str] = []
    for number, submission in enumerate(submissions, 1):
        box = boxes.get(submission.mailbox)
        if box is None:
            box = boxes[submission.mailbox] = len(boxes) + 1
            rooms.append(submission.max_depth)
        if submission.others:
            lines.append(f"{number}={','.join(_others(submission, boxes, rooms))} ")
        targets.append(box)
        envelopes.append(submission.envelope)
        delayed = submission.delay_ms != 0 and submission.unique is None
        if not submission.marked and not delayed:
            kinds.append("p")
            continue
        kinds.append(_KINDS[submission.marked, delayed])
        if submission.marked:
            marks.append(keys.mark(submission.command_id))
            digests.append(submission.digest)
        if delayed:
            delays += (submission.delay_ms, submission.command_id)
    prefix = keys.mailboxes
    spaces = "".join(f"{room}:{sum(1 for _ in same)} " for room, same in itertools.groupby(rooms))
    if lines:
        spaces += "|" + "".join(lines)
    flows = flow_argument([submission.flow for submission in submissions])
    letters = "".join(kinds) if marks or delays or flows else ""
    names, words = _unique_arguments(keys, submissions, retention)
    args: list[Any] = [
        *head, len(prefix), spaces,
        pack(f">{len(targets)}H", *targets), letters.encode() + flows, *envelopes, *digests, *delays, *words,
    ]  # fmt: skip
    return [*head_keys, *[prefix + mailbox for mailbox in boxes], *marks, *names], args


def _others(submission: Submission, boxes: dict[str, int], rooms: list[int]) -> list[str]:
    """Return the numbers of the further mailboxes of a command."""
    for mailbox, room in submission.others:
        if mailbox not in boxes:
            boxes[mailbox] = len(boxes) + 1
            rooms.append(room)
    return [str(boxes[mailbox]) for mailbox, _ in submission.others]


def _unique_arguments(keys: ShardKeys, submissions: Sequence[Submission], retention: Retention) -> tuple[list[str], list[Any]]:
    """Return what follows the other keys and arguments of a batch of commands with unique keys."""
    if submissions[0].unique is None:
        return [], []
    words: list[Any] = [retention.reply]
    standers: dict[str, bytes] = {}
    replacing: dict[str, str] = {}
    for submission in submissions:
        unique = submission.unique
        if unique is None:
            raise ValueError(f"{submission.command_id} has no unique key: it goes in another batch")
        words += (unique.key, fold_argument(unique, submission.delay_ms, unique.stander))
        standers[unique.key], replacing[unique.key] = unique.known, f"{submission.name} {submission.command_id}"
    mailbox = keys.mailbox(submissions[0].mailbox)
    names, named = named_standers(keys, standers, replacing, mailbox, retention)
    return [keys.unique, *names], [*words, *named]


def flow_argument(flows: Sequence[str]) -> bytes:
    """Return the flows of commands as the scripts take them; empty if none of them has a class or a tenant."""
    if not any(flows):
        return b""
    numbers: dict[str, int] = {}
    of_commands = [numbers.setdefault(flow, len(numbers) + 1) if flow else 0 for flow in flows]
    return "".join(f"{flow} " for flow in numbers).encode() + b":" + pack(f">{len(flows)}H", *of_commands)


def enqueue_one_arguments(
    keys: ShardKeys, head_keys: list[str], head: list[Any], submission: Submission
) -> tuple[list[str], list[Any]]:
    """Return the keys and arguments of enqueue_one.lua for a command without delay.

    Args:
        keys: Names of the shard's keys.
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
