"""Promoting due entries costs little, whatever their size: envelopes stay on the server, and one script moves few bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.scripts import PROMOTE, Script
from command_bus.transport.steps import Retry, Started
from command_bus.transport.submissions import NO_DIGEST, Submission
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done, transport_harness

LARGE = 300_000
MEGABYTE = 1024 * 1024


class Weighing(Connections):
    """Connections that note what is promoted at a time, and how many bytes all answers had."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox.clients.at(f"{{{sandbox.namespace}:0}}:"))
        self.promoted: list[int] = []
        self.answered = 0

    async def run(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        answer = await super().run(script, keys, args)
        if script is PROMOTE:
            self.promoted.append(answer[0])
        self.answered += weight(answer)
        return answer

    async def ask(self, request: Any, *args: Any, **options: Any) -> Any:
        answer = await super().ask(request, *args, **options)
        self.answered += weight(answer)
        return answer


def weight(answer: Any) -> int:
    """Return the bytes of an answer, about."""
    if isinstance(answer, (list, tuple)):
        return sum(map(weight, answer))
    return len(answer) if isinstance(answer, (bytes, str)) else 8


@pytest.fixture
async def harness(sandbox: Sandbox) -> AsyncIterator[TransportHarness]:
    async with transport_harness(sandbox.clients, sandbox.namespace, Weighing(sandbox)) as harness:
        yield harness


@pytest.fixture
def weighing(harness: TransportHarness) -> Weighing:
    assert isinstance(harness.connections, Weighing)
    return harness.connections


async def delay(harness: TransportHarness, *sizes: int, boxes: int = 1) -> None:
    """Send delayed commands of these sizes to mailboxes in turn; they become due in their order, and are when this returns."""
    batch = [
        Submission(f"box:{i % boxes}", f"d{i:04}", f"{i:04}".encode() + bytes(size - 4), NO_DIGEST, 1000, 1 + i // 20)
        for i, size in enumerate(sizes)
    ]
    for start in range(0, len(batch), 10):
        await harness.producer.enqueue_many(batch[start : start + 10], 5)
    scored: Any = await harness.client.zrange(harness.shard.due, -1, -1, withscores=True)
    last: float = scored[0][1]
    while True:
        seconds, micros = await harness.client.time()
        if seconds * 1000 + micros // 1000 >= last:
            return


async def sent_by(harness: TransportHarness, sandbox: Sandbox) -> int:
    """Return the bytes that the server has sent to all its clients; 0 if it does not count them."""
    return 0 if sandbox.url is None else int((await harness.client.info("stats"))["total_net_output_bytes"])


@pytest.mark.promise("Large delayed commands stay on the server")
async def test_large_delayed_commands_are_promoted_on_the_server(
    sandbox: Sandbox, harness: TransportHarness, worker: ManualWorker, weighing: Weighing
) -> None:
    await delay(harness, *[LARGE] * 40, boxes=3)
    before, weighing.answered = await sent_by(harness, sandbox), 0
    await harness.promote(worker)
    assert await harness.client.zcard(harness.shard.due) == 0
    assert weighing.answered < LARGE / 2
    if sandbox.name in ("valkey", "redis", "redis62"):  # no replica and no other node that it would send them to
        assert await sent_by(harness, sandbox) - before < LARGE / 2
    assert sum(weighing.promoted) == 40
    assert max(weighing.promoted) * LARGE <= MEGABYTE + LARGE, "one script moves a megabyte and one command at most"


async def test_small_delayed_commands_are_promoted_many_at_a_time(
    harness: TransportHarness, worker: ManualWorker, weighing: Weighing
) -> None:
    await delay(harness, *[100] * 150, boxes=7)
    await harness.promote(worker)
    assert weighing.promoted == [150]


@pytest.mark.promise("Large delayed commands stay on the server")
async def test_large_and_small_ones_keep_their_order_beside_retries(
    harness: TransportHarness, worker: ManualWorker, weighing: Weighing
) -> None:
    await harness.put("box:retried", "c1")
    lease = await worker.read_one()
    await worker.do(lease, TAKE)
    await worker.do(lease, Retry(1))
    await delay(harness, *[100, 2 * MEGABYTE, 100, MEGABYTE, LARGE, LARGE, 100] * 3)
    await harness.promote(worker)
    assert await harness.client.zcard(harness.shard.due) == 0
    assert sum(weighing.promoted) == 22
    leases = {lease.mailbox: lease for lease in await worker.read()}
    assert set(leases) == {"box:0", "box:retried"}
    order = []
    started = await worker.do(leases["box:0"], TAKE)
    while isinstance(started, Started):
        order.append(int((started.envelope or b"")[:4]))
        started = await worker.do(leases["box:0"], done(f"d{order[-1]:04}"))
    assert order == list(range(21))


async def test_a_delayed_command_that_is_gone_stops_nothing(harness: TransportHarness, worker: ManualWorker) -> None:
    await delay(harness, 100, 100, 100)
    await harness.client.hdel(harness.shard.delayed, "d0001")  # type: ignore[misc]
    await harness.promote(worker)
    assert await harness.client.zcard(harness.shard.due) == 0
    assert await harness.client.xlen(harness.shard.mailbox("box:0")) == 2
