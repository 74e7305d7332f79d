"""A look over the namespace of a bench, key by key: what is left of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.tables.ends import ANY, EXPIRES, STAYS, UNREAD

if TYPE_CHECKING:
    from command_bus import CommandBus
    from tests.tables.ends_bench import Bench

__all__ = ["left_of", "tick_left_out"]


async def left_of(bench: Bench) -> list[str]:
    """Return what is left of the namespace, key by key."""
    prefix = f"{{{bench.namespace}:0}}:"
    client = bench.sandbox.clients.at(prefix).commands()
    faults = []
    try:
        async for raw in client.scan_iter(f"{prefix}*", count=1000):
            key = raw.decode().removeprefix(prefix)
            how = next(how for pattern, how in STAYS if re.fullmatch(pattern, key))
            if bench.cell.end == "obliterated":
                how = "gone"
            if how == ANY or (key == "unique" and bench.cell.end in UNREAD and not bench.keys):
                continue
            if how == EXPIRES:
                if await client.pttl(raw) < 0:
                    faults.append(f"{key} does not expire")
            elif how == "counted":
                faults += await _counted(bench, client, raw, key)
            else:
                faults.append(f"{key} is left: {await _content(client, raw)}")
    finally:
        await _cleaned(client, prefix)
        await client.aclose()
    return faults


async def _content(client: Any, key: bytes) -> Any:
    kind = await client.type(key)
    if kind == b"hash":
        return await client.hgetall(key)
    return await client.zrange(key, 0, -1, withscores=True) if kind == b"zset" else kind


async def _counted(bench: Bench, client: Any, raw: bytes, key: str) -> list[str]:
    if key == "ready":
        entries = [fields for _, fields in await client.xrange(raw) if b"e" in fields]
        return [f"activations {entries}"] if entries else []
    if key == "stats":
        depth = int(await client.hget(raw, "depth") or 0)
        return [f"a depth of {depth}"] if depth else []
    if key == "limits":
        taken = [field for field in await client.hkeys(raw) if field[:1] in (b"p", b"w")]
        return [f"limits {taken}"] if taken else []
    if key == "dead":
        kept = {"failed", "given_up", "interrupted", "expired", "unhandled", "invalid", "forged", "aborted"}
        return (
            []
            if bench.cell.end in kept or bench.cell.state == "compensating" or await client.xlen(raw) == 0
            else ["a dead letter"]
        )
    count = await (client.hlen(raw) if key == "history:ids" else client.xlen(raw))
    return [] if count == 1 else [f"{count} of {key}"]


async def _cleaned(client: Any, prefix: str) -> None:
    keys = [raw async for raw in client.scan_iter(f"{prefix}*", count=1000)]
    if keys:
        await client.delete(*keys)


async def tick_left_out(bus: CommandBus) -> list[str]:
    """Return a fault if the next tick of the schedule `s` would be left out, and remove it."""
    firing: Any = bus.schedules.firing
    record, _ = await firing.found("s")
    left_out = record is None or await firing._overlaps.skips(record)
    await bus.schedules.remove("s")
    return ["the next tick of its schedule is left out"] if left_out else []
