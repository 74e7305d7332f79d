"""Single steps of unique keys: what the script answers, stores and asks again, over lost replies and beside other programs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus.messages.unique import Unique
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.transport.redis.maintenance.upkeep import sweep_page
from command_bus.transport.redis.scripts import ENQUEUE
from command_bus.transport.redis.sending.unique_batches import standers_in
from command_bus.transport.steps import Done, GiveBack, Settlement, Started
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from command_bus.transport.unique_keys import Stander, UniqueSubmission, mailbox_of_key, stored_key
from tests.conformance.harness import ManualWorker, TransportHarness, bury, done, park

pytestmark = pytest.mark.server

BOX = "box:a"
KEY = "box:a:k"
LATEST = Unique("k", wins="latest")


def submission(
    name: str, unique: Unique | None = LATEST, *, box: str = BOX, inbox: str | None = None, **options: Any
) -> Submission:
    envelope = WireEnvelope(name, "Do", "box", box[4:], b"\x80", 1, inbox=inbox, options={"u": "k"} if unique else None)
    key = None if unique is None else UniqueSubmission.of(unique, envelope, box)
    return Submission(box, name, pack_envelope(envelope), NO_DIGEST, options.pop("max_depth", 1000), unique=key, **options)


async def send(harness: TransportHarness, *submissions: Submission) -> str:
    found: list[Any] = await harness.producer.enqueue_many(submissions, 5)
    return "".join(each.value for each in found)


async def stander(harness: TransportHarness, key: str = KEY) -> Stander | None:
    value: Any = await harness.client.hget(harness.shard.unique, key)  # type: ignore[misc]
    return None if value is None else Stander.parse(value)


def request(harness: TransportHarness, number: int, *submissions: Submission) -> tuple[list[str], list[Any]]:
    return harness.enqueue_request(submissions, number)


@pytest.mark.promise("One waits per key")
async def test_the_same_batch_is_answered_as_the_first_time(harness: TransportHarness) -> None:
    await send(harness, submission("c0"))
    keys, args = request(harness, 5, submission("c1"))
    asked = await harness.connections.run(ENQUEUE, keys, args)
    assert asked.startswith(b"~"), "the producer knows nothing of c0 yet"
    later = submission("c1")
    assert later.unique is not None
    later.unique.known = standers_in(asked)[KEY]
    keys, args = request(harness, 6, later)
    first = await harness.connections.run(ENQUEUE, keys, args)
    assert first == b"r2:c0"
    args[1] = 1
    assert await harness.connections.run(ENQUEUE, keys, args) == first, "a lost reply is asked for again"
    assert (await harness.counters())["superseded"] == 1
    with pytest.raises(Exception, match="STALE"):
        await harness.connections.run(ENQUEUE, keys, [5, *args[1:]])
    lost = [99, 1, *args[2:]]
    await harness.client.delete(keys[7])
    assert await harness.connections.run(ENQUEUE, keys, lost) == b"gone"


async def test_it_asks_again_if_another_stands_by_then(harness: TransportHarness) -> None:
    await send(harness, submission("c0"))
    later = submission("c9")
    assert later.unique is not None
    value: Any = await harness.client.hget(harness.shard.unique, KEY)  # type: ignore[misc]
    later.unique.known = value
    keys, args = request(harness, 9, later)
    await send(harness, submission("c1"))
    before = await harness.everything()
    asked = await harness.connections.run(ENQUEUE, keys, args)
    assert asked.startswith(b"~")
    assert asked.endswith(b"c1")
    assert await harness.everything() == before


async def test_marks_and_inboxes_of_the_one_that_is_replaced(harness: TransportHarness) -> None:
    await send(harness, submission("c0", inbox="p 1|2"))
    assert (await stander(harness)) is not None
    assert await send(harness, submission("c1")) == "r"
    inbox, mark = harness.shard.inbox("p 1|2"), harness.shard.mark("c0")
    assert b"superseded" in (await harness.client.lrange(inbox, 0, -1))[0]  # type: ignore[misc]
    assert 0 < await harness.client.pttl(inbox) <= 60_000
    assert (await harness.client.get(mark)).startswith(b"d" + NO_DIGEST)
    assert 60_000 < await harness.client.pttl(mark) <= 600_000
    assert (await harness.client.get(harness.shard.mark("c1"))).startswith(b"q")
    assert await harness.client.pttl(harness.shard.mark("c1")) == -1


async def test_replacing_behind_a_running_command_says_so(harness: TransportHarness, worker: ManualWorker) -> None:
    await send(harness, submission("c0", None), submission("c1"), submission("c2", None))
    lease, _ = await worker.start()
    assert await send(harness, submission("c3")) == "r"
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "H"
    ran = []
    answer: Any = await worker.do(lease, done("c0"))
    while isinstance(answer, Started):
        ran.append(answer.envelope)
        answer = await worker.do(lease, Done(Settlement("", b"", 0, unique="a:k")))
    assert ran == [submission("c2", None).envelope, submission("c3").envelope]
    assert await stander(harness) is None


@pytest.mark.parametrize("end", ["retry", "park", "give back"])
async def test_the_record_names_the_head_that_was_started(harness: TransportHarness, worker: ManualWorker, end: str) -> None:
    await send(harness, submission("c0"))
    lease, started = await worker.start()
    if end == "retry":
        await harness.retry(worker, lease, 60_000)
    else:
        await worker.do(lease, park("c0") if end == "park" else GiveBack(counts=False))
    value: Any = await harness.client.hget(harness.shard.active, BOX)  # type: ignore[misc]
    assert value.decode().endswith(f"|started={started.message}")
    assert await send(harness, submission("c1")) == "+", "what was started is not touched"
    assert await send(harness, submission("c2")) == "r"


async def test_a_settled_command_leaves_no_part(harness: TransportHarness, worker: ManualWorker) -> None:
    await send(harness, submission("c0", None), submission("c1", None), submission("c2", None))
    lease, _ = await worker.start()
    await harness.retry(worker, lease)
    await harness.promote(worker)
    lease, _ = await worker.start()
    await worker.do(lease, done("c0"))
    value: Any = await harness.client.hget(harness.shard.active, BOX)  # type: ignore[misc]
    assert b"started=" not in value


async def test_87_a_stander_that_ended_without_releasing_its_key_is_not_believed(
    harness: TransportHarness, worker: ManualWorker
) -> None:
    first = Unique("k")
    await send(harness, submission("c0", first))
    lease, _ = await worker.start()
    await worker.do(lease, bury("c0"))  # it could not be read: nobody knows its key
    assert await stander(harness) is not None
    assert await send(harness, submission("c1", first)) == "+", "its entity is idle"
    await send(harness, submission("c2", None))
    lease, _ = await worker.start()
    await worker.do(lease, bury("c1"))
    assert await send(harness, submission("c3", first)) == "+", "a later command runs"


async def test_the_sweep_releases_what_nobody_holds(harness: TransportHarness, worker: ManualWorker) -> None:
    first = Unique("k")
    await send(
        harness,
        submission("c0", first),
        submission("d0", first, box="box:b"),
        submission("e0", first, box="box:c", delay_ms=60_000),
    )
    await harness.client.xtrim(harness.shard.mailbox(BOX), maxlen=0)
    await harness.client.hset(
        harness.shard.unique, mapping={"box:x:k": b"none of ours", "box:y:k": b"1-1|99999999999999||||Do|y"}
    )  # type: ignore[misc]
    _, released, _ = await sweep_page(harness.connections, harness.shard, 0)
    assert released == 2
    left: Any = await harness.client.hkeys(harness.shard.unique)  # type: ignore[misc]
    assert sorted(left) == [b"box:b:k", b"box:c:k", b"box:y:k"], "one waits, one is delayed, of one the window is not over"


async def test_a_stander_that_is_not_there_is_not_replaced(harness: TransportHarness) -> None:
    await send(harness, submission("c0", None), submission("c1"))
    found = await stander(harness)
    assert found is not None
    await harness.client.xdel(harness.shard.mailbox(BOX), found.place)  # another program
    assert await send(harness, submission("c2")) == "+"


async def test_a_mailbox_of_another_type_fails_alone(harness: TransportHarness) -> None:
    await harness.client.set(harness.shard.mailbox("box:bad"), "text")
    assert await send(harness, submission("c0"), submission("c1", box="box:bad"), submission("c2", box="box:c")) == "+w+"
    assert await stander(harness, "box:bad:k") is None
    await harness.client.delete(harness.shard.mailbox("box:bad"))


async def test_limits_and_drains_refuse_as_for_any_command(harness: TransportHarness) -> None:
    assert await send(harness, submission("c0", max_depth=1), submission("c1", None, max_depth=1)) == "+e"
    assert await send(harness, submission("c0", max_depth=1)) == "=", "its id is known"
    assert await send(harness, submission("c2", max_depth=1)) == "r", "the other makes room"
    assert await send(harness, submission("c3", Unique("k"), max_depth=1)) == "u"
    await harness.scopes.drain(BOX, "")
    assert await send(harness, submission("c4")) == "d"
    await harness.scopes.resume(BOX)


async def test_plain_commands_and_those_with_keys_keep_their_order(harness: TransportHarness) -> None:
    names = [submission(f"c{n}", None if n % 2 else Unique("k", until="started") if n == 0 else LATEST) for n in range(6)]
    assert await send(harness, *names) == "++r+r+"
    found = [each.envelope async for page in harness.mailboxes.lined_up(BOX) for each in page]
    assert found == [names[n].envelope for n in (1, 3, 4, 5)]


async def test_a_command_with_a_key_is_never_lone(harness: TransportHarness) -> None:
    await send(harness, submission("c0"))
    assert await harness.client.xlen(harness.shard.mailbox(BOX)) == 1
    record = await harness.record(BOX)
    assert record is not None
    assert record.state == "r"


async def test_a_lone_command_is_lined_up_before_it(harness: TransportHarness) -> None:
    await send(harness, submission("c0", None))
    await send(harness, submission("c1"), submission("c2"))
    assert await harness.mailboxes.depth(BOX) == 2


def test_stored_keys_name_their_mailbox() -> None:
    assert stored_key("box:a%20b", "a%20b:k:l") == "box:a%20b:k:l"
    assert mailbox_of_key("box:a%20b:k:l") == "box:a%20b"
    assert stored_key("box/3", "a:k") == "box/3:a:k"
    assert mailbox_of_key("box/3:a:k") == "box/3"
    assert stored_key("box:a", "") == ""
    assert Stander.parse(b"1-1|0|x|||Do|a|b") == Stander("1-1", 0, 0, False, "", "Do", "a|b")
    assert Stander.parse(b"") is None


@pytest.mark.parametrize("admission", [Admission.FOLDED, Admission.REPLACED])
def test_the_letters_of_the_script_are_those_of_admission(admission: Admission) -> None:
    assert f"'{admission.value}'" in ENQUEUE.text


async def test_a_window_that_is_over_does_not_let_a_second_one_wait(harness: TransportHarness) -> None:
    window = Unique("k", window=0.001)
    assert await send(harness, submission("c0", window)) == "+"
    await asyncio.sleep(0.01)
    assert await send(harness, submission("c1", window)) == "u"
