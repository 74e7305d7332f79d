"""The state of the server after the run, read from the server itself, not from the records of workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from command_bus import CommandBus, CommandBusError
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.reply import Completed, unpack_reply
from command_bus.transport.redis.keys import GROUP
from tests.chaos.history import Final
from tests.chaos.messages import Ghost, Total
from tests.chaos.servers import Target

__all__ = ["survey"]

_LIMITS = PayloadLimits(max_bytes=1024 * 1024)
_STANDING = {
    "meta",
    "commands",
    "ready",
    "fence",
    "stats",
    "dead",
    "workers",
    "rules",
    "limits",
    "schedules",
    "states",
    "fired",
    "flows",
    "turns",
    "note:subscriptions",
}
_RELAYED = "relayed:"
"""What one shard took of another: its generation stays."""
_PAGE = 1000


@dataclass
class _Left:
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    values: dict[str, int] = field(default_factory=dict[str, int])
    keys: list[str] = field(default_factory=list[str])
    pending: int = 0


async def survey(bus: CommandBus, target: Target, *, patience: float, tallies: Sequence[str] = ()) -> Final:
    """Wait until all work has drained, then look at everything."""
    idle = await _drained(bus, patience)
    if not idle and all(each.entity_type == Ghost.spec().entity for each in (await bus.entities.list()).entities):
        # No worker handles these. One whose worker was killed may have run, so its deadline does not count: its grace does.
        idle = await _drained(bus, bus.settings.unknown_grace)
    letters = tuple([(letter.command_id, letter.reason) async for letter in bus.dead_letters.list()])
    stats = await bus.stats()
    left = _Left()
    for admin in target.admins():
        await (
            admin.connection_pool.disconnect()
        )  # connections opened before a restart do not notice by themselves that they were cut
        await _look(admin, bus.settings.namespace, left)
        if not idle:
            await _tell_what_is_left(admin, bus.settings.namespace)
    totals: dict[str, tuple[int, int]] = {}
    for name in tallies:
        if (found := await bus.states.get(Total, name)) is not None:
            totals[f"tally:{name}"] = found.count, found.digest
    names = ("accepted", "settled", "completed", "rejected", "expired", "dead_lettered", "depth", "retried")
    counters = {name: int(getattr(stats, name)) for name in names}
    ends = tuple([end async for end in _ends(bus)]) if bus.settings.history else ()
    kept = {f"x:{command}" for command, _ in letters}  # what a durable command has stored stays with its dead letter
    keys = tuple(sorted(key for key in left.keys if key.partition("}:")[2] not in kept))
    return Final(idle, left.outcomes, left.values, letters, counters, left.pending, keys, ends=ends, totals=totals)


async def _drained(bus: CommandBus, patience: float) -> bool:
    try:
        await bus.wait_idle(patience)
    except CommandBusError:
        return False
    return True


async def _tell_what_is_left(admin: Redis, namespace: str) -> None:
    """Print what is stored of mailboxes that have not drained: their records, what is due, and who holds what."""
    print(f"chaos: not drained, at {await admin.time()}", flush=True)
    async for key in admin.scan_iter(f"{{{namespace}:*}}:*", count=_PAGE):
        shown: Any = None
        match key.decode().partition("}:")[2]:
            case "active" | "later" | "paused" | "suspended":
                shown = await admin.hgetall(key)
            case "due" | "delayed":
                shown = await admin.zrange(key, 0, 20, withscores=True)
            case "ready":
                shown = await admin.xrange(key, count=20), await admin.xpending_range(key, GROUP, "-", "+", 20)
        if shown:
            print(f"chaos:   {key.decode()} {str(shown)[:2000]}", flush=True)


async def _ends(bus: CommandBus) -> AsyncIterator[tuple[str, str]]:
    """Yield the ids and statuses of the ends in the history."""
    cursor = None
    while True:
        page = await bus.history.search(limit=_PAGE, cursor=cursor)
        for entry in page.entries:
            yield entry.command_id, entry.status
        cursor = page.cursor
        if cursor is None:
            return


async def _look(client: Redis, namespace: str, left: _Left) -> None:
    page: list[bytes] = []
    async for key in client.scan_iter(f"{{{namespace}:*", count=_PAGE):
        page.append(key)
        if len(page) >= _PAGE:
            await _sort(client, page, left)
            page = []
    await _sort(client, page, left)


async def _sort(client: Redis, keys: list[bytes], left: _Left) -> None:
    """Sort a key: marks have outcomes, keys with an expiry are ignored, permanent keys belong to the namespace, the rest is litter."""
    marks = [key for key in keys if b"}:k:" in key]
    others = [key for key in keys if b"}:k:" not in key]
    pipeline = client.pipeline(transaction=False)
    for key in marks:
        pipeline.get(key)
    for key in others:
        pipeline.pttl(key)
    answers: list[Any] = await pipeline.execute()
    for key, mark in zip(marks, answers, strict=False):
        _read_mark(key.decode().partition("}:k:")[2], mark, left)
    for key, ttl in zip(others, answers[len(marks) :], strict=True):
        name = key.decode()
        standing = name.partition("}:")[2]
        if standing == "ready":
            left.pending += (await client.xpending(key, GROUP))["pending"]
        if ttl < 0 and standing not in _STANDING and not standing.startswith(_RELAYED):
            left.keys.append(name)


def _read_mark(command_id: str, mark: bytes | None, left: _Left) -> None:
    if mark is None:
        return  # ended between two looks
    if mark[:1] != b"d":
        left.outcomes[command_id] = "waiting"
        return
    if len(mark) <= 9:
        left.outcomes[command_id] = "settled"
        return
    _, outcome = unpack_reply(mark[9:], _LIMITS)
    left.outcomes[command_id] = type(outcome).__name__.lower()
    if isinstance(outcome, Completed):
        left.values[command_id] = unpack(outcome.value, _LIMITS)
