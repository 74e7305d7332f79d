"""Bytes of server memory per queued command, without and of the dedup marks, and what is left of an entity without work.

`lanes` are compared with a bare stream that holds the same envelopes. `per_entity` depends on the server's `stream-node-max-bytes`: a
mailbox reserves its first node at once. Both the recommended setting (512) and the server's default (4096) are measured.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import redis

from benchmarks.case import Case
from benchmarks.cases.messages import note
from benchmarks.figures import Sample
from benchmarks.ground import NAMESPACE, Ground
from command_bus import Envelope, SyncCommandBus
from command_bus.messages.policies import EntityPolicy, MailboxPolicy, lanes, per_entity
from command_bus.transport.redis.keys import KeySpace, ShardKeys

__all__ = ["ALL", "used"]

_BATCH = 1000
_NODE = "stream-node-max-bytes"
_LANES = 16
_UNLIMITED = 10_000_000
_LOOKS, _PAUSE, _STEADY = 20, 0.15, 4096


def queued(ground: Ground, mailbox: MailboxPolicy, each: int, node: int | None = None) -> Sample:
    """Measure bytes of the queued commands when `each` of them share an entity."""
    count, before = ground.count(20_000, least=1000), str(_setting(ground))
    if node is not None:
        ground.client.config_set(_NODE, node)
    try:
        return _queued(ground, count, mailbox, each)
    finally:
        ground.client.config_set(_NODE, before)


def _queued(ground: Ground, count: int, mailbox: MailboxPolicy, each: int) -> Sample:
    policies = {"bench": EntityPolicy(mailbox=mailbox)}
    with SyncCommandBus(ground.url, namespace=NAMESPACE, entities=policies, max_depth=_UNLIMITED) as bus:
        bus.dispatch(note(0, 1))  # what a namespace has once
        empty = used(ground)
        for start in range(0, count, _BATCH):
            numbers = range(start, min(start + _BATCH, count))
            bus.dispatch_batch([note(number, max(count // each, 1)) for number in numbers])
        each_bytes = (used(ground) - empty) / count
        return {"bytes_each": each_bytes, "mark_bytes": _mark(ground, bus, count)}


def _mark(ground: Ground, bus: SyncCommandBus, count: int) -> float:
    """Measure bytes of the mark of a command with a given id, as `order-00004711`; generated ids have none."""
    for start in range(0, count, _BATCH):
        numbers = range(start, min(start + _BATCH, count))
        bus.dispatch_batch([Envelope(note(number, 1000), command_id=f"order-{number:08d}") for number in numbers])
    full = used(ground)
    marks = _without_marks(ground)
    return (full - used(ground)) / marks if marks else 0.0


def bare(ground: Ground) -> Sample:
    """Measure one stream with the same envelopes and nothing else."""
    count = ground.count(20_000, least=1000)
    envelope = _an_envelope(ground)
    ground.clear()
    empty = used(ground)
    pipeline = ground.client.pipeline(transaction=False)
    for _ in range(count):
        pipeline.xadd("bare", {"e": envelope})
    pipeline.execute()
    return {"bytes_each": (used(ground) - empty) / count}


def idle(ground: Ground) -> Sample:
    """Measure keys and bytes that are left of entities whose work is done, without the dedup marks."""
    count = ground.count(10_000, least=1000)
    _come_and_gone(ground, count)  # hash tables, once grown, are the same for any number of idle entities
    keys, before = _keys(ground), used(ground)
    resident = _come_and_gone(ground, count)
    return {
        "keys_each": (_keys(ground) - keys) / count,
        "bytes_each": max(used(ground) - before, 0) / count,
        "rss_mb": resident / 1e6,
    }


def _come_and_gone(ground: Ground, count: int) -> int:
    """Send so many entities a command and handle it; return the worker's resident bytes."""
    with ground.ours("fill", count, entities=count) as filler:
        filler.go()
        filler.report()
    with ground.ours("work", count) as worker:
        worker.go()
        report = worker.report()
        with SyncCommandBus(ground.url, namespace=NAMESPACE) as bus:
            bus.wait_idle(60)
    _without_marks(ground)
    return int(report["rss"])


def _shard() -> ShardKeys:
    return KeySpace(NAMESPACE, 1).shards[0]


def _without_marks(ground: Ground) -> int:
    """Delete the dedup marks; return how many there were."""
    names = list(ground.client.scan_iter(f"{_shard().marks}*", count=1000))
    for start in range(0, len(names), _BATCH):
        ground.client.delete(*names[start : start + _BATCH])
    return len(names)


def _an_envelope(ground: Ground) -> bytes:
    """Return the bytes of one of our commands as it waits."""
    with SyncCommandBus(ground.url, namespace=NAMESPACE) as bus:
        bus.dispatch(note(12_345, 1))
    client: Any = redis.Redis.from_url(ground.url)
    try:
        (envelope,) = client.hvals(_shard().lone)
    finally:
        client.close()
    return bytes(envelope)


def used(ground: Ground) -> int:
    """Return the bytes that the server has allocated, once its tables have their final size: they resize in the background."""
    before = -1
    for _ in range(_LOOKS):
        info: Any = ground.client.info("memory")
        if abs(int(info["used_memory"]) - before) < _STEADY:
            break
        before = int(info["used_memory"])
        time.sleep(_PAUSE)
    return before


def _keys(ground: Ground) -> int:
    size: Any = ground.client.dbsize()
    return int(size)


def _setting(ground: Ground) -> str:
    found: Any = ground.client.config_get(_NODE)
    return str(found[_NODE])


def _case(name: str, mailbox: MailboxPolicy, each: int, node: int | None = None, *, quick: bool = False) -> Case:
    return Case(f"memory, {name}", "memory", partial(queued, mailbox=mailbox, each=each, node=node), quick, most=3)


ALL = [
    _case("per_entity, 1 per entity", per_entity(), 1),
    _case("per_entity, 1 per entity, stock server", per_entity(), 1, node=4096, quick=True),
    _case("per_entity, 10 per entity", per_entity(), 10),
    _case("per_entity, 10 per entity, stock server", per_entity(), 10, node=4096, quick=True),
    _case("lanes", lanes(_LANES), 10, quick=True),
    Case("memory, bare stream entry", "memory", bare, quick=True, most=3),
    Case("memory, idle entities", "memory", idle, quick=True, most=1),
]
