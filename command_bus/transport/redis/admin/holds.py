"""Pause, drain and resume: one mailbox, all of an entity type, or everything.

One hash per shard lists the paused and drained scopes, and the scripts read it only if it exists: while nothing is paused, it costs
nothing. A scope is a field of the hash (`account:a-17`, `account:*`, `*`), so entities without any key yet are held as well.

A pause is one write per shard. A ready mailbox is set aside when its next command is about to start. A resume deletes the field and wakes
the mailboxes that were set aside, page by page; one script per mailbox checks again everything that may hold it. If the process that
resumes dies before it is done, mailboxes stay set aside though nothing holds them: resuming again wakes them, and so does the workers'
repair (`Upkeep`) within about five minutes.

A pause may have an end: a member of `due`, in each shard that has the pause. There a worker ends it.

A request is repeated when its answer is lost, and the repetition finds the state that was asked for. So the state before the first try
decides whether something changed. If two operators ask for the same at the same moment, both may be answered that it changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from command_bus.messages.message import is_entity_type
from command_bus.serialization.odd_values import stored_number, stored_text
from command_bus.transport.mailboxes import EVERYTHING, is_mailbox, is_wide, mailbox_parts, scope_label, scopes_of, type_scope
from command_bus.transport.records import HoldInfo, Mode
from command_bus.transport.redis.admin.type_records import HELD, MAILBOXES
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.mailbox_record import refuse_newer
from command_bus.transport.redis.scripts import HOLD

Verb = Literal["pause", "drain", "resume"]
Step = Verb | Literal["over", "ended", "wake"]

PAUSE_END = "p:"
"""Begins the members of `due` that are ends of pauses; the scope follows."""

_PAGE = 200
_STILL = (b"s|", b"b|")
"""Beginnings of records whose mailbox a pause may have stopped, itself or in another line of its command."""
_WANTED: dict[Verb, Mode | None] = {"pause": "paused", "drain": "draining", "resume": None}


def parse_hold(scope: str, value: bytes) -> HoldInfo:
    """Return the hold in a field of the hash; a value without a mode (of an earlier version) is a pause with a reason."""
    mode, _, rest = value.partition(b"|")
    since, bar, reason = rest.partition(b"|")
    label, entity_type = scope_label(scope), None if scope == EVERYTHING else mailbox_parts(scope)[0]
    if mode not in (b"p", b"d") or not bar or not since.isdigit():
        return HoldInfo(label, entity_type, "paused", 0, value.decode(errors="replace"))
    shown: Mode = "draining" if mode == b"d" else "paused"
    return HoldInfo(label, entity_type, shown, stored_number("paused", since), reason.decode(errors="replace"))


class RedisHolds(RetryingRequests):
    """RedisHolds and lets go. Every step may be repeated, and is until the server answers."""

    async def pause(self, scope: str, reason: str, until_ms: int | None = None) -> bool:
        """Start nothing of it any more; whether it was not paused before this was asked."""
        return await self._operate("pause", scope, reason, until_ms)

    async def drain(self, scope: str, reason: str) -> bool:
        """Refuse new commands and work off what is there; whether it was not drained before this was asked."""
        return await self._operate("drain", scope, reason)

    async def resume(self, scope: str) -> bool:
        """Let it go on; whether it was paused or drained before this was asked. What a wider or narrower scope holds stays held."""
        return await self._operate("resume", scope, "")

    async def wide(self) -> list[HoldInfo]:
        """Return the holds of types and of the whole bus: the bus first, then by name."""
        scopes = await self._known()
        pages = await asyncio.gather(
            *(self._ask(shard, lambda client, key: client.hmget(key, scopes), shard.paused) for shard in self._keys.shards)
        )
        ends = await self._ends([scope for scope, *values in zip(scopes, *pages, strict=True) if any(values)])
        found: list[HoldInfo] = []
        for scope, *values in zip(scopes, *pages, strict=True):
            holds = [parse_hold(scope, value) for value in values if value is not None]
            if holds:
                modes = {hold.mode for hold in holds}
                first = min(holds, key=lambda hold: hold.since_ms)
                everywhere = len(holds) == len(values) and len(modes) == 1
                found.append(replace(first, everywhere=everywhere, until_ms=ends.get(scope)))
        return found

    async def over(self, shard: ShardKeys, scope: str, at_ms: float) -> bool:
        """End a pause whose time has come, in one shard, and wake what it held; return False if it was ended or changed meanwhile.

        The end stays due until all are awake: a worker that dies in between leaves it to another.
        """
        end = str(at_ms)
        names = [] if is_wide(scope) else [scope]
        if await self._step(shard, "over", scope, "its time is over", names, end) == b"gone":
            return False
        if is_wide(scope):
            await self._wake(shard, scope)
        await self._step(shard, "ended", scope, "", [], end)
        return True

    async def _ends(self, scopes: list[str]) -> dict[str, int]:
        """Return when pauses of many entities end by themselves: the last of the shards counts."""
        members, found = [f"{PAUSE_END}{scope}" for scope in scopes], dict[str, int]()
        for ends in await asyncio.gather(*(self._due_times(keys, members) for keys in self._keys.shards)):
            found |= {member: max(found.get(member, 0), at) for member, at in ends.items()}
        return {member.removeprefix(PAUSE_END): at for member, at in found.items()}

    async def types(self) -> list[str]:
        """Return all entity types that this namespace has seen."""
        return sorted(filter(is_entity_type, await self._names()))  # other names are invalid

    async def _names(self) -> set[str]:
        first = self._keys.shards[0]
        meta: dict[bytes, bytes] = await self._ask(first, lambda client, key: client.hgetall(key), first.meta)
        return {name.partition(b":")[2].decode(errors="replace") for name in meta if name.startswith((MAILBOXES, HELD))}

    async def _known(self) -> list[str]:
        names = sorted(name for name in await self._names() if is_entity_type(name) or is_entity_type(name.removeprefix("@")))
        return [EVERYTHING, type_scope(None), *map(type_scope, names)]

    async def _operate(self, verb: Verb, scope: str, reason: str, until_ms: int | None = None) -> bool:
        shards = self._keys.shards if is_wide(scope) else (self._keys_of(scope),)
        kind = scope.removesuffix(EVERYTHING).removesuffix(":")
        if is_wide(scope) and kind and not kind.startswith("~"):
            await self._record(kind)
        modes = await asyncio.gather(*(self._mode(shard, scope) for shard in shards))
        until = "" if until_ms is None else str(until_ms)
        await asyncio.gather(*(self._on_shard(shard, verb, scope, reason, until) for shard in shards))
        return any(before != _WANTED[verb] for before in modes)

    async def _mode(self, shard: ShardKeys, scope: str) -> Mode | None:
        """Return the hold of exactly this scope in a shard, or None."""
        value: bytes | None = await self._ask(shard, lambda client: client.hget(shard.paused, scope))
        return None if value is None else parse_hold(scope, value).mode

    async def _on_shard(self, shard: ShardKeys, verb: Verb, scope: str, reason: str, until: str) -> None:
        await self._step(shard, verb, scope, reason, [] if is_wide(scope) else [scope], until)
        if is_wide(scope) and verb != "pause":
            await self._wake(shard, scope)

    async def _wake(self, shard: ShardKeys, scope: str) -> None:
        """Wake the mailboxes that were set aside. They stay until they are woken, so a scan finds them all."""
        async for page in self._hash_pages(shard, shard.active, _PAGE):
            names = [stored_text(name) for name, state in page.items() if state[:2] in _STILL and is_mailbox(name)]
            names = [name for name in names if scope in scopes_of(name)]
            if names:
                await self._step(shard, "wake", scope, "", names)

    async def _record(self, entity_type: str) -> None:
        """Record the type, so that the hold is listed even if no command of it was ever sent. Its mailbox policy stays open."""
        first = self._keys.shards[0]
        await self._ask(first, lambda client, key: client.hsetnx(key, f"held:{entity_type}", "1"), first.meta)

    async def _step(
        self, shard: ShardKeys, verb: Step, scope: str, reason: str, mailboxes: Iterable[str], until: str = ""
    ) -> Any:
        names = list(mailboxes)
        keys = [shard.ready, shard.active, shard.paused, shard.parked, shard.due, shard.watched, shard.events, shard.lone]
        keys += shard.fair
        answer = await self._run(
            shard, HOLD, keys + [shard.mailbox(name) for name in names], [GROUP, verb, scope, reason, until, *names]
        )
        refuse_newer(answer, scope)
        return answer
