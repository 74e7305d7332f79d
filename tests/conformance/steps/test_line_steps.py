"""The line: what each step does to entities that wait behind the ready stream, and in which order they come."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from command_bus.transport.flows import flow_of
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.redis.ready_stream import repair_page
from command_bus.transport.redis.scripts import FILL_LINE
from command_bus.transport.redis.worker.step_batcher import LineUse
from command_bus.transport.steps import GiveBack, LeaseLost, Released, Retry, Started
from command_bus.transport.submissions import NO_DIGEST, Submission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, done, left, park, removal

OPEN = 8
HIGH, NORMAL, LOW = flow_of("high"), flow_of("normal"), flow_of("low")


async def put(harness: TransportHarness, mailbox: str, flow: str, *command_ids: str, delay_ms: int = 0) -> list[Any]:
    submissions = [
        Submission(mailbox, name, name.encode(), NO_DIGEST, 1000, delay_ms, flow=flow) for name in command_ids or (mailbox + "1",)
    ]
    return list(await harness.producer.enqueue_many(submissions, 5))


async def fill(harness: TransportHarness, flow: str, count: int, prefix: str = "box:f") -> None:
    """Put so many entities with one command each."""
    submissions = [
        Submission(f"{prefix}{number}", f"{prefix}{number}", b"x", NO_DIGEST, 10, flow=flow) for number in range(count)
    ]
    assert {answer.value for answer in await harness.producer.enqueue_many(submissions, 5)} == {"+"}


async def use_line(harness: TransportHarness, worker: ManualWorker) -> None:
    """Tell a worker that the line is in use."""
    line: LineUse = worker.batches._line_use
    await line.seen(harness.connections, harness.shard, in_use=bool(await harness.client.exists(harness.shard.flows)))


async def in_line(harness: TransportHarness) -> list[str]:
    """Return the mailboxes in the line, by flow and place."""
    members: Any = await harness.client.zrange(harness.shard.line, 0, -1)
    return [member.decode().split("/", 2)[2] for member in members]


async def run_all(harness: TransportHarness, worker: ManualWorker, most: int = 100_000, count: int = 8) -> list[str]:
    """Run what comes, some entities at a time; return the mailboxes in the order of their starts."""
    await use_line(harness, worker)
    order: list[str] = []
    while len(order) < most and (leases := await worker.read(count)):
        for lease in leases:
            answer = await worker.do(lease, TAKE)
            while isinstance(answer, Started):
                order.append(lease.mailbox)
                answer = await worker.do(lease, done("c", "yield"))
    return order


async def test_without_classes_there_is_no_line(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, NORMAL, OPEN + 10)
    assert not await harness.client.exists(*harness.shard.fair)
    assert len(await harness.activations()) == OPEN + 10
    assert len(await run_all(harness, worker)) == OPEN + 10
    assert not await harness.client.exists(*harness.shard.fair)


async def test_the_ready_stream_holds_a_handful_and_the_line_the_others(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN + 10)
    assert len(await harness.activations()) == OPEN
    assert len(await in_line(harness)) == 10
    record = await harness.record("box:f15")
    assert record is not None
    assert (record.state, record.activation, record.holder[:2]) == ("q", "", "2/")
    assert await harness.client.hget(harness.shard.lone, "box:f15") == b"x", "it has no stream yet"  # type: ignore[misc]
    order = await run_all(harness, worker)
    assert order == [f"box:f{number}" for number in range(OPEN + 10)], "first in, first out"
    assert await in_line(harness) == []
    assert await harness.nothing_of(*order)
    assert not await harness.client.exists(harness.shard.turns, harness.shard.line)


async def test_a_lone_command_keeps_its_id_through_the_line(harness: TransportHarness, worker: ManualWorker) -> None:
    """The id tells when it was accepted."""
    await fill(harness, LOW, OPEN)
    await put(harness, "box:a", LOW, "a1")
    before = await harness.record("box:a")
    assert before is not None
    await use_line(harness, worker)
    leases = await worker.read(10)
    for lease in leases:
        assert isinstance(await worker.do(lease, TAKE), Started)
    after = await harness.record("box:a")
    assert after is not None
    assert (after.state, after.message) == ("o", before.message)
    (lease,) = [each for each in await worker.read(1000) if each.mailbox == "box:a"]
    started = await worker.do(lease, TAKE)
    assert isinstance(started, Started)
    assert (started.message, started.envelope, started.attempt) == (before.message, b"a1", 1)
    assert await worker.do(lease, done("a1")) == Released("idle")
    assert await harness.nothing_of("box:a")


async def test_a_second_command_lines_up_behind_a_lone_one(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN)
    await put(harness, "box:a", LOW, "a1")
    await put(harness, "box:a", LOW, "a2")
    record = await harness.record("box:a")
    assert record is not None
    assert (record.state, record.message) == ("q", "")
    assert await harness.mailboxes.depth("box:a") == 2
    order = await run_all(harness, worker)
    assert order[-2:] == ["box:a", "box:a"]
    assert await harness.nothing_of("box:a")


async def test_high_comes_next_and_low_still_gets_its_part(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, 200, "box:l")
    await fill(harness, HIGH, 100, "box:h")
    order = await run_all(harness, worker)
    assert order[:OPEN] == [f"box:l{number}" for number in range(OPEN)], "what was ready before stays so"
    assert order[OPEN].startswith("box:h"), "then high at once"
    contended = order[OPEN : OPEN + 17 * 4]
    assert 3 <= sum(name.startswith("box:l") for name in contended) <= 4, "one of seventeen"


@pytest.mark.promise("Priorities and shares")
async def test_three_classes_start_as_16_4_1(harness: TransportHarness, worker: ManualWorker) -> None:
    for flow, name in ((LOW, "l"), (NORMAL, "n"), (HIGH, "h")):
        await fill(harness, flow, 300, f"box:{name}")
    order = await run_all(harness, worker, most=OPEN + 210)
    counts = Counter(name[4] for name in order[OPEN : OPEN + 210])
    assert counts["h"] in range(159, 163)
    assert counts["n"] in range(39, 42)
    assert counts["l"] in range(9, 12)


@pytest.mark.promise("Priorities and shares")
async def test_tenants_share_by_weight_and_one_alone_gets_all(harness: TransportHarness, worker: ManualWorker) -> None:
    from command_bus.transport.redis.admin.shares import RedisShares

    shares = RedisShares(harness.connections, harness.keys, patience=5)
    await shares.put("acme", 3.0)
    assert await shares.weights() == {"acme": 3.0}
    await fill(harness, flow_of("normal", "other"), 200, "box:o")
    await fill(harness, flow_of("normal", "acme"), 200, "box:a")
    waiting = {flow.tenant: count for flow, count in (await shares.waiting()).items()}
    assert waiting == {"acme": 200, "other": 200}
    order = await run_all(harness, worker)
    contended = order[OPEN : OPEN + 160]
    assert 118 <= sum(name.startswith("box:a") for name in contended) <= 122
    tail = order[-60:]
    assert len({name[4] for name in tail}) == 1, "alone at the end"


@pytest.mark.promise("Priorities and shares")
async def test_many_tenants_take_turns(harness: TransportHarness, worker: ManualWorker) -> None:
    """Also where more of them wait than the ready stream holds."""
    await harness.client.hset(harness.shard.flows, mapping={"c0": "0", "most": "8"})  # type: ignore[misc]
    for number in range(20):
        await fill(harness, flow_of("normal", f"t{number}"), 3, f"box:t{number}-")
    order = await run_all(harness, worker)
    tenants = [name.partition("-")[0] for name in order[:60]]
    assert Counter(tenants) == Counter({f"box:t{number}": 3 for number in range(20)})
    rounds = (tenants[8:25], tenants[25:43], tenants[43:60])
    assert [len(set(each)) for each in rounds] == [17, 18, 17], "the first eight were ready before the others came"


async def test_idle_flows_in_front_keep_nobody_waiting(harness: TransportHarness) -> None:
    idle = {f"1idle{number}": 2251799813685248 + number for number in range(200)}
    await harness.client.hset(harness.shard.flows, "c0", "0")  # type: ignore[misc]
    await harness.client.zadd(harness.shard.turns, idle)
    await harness.client.zadd(harness.shard.turns, {"1late": 2251799813685248 + 1000})
    await put(harness, "box:late", flow_of("normal", "late"))
    assert len(await harness.activations()) == 1
    assert not await harness.client.exists(harness.shard.turns), "none of them has anybody in the line"


async def test_what_was_served_is_counted_by_minutes_and_forgotten(harness: TransportHarness, worker: ManualWorker) -> None:
    seconds, _ = await harness.client.time()  # type: ignore[misc]
    minute, flow = seconds // 60, flow_of("normal", "acme")
    flows: Any = harness.shard.flows
    stale: dict[Any, Any] = {f"n:1gone{number}": f"{minute - 2}:5:5" for number in range(1500)}
    await harness.client.hset(flows, mapping={"c0": "0", f"n:{flow}": f"{minute - 1}:30:8", "counted": "1501", **stale})  # type: ignore[misc]
    await put(harness, "box:a", flow, "a1", "a2")
    assert len(await run_all(harness, worker)) == 2
    found = (await harness.client.hget(flows, f"n:{flow}")).decode()  # type: ignore[misc]
    assert found in (f"{minute}:2:30", f"{minute + 1}:2:0"), "the minute before is kept"
    for _ in range(4):
        await use_line(harness, worker)  # as once a second
    left = [name for name in await harness.client.hkeys(flows) if name.startswith(b"n:")]  # type: ignore[misc]
    assert left == [f"n:{flow}".encode()]
    assert await harness.client.hget(flows, "counted") == b"1"  # type: ignore[misc]


async def test_no_more_than_ten_thousand_flows_are_counted(harness: TransportHarness) -> None:
    flows: Any = harness.shard.flows
    await harness.client.hset(flows, mapping={"c0": "0", "counted": "9999"})  # type: ignore[misc]
    for tenant in ("a", "b", "a"):
        await put(harness, f"box:{tenant}", flow_of("normal", tenant), f"{tenant}1")
    counts = [name for name in await harness.client.hkeys(flows) if name.startswith(b"n:")]  # type: ignore[misc]
    assert counts == [b"n:1a"]
    assert await harness.client.hget(flows, "counted") == b"10000"  # type: ignore[misc]


async def test_a_weight_holds_at_once_for_what_waits(harness: TransportHarness, worker: ManualWorker) -> None:
    from command_bus.transport.redis.admin.shares import RedisShares

    shares = RedisShares(harness.connections, harness.keys, patience=5)
    await fill(harness, flow_of("normal", "other"), 300, "box:o")
    await fill(harness, flow_of("normal", "acme"), 300, "box:a")
    before = await run_all(harness, worker, most=OPEN + 40)
    await shares.put("acme", 4.0)
    after = await run_all(harness, worker, most=OPEN + 200)
    assert (
        abs(sum(name.startswith("box:a") for name in before[OPEN:]) - sum(name.startswith("box:o") for name in before[OPEN:]))
        <= 8
    )
    contended = after[OPEN : OPEN + 100]
    assert 76 <= sum(name.startswith("box:a") for name in contended) <= 84


async def test_what_an_entity_runs_is_charged_to_its_tenant(harness: TransportHarness, worker: ManualWorker) -> None:
    """Shares are of starts, however many commands an entity has."""
    for number in range(100):
        await put(harness, f"box:a{number}", flow_of("normal", "a"), *(f"a{number}-{each}" for each in range(5)))
    await fill(harness, flow_of("normal", "b"), 300, "box:b")
    await use_line(harness, worker)
    starts: Counter[str] = Counter()
    for _ in range(20):
        for lease in await worker.read(8):
            answer = await worker.do(lease, TAKE)
            while isinstance(answer, Started):
                starts[lease.mailbox[4]] += 1
                answer = await worker.do(lease, done("c", "stay"))
    assert starts["a"] >= OPEN * 5, "what was ready first"
    assert starts["b"] >= starts["a"] - OPEN * 5, "since then b has as many starts, in five times as many entities"
    later = Counter(starts)
    for _ in range(10):
        for lease in await worker.read(8):
            answer = await worker.do(lease, TAKE)
            while isinstance(answer, Started):
                later[lease.mailbox[4]] += 1
                answer = await worker.do(lease, done("c", "stay"))
    assert later["b"] - starts["b"] >= 70, "and has something good for what a ran before"


@pytest.mark.promise("Priorities and shares")
async def test_an_urgent_command_lifts_its_entity_until_it_has_run(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, 200)
    await put(harness, "box:a", LOW, "a1", "a2")
    assert (await in_line(harness))[-1] == "box:a"
    await put(harness, "box:a", HIGH, "a3")
    await put(harness, "box:a", LOW, "a4")
    assert (await in_line(harness))[0] == "box:a", "lifted"
    assert len(await in_line(harness)) == 200 - OPEN + 1, "and once there"
    await use_line(harness, worker)
    for lease in await worker.read(1):
        assert isinstance(await worker.do(lease, TAKE), Started)
    leases = [each for each in await worker.read(1000) if each.mailbox == "box:a"]
    assert leases, "next to become ready"
    lease, ran = leases[0], []
    answer = await worker.do(lease, TAKE)
    for _ in range(3):
        assert isinstance(answer, Started)
        ran.append(answer.envelope)
        assert "|f=" in (await harness.client.hget(harness.shard.active, "box:a")).decode()  # type: ignore[misc]
        answer = await worker.do(lease, done("c", "leave" if len(ran) == 3 else "stay"))
    assert ran == [b"a1", b"a2", b"a3"], "in their order"
    record = await harness.record("box:a")
    assert record is not None
    assert record.holder.startswith("2/") or record.state == "r", "low again"


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(NORMAL, LOW, "1"), (NORMAL, HIGH, "0"), (LOW, NORMAL, "1"), (HIGH, LOW, "0")]
)
async def test_the_class_is_the_highest_that_waits(harness: TransportHarness, first: str, second: str, expected: str) -> None:
    await fill(harness, LOW, OPEN, "box:f")
    await put(harness, "box:a", first, "a1")
    await put(harness, "box:a", second, "a2")
    record = await harness.record("box:a")
    assert record is not None
    assert (record.state, record.holder[0]) == ("q", expected)


async def test_low_ones_behind_normal_ones_are_low_once_those_have_run(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN)
    await put(harness, "box:a", NORMAL, "a1")
    await put(harness, "box:a", LOW, "a2", "a3")
    await use_line(harness, worker)
    for lease in await worker.read(1):
        assert isinstance(await worker.do(lease, TAKE), Started)
    (lease,) = [each for each in await worker.read(1000) if each.mailbox == "box:a"]
    assert isinstance(await worker.do(lease, TAKE), Started)
    await fill(harness, LOW, 2 * OPEN, "box:g")
    assert await worker.do(lease, done("a1", "leave")) == Released("yield")
    record = await harness.record("box:a")
    assert record is not None
    assert (record.state, record.holder[0]) == ("q", "2")


async def test_a_retry_and_what_is_given_back_wait_in_the_line(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, 3 * OPEN)
    await put(harness, "box:a", HIGH, "a1")
    await use_line(harness, worker)
    leases = await worker.read(2 * OPEN)
    first, second = leases[0], leases[1]
    assert isinstance(await worker.do(first, TAKE), Started)
    assert isinstance(await worker.do(second, TAKE), Started)
    assert await worker.do(first, Retry(0)) == Released("wait")
    assert await worker.do(second, GiveBack(counts=True)) == Released("yield")
    await harness.promote(worker)
    for lease in (first, second):
        record = await harness.record(lease.mailbox)
        assert record is not None
        assert (record.state, record.attempt) == ("q", 1)
    order = await run_all(harness, worker)
    assert sorted(order[-2:]) == sorted([first.mailbox, second.mailbox]), "behind those of their class"


async def test_repeated_steps_take_effect_once(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, 2 * OPEN)
    await put(harness, "box:f0", LOW, "again")
    await use_line(harness, worker)
    lease = (await worker.read(1))[0]
    first, second = await worker.again(lease, TAKE)
    assert isinstance(first, Started)
    assert isinstance(second, Started)
    assert first.fence == second.fence
    answers = await worker.again(lease, done("c", "leave"))
    assert answers == (Released("yield"), LeaseLost())
    assert (await in_line(harness)).count("box:f0") == 1


async def test_a_delayed_command_keeps_its_class(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, 2 * OPEN)
    await put(harness, "box:a", flow_of("high", "acme"), "a1", delay_ms=1)
    assert await harness.record("box:a") is None
    while await harness.record("box:a") is None:
        await harness.promote(worker)
    record = await harness.record("box:a")
    assert record is not None
    assert record.holder.startswith("0acme/")
    (entries,) = [await harness.client.xrange(harness.shard.mailbox("box:a"))]
    assert list(entries[0][1]) == [b"e"], "its mailbox does not keep the flow"


async def test_a_delayed_command_lifts_what_waits(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, 2 * OPEN)
    await put(harness, "box:a", LOW, "a1")
    await put(harness, "box:a", HIGH, "a2", delay_ms=1)
    while (record := await harness.record("box:a")) is not None and record.holder.startswith("2"):
        await harness.promote(worker)
    assert record is not None
    assert record.holder.startswith("0/")
    assert (await in_line(harness)).count("box:a") == 1


async def test_a_replayed_letter_keeps_its_class(harness: TransportHarness, worker: ManualWorker) -> None:
    await put(harness, "box:a", HIGH, "a1")
    _, started = await worker.start()
    lease = worker.lease("box:a", "")
    record = await harness.record("box:a")
    assert record is not None
    lease.activation, lease.holder, lease.attempt_id = record.activation, record.holder, f"{started.fence}|{started.message}"
    await worker.do(lease, park("a1"))
    await fill(harness, LOW, 2 * OPEN)
    (letter,) = [each async for each in harness.dead_letters.all()]
    assert await harness.dead_letters.settle(letter, "replay", left("a1"), HIGH)
    record = await harness.record("box:a")
    assert record is not None
    assert (record.state, record.holder[:2]) == ("q", "0/")


async def test_what_was_ready_before_is_brought_back_when_the_line_comes_into_use(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    await fill(harness, NORMAL, 3 * OPEN)
    await put(harness, "box:f5", NORMAL, "second")
    before = await harness.activations()
    leases = await worker.read(10)
    await put(harness, "box:a", HIGH, "a1")
    assert len(await harness.activations()) == 3 * OPEN
    await use_line(harness, worker)
    assert len(await harness.activations()) == OPEN + 10, "what is held does not count"
    assert (await in_line(harness))[0] == "box:a"
    assert (await in_line(harness))[1:] == before[OPEN + 10 :], "in their order"
    for lease in leases:
        assert isinstance(await worker.do(lease, TAKE), Started)
        while not isinstance(await worker.do(lease, done("c")), Released):
            pass
    order = await run_all(harness, worker)
    assert order[:OPEN] == before[10 : OPEN + 10]
    assert order[OPEN] == "box:a"
    assert sorted(order) == sorted([*before[10:], "box:a"])


async def test_bringing_back_leaves_what_is_not_ready(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, NORMAL, 2 * OPEN)
    await harness.client.xadd(harness.shard.ready, {"tick": "1"})
    await harness.client.xadd(harness.shard.ready, {"e": "box:f3"})
    await harness.client.hset(harness.shard.active, f"box:f{2 * OPEN - 1}", "u|1-1|||0|0||")  # type: ignore[misc]
    await put(harness, "box:a", HIGH, "a1")
    keys = [harness.shard.ready, harness.shard.active, *harness.shard.fair]
    assert await harness.connections.run(FILL_LINE, keys, [GROUP, 10]) == [7, 0]
    assert await harness.ticks() == 1
    assert (await harness.activations()).count("box:f3") == 2
    assert await harness.client.hget(harness.shard.active, f"box:f{2 * OPEN - 1}") == b"u|1-1|||0|0||"  # type: ignore[misc]


async def test_a_place_that_was_lost_is_given_back(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN + 3)
    await put(harness, "box:a", HIGH, "a1", "a2")
    await harness.client.delete(harness.shard.line, harness.shard.turns)
    assert (await repair_page(harness.connections, harness.shard, 0))[1] == 4
    assert (await repair_page(harness.connections, harness.shard, 0))[1] == 0
    assert len(await in_line(harness)) == 4
    assert (await in_line(harness))[0] == "box:a"
    assert len(await run_all(harness, worker)) == OPEN + 5


async def test_without_the_line_what_waits_in_it_becomes_ready(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN + 3)
    await harness.client.delete(*harness.shard.fair)
    assert (await repair_page(harness.connections, harness.shard, 0))[1] == 3
    assert len(await harness.activations()) == OPEN + 3
    assert len(await run_all(harness, worker)) == OPEN + 3


async def test_places_of_what_is_gone_are_passed_over(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN)
    await put(harness, "box:a", LOW, "a1")
    await put(harness, "box:b", LOW, "b1")
    waiting = [command async for page in harness.mailboxes.lined_up("box:a") for command in page]
    assert [command.id for command in waiting]
    assert await harness.mailboxes.remove("box:a", [removal(waiting[0], left("a1"))]) == 1
    assert await harness.nothing_of("box:a")
    await put(harness, "box:a", LOW, "a2")
    assert sorted(await in_line(harness)) == ["box:a", "box:a", "box:b"], "the former place is still there"
    await use_line(harness, worker)
    order: list[str] = []
    for _ in range(3):
        for lease in await worker.read(100):
            assert isinstance(await worker.do(lease, TAKE), Started), "no entity has two activations"
            order.append(lease.mailbox)
        await use_line(harness, worker)
    assert order[OPEN:] == ["box:b", "box:a"]
    assert await in_line(harness) == []


async def test_the_head_of_an_entity_in_line_can_be_removed(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN)
    await put(harness, "box:a", LOW, "a1", "a2")
    waiting = [command async for page in harness.mailboxes.lined_up("box:a") for command in page]
    assert await harness.mailboxes.remove("box:a", [removal(waiting[0], left("a1"))]) == 1
    record = await harness.record("box:a")
    assert record is not None
    assert record.state == "q"
    assert (await run_all(harness, worker))[-1:] == ["box:a"]


async def test_a_paused_entity_in_line_is_set_aside_and_comes_back(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, OPEN)
    await put(harness, "box:a", HIGH, "a1")
    await harness.scopes.pause("box:a", "")
    order = await run_all(harness, worker)
    assert "box:a" not in order
    record = await harness.record("box:a")
    assert record is not None
    assert record.state == "s"
    await fill(harness, LOW, 2 * OPEN, "box:g")
    await harness.scopes.resume("box:a")
    record = await harness.record("box:a")
    assert record is not None
    assert record.holder.startswith("0/")


async def test_an_unknown_state_is_left_alone(harness: TransportHarness) -> None:
    await fill(harness, LOW, OPEN)
    await put(harness, "box:a", LOW, "a1", "a2")
    strange = b"y|||1-1|0|0|2/1|f=2*2@"
    await harness.client.hset(harness.shard.active, "box:a", strange)  # type: ignore[misc]
    await put(harness, "box:a", HIGH, "a3")
    assert await harness.client.hget(harness.shard.active, "box:a") == strange  # type: ignore[misc]


async def test_a_class_that_was_idle_saves_nothing_up(harness: TransportHarness, worker: ManualWorker) -> None:
    await fill(harness, LOW, 200, "box:l")
    await run_all(harness, worker, most=150)
    await fill(harness, HIGH, 1, "box:x")
    await fill(harness, NORMAL, 300, "box:n")
    await fill(harness, LOW, 300, "box:m")
    order = await run_all(harness, worker, most=OPEN + 100)
    contended = order[OPEN : OPEN + 100]
    low = sum(name[4] in "lm" for name in contended)
    assert 15 <= low <= 26, "one of five"
