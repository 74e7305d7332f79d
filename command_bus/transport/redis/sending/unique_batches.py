"""Batches of commands with unique keys: which go together, their keys and arguments, and what the answers name.

They have a script of their own. It asks the producer to ask again if it has to answer the caller of a command that is replaced: only then the
producer knows that command's mark and inbox, which every request must name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from command_bus.serialization.reply import Cancelled, pack_reply
from command_bus.transport.flows import NORMAL_FLOW
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Admission, Submission
from command_bus.transport.unique_keys import Stander

ASK_AGAIN = b"~"
"""The first byte of an answer that tells who holds the keys."""
_NAMING = frozenset((ord(Admission.FOLDED.value), ord(Admission.REPLACED.value)))


def goes_with(submissions: Sequence[Submission], keys: set[str], *, first: bool) -> bool:
    """Return whether commands of one caller may leave with others. Commands with unique keys leave without those that have none, each key once.

    `keys` has the unique keys of the others, and gets these; `first`, if there are no others.
    """
    if submissions[0].unique is None:
        return not keys
    these = {submission.unique.key for submission in submissions if submission.unique is not None}
    if not first and (not keys or keys & these):
        return False
    keys |= these
    return True


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
        if unique is None:
            raise ValueError(f"{submission.command_id} has no unique key: it goes with another script")
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
            *(keys.keeping(known.dispatch) if known is not None and known.keeps_end else (mailbox, mailbox)),
        )
        commands += (
            box, submission.envelope, submission.digest if submission.marked else b"", submission.command_id, unique.key, unique.mode,
            submission.delay_ms, unique.window_ms, unique.longest_ms, unique.stander, unique.known,
            b"" if known is None else pack_reply(known.command_id, _superseded(submission)), kept,
            submission.flow or NORMAL_FLOW,
        )  # fmt: skip
    prefix = len(keys.mailboxes)
    spaces = "".join(f"{room}:{sum(1 for _ in same)} " for room, same in itertools.groupby(rooms))
    return [*head_keys, keys.unique, *boxes, *names], [*head, prefix, spaces, retention.reply, *commands]


def note_standers(submissions: Iterable[Submission], answer: bytes) -> None:
    """Note at each command of a batch who holds its key, from an answer that asks to ask again."""
    for submission, known in zip(submissions, texts_in(answer, 1), strict=True):
        if submission.unique is not None:
            submission.unique.known = known


def admissions_of(submissions: Sequence[Submission], answer: bytes) -> bytes:
    """Return the admissions in an answer. The commands that it names behind them are noted at these commands."""
    names = iter(texts_in(answer, len(submissions)))
    for submission, code in zip(submissions, answer, strict=False):
        if submission.unique is not None:
            submission.unique.other = next(names).decode(errors="replace") if code in _NAMING else None
    return answer[: len(submissions)]


def _superseded(submission: Submission) -> Cancelled:
    return Cancelled(f"{submission.name} {submission.command_id} took its place, of the same unique key", "superseded")


def texts_in(answer: bytes, at: int) -> list[bytes]:
    """Return the texts in an answer from a place on, each with its length and a colon before it."""
    found: list[bytes] = []
    while at < len(answer):
        colon = answer.index(b":", at)
        end = colon + 1 + int(answer[at:colon])
        found.append(answer[colon + 1 : end])
        at = end
    return found
