"""The rules by which a producer answers (`Producer`), on every server and on the transport in lists."""

from __future__ import annotations

from command_bus import CommandBus
from command_bus.transport.marks import digest_in, mailbox_in
from command_bus.transport.submissions import Admission, Submission
from tests.conformance.conftest import Sandbox
from tests.conformance.list_server import ListServer
from tests.conformance.list_transport import lists

ACCEPTED, DUPLICATE, CONFLICT = Admission.ACCEPTED, Admission.DUPLICATE, Admission.CONFLICT
ENTITY_FULL, TOTAL_FULL, HELD_BACK, DRAINING = (
    Admission.ENTITY_FULL,
    Admission.TOTAL_FULL,
    Admission.PREDECESSOR_REFUSED,
    Admission.DRAINING,
)
TOTAL = 6


def command(mailbox: str, command_id: str, content: bytes = b"the same", *, delay_ms: int = 0, marked: bool = True) -> Submission:
    """Return a command for a mailbox that holds two."""
    return Submission(mailbox, command_id, b"", content, max_depth=2, delay_ms=delay_ms, marked=marked)


async def follow_the_rules(bus: CommandBus) -> None:
    """Check each rule with one batch."""
    transport = bus.session.transport
    producer = transport.producer
    batch = [command("a:1", "c1"), command("a:1", "c2", delay_ms=60_000), command("a:1", "c3"), command("a:2", "c4")]
    full = await producer.enqueue_many([*batch, command("a:1", "c5"), command("a:1", "c1")], 5.0)
    assert full == [ACCEPTED, ACCEPTED, ENTITY_FULL, ACCEPTED, HELD_BACK, DUPLICATE]
    [mark] = await transport.locations.marks("c1")
    assert (digest_in(mark), mailbox_in(mark)) == (b"the same", "a:1")
    assert await transport.locations.marks("c3") == []

    await bus.entity("a", "2").drain()
    drained = [command("a:2", "c4"), command("a:2", "c4", b"the s__e"), command("a:2", "c6"), command("a:2", "c7")]
    assert await producer.enqueue_many(drained, 5.0) == [DUPLICATE, CONFLICT, DRAINING, DRAINING]
    await bus.entity("a", "2").resume()

    after_a_conflict = [command("a:2", "c4", b"the s__e"), command("a:2", "c8")]
    assert await producer.enqueue_many(after_a_conflict, 5.0) == [CONFLICT, ACCEPTED], "a conflict holds nothing back"
    unmarked = [command("a:3", "c9", marked=False), command("a:3", "c9", marked=False)]
    assert await producer.enqueue_many(unmarked, 5.0) == [ACCEPTED, ACCEPTED]
    assert await transport.locations.marks("c9") == []
    beyond = [command("a:4", "d1"), command("a:4", "d2"), command("a:4", "c1"), command("a:5", "d3")]
    assert await producer.enqueue_many(beyond, 5.0) == [TOTAL_FULL, HELD_BACK, DUPLICATE, TOTAL_FULL]


async def test_on_every_server(sandbox: Sandbox) -> None:
    async with sandbox.bus(max_total_depth=TOTAL) as bus:
        await follow_the_rules(bus)


async def test_on_lists() -> None:
    async with CommandBus("redis://unused", open_transport=lists(ListServer()), max_total_depth=TOTAL) as bus:
        await follow_the_rules(bus)
