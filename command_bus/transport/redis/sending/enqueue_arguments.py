"""Keys and arguments of the enqueue scripts: few arguments, because each costs time on the server."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from struct import pack
from typing import Any

from command_bus.serialization.reply import Cancelled, pack_reply
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Submission
from command_bus.transport.unique_keys import Stander

__all__ = ["enqueue_arguments", "enqueue_one_arguments", "enqueue_unique_arguments", "named_commands", "told_standers"]

_KINDS = {(False, False): "p", (True, False): "m", (False, True): "d", (True, True): "b"}


def enqueue_arguments(
    keys: ShardKeys, head_keys: list[str], head: list[Any], submissions: Iterable[Submission]
) -> tuple[list[str], list[Any]]:
    """Return the keys and arguments of a batch, in the order that the header of the script gives.

    Args:
        keys: Of the shard.
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
    for submission in submissions:
        box = boxes.get(submission.mailbox)
        if box is None:
            box = boxes[submission.mailbox] = len(boxes) + 1
            rooms.append(submission.max_depth)
        targets.append(box)
        envelopes.append(submission.envelope)
        if not submission.marked and not submission.delay_ms:
            kinds.append("p")
            continue
        kinds.append(_KINDS[submission.marked, submission.delay_ms > 0])
        if submission.marked:
            marks.append(keys.mark(submission.command_id))
            digests.append(submission.digest)
        if submission.delay_ms:
            delays += (submission.delay_ms, submission.command_id)
    prefix = keys.mailboxes
    spaces = "".join(f"{room}:{sum(1 for _ in same)} " for room, same in itertools.groupby(rooms))
    args: list[Any] = [
        *head, len(prefix), spaces,
        pack(f">{len(targets)}H", *targets), "".join(kinds) if marks or delays else "", *envelopes, *digests, *delays,
    ]  # fmt: skip
    return [*head_keys, *[prefix + mailbox for mailbox in boxes], *marks], args


def enqueue_one_arguments(
    keys: ShardKeys, head_keys: list[str], head: list[Any], submission: Submission
) -> tuple[list[str], list[Any]]:
    """Return the keys and arguments of enqueue_one.lua for a command without delay.

    Args:
        keys: Of the shard.
        head_keys: Those before the mailbox.
        head: The arguments before the mailbox's name.
        submission: The command.
    """
    names = [*head_keys, keys.mailboxes + submission.mailbox]
    args: list[Any] = [*head, submission.mailbox, submission.max_depth, submission.envelope]
    if submission.marked:
        names.append(keys.mark(submission.command_id))
        args.append(submission.digest)
    return names, args


def enqueue_unique_arguments(
    keys: ShardKeys, head_keys: list[str], head: list[Any], submissions: Iterable[Submission], retention: Retention
) -> tuple[list[str], list[Any]]:
    """Return the keys and arguments of enqueue_unique.lua, for commands with unique keys.

    Args:
        keys: Of the shard.
        head_keys: Those of enqueue.lua before the mailboxes.
        head: The arguments that are not of these commands.
        submissions: In the order in which they are to be accepted, no two of the same key.
        retention: Says how long the mark of a command is kept that is replaced.
    """
    boxes: dict[str, int] = {}
    rooms: list[int] = []
    names: list[str] = []
    commands: list[Any] = []
    for submission in submissions:
        unique, mailbox = submission.unique, keys.mailboxes + submission.mailbox
        assert unique is not None  # or it would be of another batch
        box = boxes.get(mailbox)
        if box is None:
            box = boxes[mailbox] = len(boxes) + 1
            rooms.append(submission.max_depth)
        known = Stander.parse(unique.known)
        kept = 0 if known is None else retention.mark_ms(given_id=known.given_id, called=bool(known.inbox))
        names += (
            keys.mark(submission.command_id) if submission.marked else mailbox,
            keys.mark(known.command_id) if known is not None and kept else mailbox,
            keys.inbox(known.inbox) if known is not None and known.inbox else mailbox,
        )
        commands += (
            box, submission.envelope, submission.digest if submission.marked else b"", submission.command_id, unique.key, unique.mode,
            submission.delay_ms, unique.window_ms, unique.longest_ms, unique.stander, unique.known,
            b"" if known is None else pack_reply(known.command_id, _superseded(submission)), kept,
            b"" if known is None else unique.names_of(known),
        )  # fmt: skip
    prefix = len(keys.mailboxes)
    spaces = "".join(f"{room}:{sum(1 for _ in same)} " for room, same in itertools.groupby(rooms))
    return [*head_keys, keys.unique, *boxes, *names], [*head, prefix, spaces, retention.reply, *commands]


def told_standers(answer: bytes) -> list[bytes]:
    """Return for each command of a batch the one that stands for its key, from an answer of enqueue_unique.lua that asks to ask again."""
    return _texts(answer, 1)


def named_commands(answer: bytes, count: int) -> list[str]:
    """Return the commands that an answer of enqueue_unique.lua names behind the admissions of so many commands."""
    return [name.decode(errors="replace") for name in _texts(answer, count)]


def _superseded(submission: Submission) -> Cancelled:
    return Cancelled(f"{submission.name} {submission.command_id} took its place, of the same unique key", "superseded")


def _texts(answer: bytes, at: int) -> list[bytes]:
    found: list[bytes] = []
    while at < len(answer):
        colon = answer.index(b":", at)
        end = colon + 1 + int(answer[at:colon])
        found.append(answer[colon + 1 : end])
        at = end
    return found
