"""Places where an entity of three commands is, and ways in which some of them leave: rows and columns of `test_levels.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from command_bus.messages.policies import Priority
from command_bus.messages.unique import Unique
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.transport.flows import flow_of
from command_bus.transport.redis.admin.entities import flow_of_entity
from command_bus.transport.redis.mailbox_record import parse_record
from command_bus.transport.steps import Lease, PutOff, Released, Retry, Started
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from command_bus.transport.unique_keys import UniqueSubmission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, left, park, removal
from tests.conformance.limits.limit_bench import LimitBench

__all__ = ["PLACES", "WAYS", "Scene"]


class Scene:
    """Entities of one harness, each with three commands of some levels."""

    def __init__(self, harness: TransportHarness) -> None:
        self.harness = harness
        self.worker: ManualWorker = harness.worker()
        self.lease: Lease | None = None

    async def put(self, box: str, number: int, level: Priority, *, unique: bool) -> None:
        envelope = WireEnvelope(f"{box}-{number}", "Do", "box", box[4:], b"\x80", 1, options={"u": "k"} if unique else None)
        key = UniqueSubmission.of(Unique("k", wins="latest"), envelope, box) if unique else None
        sent = Submission(box, envelope.command_id, pack_envelope(envelope), NO_DIGEST, 10, flow=flow_of(level), unique=key)
        (answer,) = await self.harness.producer.enqueue_many([sent], 5)
        assert answer in (Admission.ACCEPTED, Admission.REPLACED)

    async def level(self, box: str) -> Priority | None:
        """Return what the entity waits as; None if it is idle."""
        value: Any = await self.harness.client.hget(self.harness.shard.active, box)
        if value is None:
            return None
        record, entries = parse_record(value), cast("Any", await self.harness.client.xrange(self.harness.shard.mailbox(box)))
        ids: list[str] = [entry.decode() for entry, _ in entries]
        line = [place.decode() for place in cast("Any", await self.harness.client.zrange(self.harness.shard.line, 0, -1))]
        assert [place for place in line if place.endswith(f"/{box}")] == [f"{record.holder}/{box}"] * (record.state == "q")
        assert "z" not in record.parts or record.parts["z"].split(":")[1] in ids[:1], "snoozes of what has left"
        return flow_of_entity(record, record.message or (ids[0] if ids else "")).priority

    async def take(self, box: str) -> Any:
        (self.lease,) = [each for each in await self.worker.read() if each.mailbox == box]
        return await self.worker.do(self.lease, TAKE)


async def ready(scene: Scene, box: str) -> None:
    """Leave it ready, as it is."""


async def runs(scene: Scene, box: str) -> None:
    assert isinstance(await scene.take(box), Started)


async def waits_for_a_retry(scene: Scene, box: str) -> None:
    await runs(scene, box)
    assert scene.lease is not None
    assert await scene.worker.do(scene.lease, Retry(60_000)) == Released("wait")


async def is_put_off(scene: Scene, box: str) -> None:
    await runs(scene, box)
    assert scene.lease is not None
    assert await scene.worker.do(scene.lease, PutOff(60_000)) == Released("wait")


async def is_paused(scene: Scene, box: str) -> None:
    await scene.harness.scopes.pause(box, "")
    assert await scene.take(box) == Released("stop")


async def is_parked(scene: Scene, box: str) -> None:
    await runs(scene, box)
    assert scene.lease is not None
    assert await scene.worker.do(scene.lease, park(f"{box}-0")) == Released("stop")


async def waits_for_a_limit(scene: Scene, box: str) -> None:
    bench = LimitBench(scene.harness)
    scene.worker = bench.worker()
    if not await bench.state("box:z"):
        await bench.put("type:box", concurrency=1)
        await scene.harness.scopes.pause(box, "")  # until another has the only place
        await scene.harness.put("box:z", "z")
        leases = {each.mailbox: each for each in await scene.worker.read()}
        assert isinstance(await scene.worker.do(leases["box:z"], TAKE), Started)
        assert await scene.worker.do(leases[box], TAKE) == Released("stop")
        await scene.harness.scopes.resume(box)
    assert await scene.take(box) == Released("wait")


async def waits_in_the_line(scene: Scene, box: str) -> None:
    """Leave it in the line: the test has filled the ready stream."""


Place = Callable[[Scene, str], Awaitable[None]]
PLACES: dict[str, Place] = {
    each.__name__: each
    for each in (waits_in_the_line, ready, runs, waits_for_a_retry, is_put_off, is_paused, is_parked, waits_for_a_limit)
}


async def remove(scene: Scene, box: str, *numbers: int) -> None:
    waiting = [command async for page in scene.harness.mailboxes.lined_up(box) for command in page]
    if scene.lease is not None and len(waiting) < 3:  # without the one that runs
        numbers = tuple(each - 1 for each in numbers)
    leaving = [removal(waiting[each], left(f"{box}-{each}")) for each in numbers]
    assert await scene.harness.mailboxes.remove(box, leaving) == len(numbers)


Way = tuple[tuple[int, ...], tuple[Priority, ...]]
"""Which of the three leave, and what comes in their place: a command with the same unique key."""
_LEVELS: tuple[Priority, ...] = ("high", "normal", "low")
WAYS: dict[str, Way] = {
    "the first is cancelled": ((0,), ()),
    "the second is cancelled": ((1,), ()),
    "the last is cancelled": ((2,), ()),
    "both that wait behind are purged": ((1, 2), ()),
    **{
        f"the {name} is replaced by a {level} one": ((at,), (level,))
        for name, at in (("second", 1), ("last", 2))
        for level in _LEVELS
    },
}
