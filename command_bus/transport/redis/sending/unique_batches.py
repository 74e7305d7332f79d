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
from command_bus.transport.ports.bulk import EntityOwner, LoadAnswer, LoadItem, Version
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.sending.enqueue_arguments import flow_argument
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Admission, Submission
from command_bus.transport.unique_keys import Stander, dispatch_flag

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
        keys: The keys of the shard.
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


_ADMISSIONS = {ord(admission.value): admission for admission in Admission}


class UniqueLoad:
    """The request that loads a chunk with unique keys.

    Args:
        keys: The keys of the shard.
        version: The version that is loaded.
        items: The commands, in order.
        head: Version, limit, room, prefix, ttl and `sequenced`, as the script takes them.
        retention: Says how long marks and replies are kept of commands that are replaced.
        entity_owner: The task that loads, or None.
    """

    def __init__(
        self,
        keys: ShardKeys,
        version: Version,
        items: Sequence[LoadItem],
        head: Sequence[Any],
        *,
        retention: Retention,
        entity_owner: EntityOwner | None,
    ) -> None:
        self._keys = keys
        self._items = items
        self._retention = retention
        self._named: dict[str, bytes] = {}
        self._boxes = {mailbox: box for box, mailbox in enumerate(dict.fromkeys(item[0] for item in items), 1)}
        self._names = _fixed_keys(keys, version.dispatch_id)
        self._head = list(head)
        owner = entity_owner
        self._rest: list[Any] = [
            b"".join([item[2] for item in items]),
            "" if owner is None else f"{owner.run}|{owner.partition}",
            int(owner is not None and owner.strict),
            flow_argument([item[6] for item in items]),
            dispatch_flag(version.dispatch_id),
            retention.reply,
        ]
        self._commands = [word for item in items for word in self._command(item)]
        self._entities = () if owner is None else owner.entities

    def request(self) -> tuple[list[str], list[Any]]:
        """Return the keys and arguments, in the order that the head of the script gives."""
        names = [*self._names, *(self._keys.mailbox(mailbox) for mailbox in self._boxes)]
        words: list[Any] = []
        otherwise = names[len(self._names)]
        for key, value in self._named.items():
            self._name(key, value, otherwise, names, words)
        head = [*self._head, len(self._boxes), len(self._named), *self._rest]
        return names, [*head, *self._commands, *words, *self._entities]

    def told(self, answer: bytes) -> None:
        """Note the standers that an answer asks to name."""
        texts = texts_in(answer, len(ASK_AGAIN))
        self._named = {key.decode(): value for key, value in zip(texts[::2], texts[1::2], strict=True)}

    def loaded(self, answer: bytes) -> LoadAnswer:
        """Return what became of the chunk."""
        count = len(self._items)
        codes = answer[:count]
        shared, _, names = answer[count:].partition(b" ")
        others = tuple(name.decode(errors="replace") for name in texts_in(names, 0))
        return LoadAnswer(False, [_ADMISSIONS[code] for code in codes], int(shared), others)

    def _command(self, item: LoadItem) -> Iterable[Any]:
        mailbox, command_id, _, envelope, entity, number, _, key = item
        yield from (self._boxes[mailbox], envelope, command_id, number, entity)
        if key is None:
            yield from ("", "")
        else:
            yield from (key.key, f"{key.mode} {key.delay_ms} {key.window_ms} {key.longest_ms} {key.name}")

    def _name(self, key: str, value: bytes, otherwise: str, names: list[str], words: list[Any]) -> None:
        """Append the keys and the reply of a stander; what is none of ours stays unnamed, and is never replaced."""
        stander, keys = Stander.parse(value), self._keys
        if stander is None:
            names += [otherwise] * 4
            words += (key, value, b"", 0)
            return
        kept = self._retention.mark_ms(given_id=stander.given_id, called=bool(stander.inbox))
        names += (
            keys.mark(stander.command_id) if kept else otherwise,
            keys.inbox(stander.inbox) if stander.inbox else otherwise,
            *(keys.keeping(stander.dispatch) if stander.keeps_end else (otherwise, otherwise)),
        )
        reply = pack_reply(
            stander.command_id, Cancelled("a row of a dispatch took its place, of the same unique key", "superseded")
        )
        words += (key, value, reply, kept)


def _fixed_keys(keys: ShardKeys, dispatch_id: str) -> list[str]:
    return [
        keys.ready, keys.active, keys.stats, keys.paused, keys.delayed_counts,
        keys.dispatch(dispatch_id), keys.ids(dispatch_id), keys.sequences(dispatch_id),
        keys.watched, keys.arrivals, keys.homes(dispatch_id), keys.lone, *keys.fair,
        keys.unique, keys.due, keys.delayed, keys.outcomes(dispatch_id),
    ]  # fmt: skip
