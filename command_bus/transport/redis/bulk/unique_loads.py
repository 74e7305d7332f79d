"""Chunks of a dispatch in which commands have unique keys: the arguments of bulk_load_unique.lua, and what its answers name.

As for single dispatches, the script asks to be asked again if the caller or another dispatch of a command has to be told that it is replaced:
every request names all keys that it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from command_bus.serialization.reply import Cancelled, pack_reply
from command_bus.transport.bulk import EntityOwner, Loaded, LoadItem, Version
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.sending.enqueue_arguments import flow_argument
from command_bus.transport.redis.sending.unique_batches import ASK_AGAIN, texts_in
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Admission
from command_bus.transport.unique_keys import Stander, dispatch_flag

_ADMISSIONS = {ord(admission.value): admission for admission in Admission}


class UniqueLoad:
    """The request that loads a chunk with unique keys.

    Args:
        keys: Of the shard.
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

    def loaded(self, answer: bytes) -> Loaded:
        """Return what became of the chunk."""
        count = len(self._items)
        codes = answer[:count]
        shared, _, names = answer[count:].partition(b" ")
        others = tuple(name.decode(errors="replace") for name in texts_in(names, 0))
        return Loaded(False, [_ADMISSIONS[code] for code in codes], int(shared), others)

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
