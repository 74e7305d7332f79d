"""Batches of commands with unique keys: which go together, what their requests name, and what the answers name.

The script asks the producer to ask again if it has to answer the caller of a command that is replaced: only then the producer knows that
command's mark and inbox, which every request must name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from command_bus.serialization.reply import Cancelled, pack_reply
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Admission, Submission
from command_bus.transport.unique_keys import LoadKey, Stander, UniqueSubmission

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


def fold_argument(unique: UniqueSubmission | LoadKey, delay_ms: int, stander: str) -> str:
    """Return how a command folds, as the scripts take it. `stander` is what it stores if it holds the key, from the flags on."""
    return f"{unique.mode} {delay_ms} {'+' * unique.extends}{unique.window_ms} {unique.longest_ms} {stander}"


def named_standers(
    keys: ShardKeys, standers: Mapping[str, bytes], replacing: Mapping[str, str], mailbox: str, retention: Retention
) -> tuple[list[str], list[Any]]:
    """Return the keys and arguments that name commands which hold unique keys.

    Args:
        keys: Names of the shard's keys.
        standers: What is stored of these commands, by their unique keys. What is none of ours is named nowhere, and never replaced.
        replacing: By unique key, what may replace the command.
        mailbox: Stands where there is no key.
        retention: Says how long the mark of a command is kept that is replaced.
    """
    names: list[str] = []
    words: list[Any] = []
    for key, value in standers.items():
        stander = Stander.parse(value)
        if stander is None:
            continue
        kept = retention.mark_ms(given_id=stander.given_id, called=bool(stander.inbox))
        names += (
            keys.mark(stander.command_id) if kept else mailbox,
            keys.inbox(stander.inbox) if stander.inbox else mailbox,
            *(keys.keeping(stander.dispatch) if stander.keeps_end else (mailbox, mailbox)),
        )
        end = Cancelled(f"{replacing[key]} took its place, of the same unique key", "superseded")
        words += (key, value, pack_reply(stander.command_id, end), kept)
    return names, words


def standers_in(answer: bytes) -> dict[str, bytes]:
    """Return who holds unique keys, from an answer that asks to ask again."""
    texts = texts_in(answer, len(ASK_AGAIN))
    return {key.decode(): value for key, value in zip(texts[::2], texts[1::2], strict=True)}


def admissions_of(submissions: Sequence[Submission], answer: bytes) -> bytes:
    """Return the admissions in an answer. The commands that it names behind them are noted at these commands."""
    names = iter(texts_in(answer, len(submissions)))
    for submission, code in zip(submissions, answer, strict=False):
        if submission.unique is not None:
            submission.unique.other = next(names).decode(errors="replace") if code in _NAMING else None
    return answer[: len(submissions)]


def texts_in(answer: bytes, at: int) -> list[bytes]:
    """Return the texts in an answer from a place on, each with its length and a colon before it."""
    found: list[bytes] = []
    while at < len(answer):
        colon = answer.index(b":", at)
        end = colon + 1 + int(answer[at:colon])
        found.append(answer[colon + 1 : end])
        at = end
    return found
