"""Dead letters: one stream per shard. Read them in pages, settle one by one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

from command_bus.errors import InvalidCommand
from command_bus.stream_ids import ms_of
from command_bus.transport.flows import NORMAL_FLOW
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.records import Resolution, StoredDeadLetter
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.mailbox_record import refuse_newer
from command_bus.transport.redis.scripts import SETTLE_DEAD_LETTER
from command_bus.transport.redis.step_arguments import caller_arguments
from command_bus.transport.steps import Settlement
from command_bus.transport.unique_keys import stored_key

_PAGE = 200
_ENTRY = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?")


class RedisDeadLetters(RetryingRequests):
    """Implements `DeadLetterStore`."""

    async def all(self) -> AsyncIterator[StoredDeadLetter]:
        """Yield all letters, oldest first per shard."""
        for index, keys in enumerate(self._keys.shards):
            async for page in self._entries(keys, keys.dead, "-"):
                for entry, fields in page:
                    yield StoredDeadLetter.parse(index, entry, fields)

    async def get(self, letter_id: str) -> StoredDeadLetter | None:
        """Return one letter, or None."""
        found_at = shard_and_entry(letter_id, self._keys.count)
        if found_at is None:
            return None
        index, entry = found_at
        keys = self._keys.shards[index]
        found: Any = await self._ask_once(keys, lambda client: client.xrange(keys.dead, entry, entry))
        return StoredDeadLetter.parse(index, found[0][0], found[0][1]) if found else None

    async def oldest_ms(self) -> int | None:
        """Return when the oldest letter of all was written, by the server's clock, or None."""
        pages = await asyncio.gather(
            *(self._ask_once(keys, lambda client, key: client.xrange(key, count=1), keys.dead) for keys in self._keys.shards)
        )
        return min((ms_of(page[0][0]) for page in pages if page), default=None)

    async def settle(
        self,
        letter: StoredDeadLetter,
        verb: Resolution,
        left: Settlement,
        edited: bytes = b"",
        flow: str = "",
        *,
        ending: bytes = b"",
    ) -> bool:
        """Replay or discard a letter; False if it is gone already. Replayed with an ending, a durable command only undoes what it did.

        Raises:
            InvalidCommand: It is edited, and so much waits behind it that its mailbox cannot be written again.
        """
        found_at = shard_and_entry(letter.id, self._keys.count)
        if found_at is None:
            return False
        index, entry = found_at
        keys = self._keys.shards[index]
        names = [keys.ready, keys.active, keys.stats, keys.paused, keys.parked, keys.dead]
        mark = keys.mark(left.command_id)
        names += [
            keys.mailbox(letter.mailbox),
            mark,
            *(keys.keeping(left.dispatch) if left.outcome else (mark, mark)),
            keys.watched,
            keys.events,
            keys.lone,
            keys.unique,
            *keys.fair,
            keys.side(left.command_id) if left.side else mark,
            keys.due,
            keys.suspended,
        ]
        args = [GROUP, verb, entry, letter.mailbox, left.mark_ms, left.mark, left.outcome, edited]
        args += [stored_key(letter.mailbox, left.unique), left.stander, flow or NORMAL_FLOW, ending]
        args += caller_arguments(self._keys, keys, left, names)
        answer = await self._run_once(keys, SETTLE_DEAD_LETTER, names, args)
        refuse_newer(answer, letter.mailbox)
        if answer == b"large":
            raise InvalidCommand(
                f"more than 8 MiB wait in {mailbox_label(letter.mailbox)}, too much to put an edited command before: replay the letter as it "
                "is, or discard it and dispatch a corrected command, which then runs behind the others"
            )
        return bool(answer != b"gone")

    async def newest(self, shard: int, before_ms: int | None = None) -> str | None:
        """Return the id of a shard's newest dead letter, of those written before `before_ms` if given; None if there is none."""
        keys = self._keys.shards[shard]
        newest = "+" if before_ms is None else f"({before_ms}-0"
        found = await self._ask(keys, lambda client: client.xrevrange(keys.dead, newest, "-", count=1))
        return found[0][0].decode() if found else None

    async def page(self, shard: int, after: str, until: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        """Return dead letters behind `after` (empty: from the first) up to and with `until`, with their ids in the shard."""
        keys = self._keys.shards[shard]
        page = await self._ask(keys, lambda client: client.xrange(keys.dead, f"({after}" if after else "-", until, count=count))
        return [(entry.decode(), StoredDeadLetter.parse(shard, entry, fields)) for entry, fields in page]


def shard_and_entry(letter_id: str, shards: int) -> tuple[int, str] | None:
    """Return the shard of a dead letter and its id there; None if it is no such id."""
    shard, _, entry = letter_id.partition("-") if isinstance(letter_id, str) else ("", "", "")
    if not shard.isdecimal() or len(shard) > 9 or int(shard) >= shards or not _ENTRY.fullmatch(entry):
        return None
    return int(shard), entry
