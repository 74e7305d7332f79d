"""A known command id: what its mark tells, of which release and version it may be, and what keeps it."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy
from command_bus.errors import IdempotencyConflict
from command_bus.serialization.equality import is_same
from command_bus.transport.marks import waiting_mark
from command_bus.transport.redis.scripts import ENQUEUE
from command_bus.transport.submissions import Submission
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import TransportHarness
from tests.conformance.put_service import until

DIGESTS = [
    bytes.fromhex(each)
    for each in (
        "0000000000000000",
        "d101aaaa00000001",
        "d101aaaa00000002",
        "d101aaab00000001",
        "d102aaaa00000003",
        "d102aaab00000003",
        "d101aaaa00000000",
        "d102aaaa00000000",
        "1701aaaa00000001",
    )
]


async def test_what_marks_tell(harness: TransportHarness) -> None:
    """Each digest meets each other one: the script answers what `is_same` says."""
    number = 0
    for known in DIGESTS:
        await harness.client.set(harness.shard.mark("c1"), waiting_mark(known, "box:a"))
        for given in DIGESTS:
            number += 1
            keys, args = harness.enqueue_request([Submission("box:a", "c1", b"x", given, 9)], number)
            answer = await harness.connections.run(ENQUEUE, keys, args)
            assert answer == (b"=" if is_same(known, given) else b"!"), (known.hex(), given.hex())


class Fail(Command[None], entity="box", retry=RetryPolicy(attempts=1), name="fail"):
    box: EntityId
    values: dict[str, Any]
    left: int = 5


def failing(sandbox: Sandbox, on_poison: Literal["skip", "park"]) -> type[Command[None]]:
    class Failing(Fail, entity="box", name="fail", retry=RetryPolicy(attempts=1), on_poison=on_poison): ...

    async def handle(command: Failing) -> None:
        raise ValueError(command.left)

    sandbox.registry = HandlerRegistry()
    sandbox.registry.handles(Failing)(handle)
    return Failing


async def buried(bus: CommandBus) -> bool:
    return bool(await bus.dead_letters.count())


@pytest.mark.parametrize("on_poison", ["skip", "park"])
@pytest.mark.parametrize("act", ["nothing", "replay", "discard"])
async def test_a_dead_letter_is_compared_by_what_was_sent(sandbox: Sandbox, on_poison: Any, act: str) -> None:
    kind: Any = failing(sandbox, on_poison)
    async with sandbox.bus() as bus:
        async with bus.worker():
            await bus.dispatch(kind(box="b", values={"a": 1, "b": 2}), command_id="c-1")
            await until(partial(buried, bus))
        letter = await anext(bus.dead_letters.list())
        if act != "nothing":
            await getattr(bus.dead_letters, act)(letter.id)
        again = await bus.dispatch(kind(box="b", values={"b": 2, "a": 1}, left=5), command_id="c-1")
        assert again.status == "duplicate"
        for other in (kind(box="b", values={"a": 1}), kind(box="b", values={"a": 1, "b": 2}, left=6)):
            with pytest.raises(IdempotencyConflict):
                await bus.dispatch(other, command_id="c-1")


async def test_an_edited_letter_is_another_command(sandbox: Sandbox) -> None:
    kind: Any = failing(sandbox, "skip")
    async with sandbox.bus() as bus:
        async with bus.worker():
            await bus.dispatch(kind(box="b", values={"a": 1}), command_id="c-1")
            await until(partial(buried, bus))
        letter = await anext(bus.dead_letters.list())
        await bus.dead_letters.replay(letter.id, payload=kind(box="b", values={"a": 2}))
        with pytest.raises(IdempotencyConflict):
            await bus.dispatch(kind(box="b", values={"a": 1}), command_id="c-1")
        edited = {"values": {"a": 2}, "left": 5, "box": "b"}
        assert (await bus.dispatch_raw("box", "b", "fail", edited, command_id="c-1")).status == "duplicate"
