"""Repeated ids, and batches with bad items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from command_bus import (
    Envelope,
    IdempotencyConflict,
    InvalidCommand,
)
from tests.conformance.bad_input import Loose, Real
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import Put, PutService, put_service


async def test_29_the_same_id_and_payload_run_once(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        command = Put(box="a", value=0)
        statuses = [(await bus.dispatch(command, command_id="same")).status for _ in range(2)]
        batch = await bus.dispatch_batch(Envelope(command, command_id=name) for name in ("same", "two", "two"))
        assert statuses == ["accepted", "duplicate"]
        assert [outcome.status for outcome in batch.outcomes] == ["duplicate", "accepted", "duplicate"]
        async with bus.worker():
            await bus.wait_idle(5)
            assert service.seen == [("a", 0), ("a", 0)]
            assert (await bus.dispatch(command, command_id="same")).status == "duplicate"
            assert await bus.call(command, command_id="same", timeout=5) == 0
            assert service.seen == [("a", 0), ("a", 0)]
            await service.assert_unharmed("a")


@pytest.mark.promise("One id, one command")
async def test_30_the_same_id_with_another_payload_is_a_conflict(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        await bus.dispatch(Put(box="a", value=0), command_id="same")
        others = (Put(box="a", value=9), Put(box="b", value=0), Real(box="a", number=0.0))
        for other in others[:1]:
            with pytest.raises(IdempotencyConflict) as conflict:
                await bus.dispatch(other, command_id="same")
            assert conflict.value.command_id == "same"
        batch = await bus.dispatch_batch([Envelope(others[2], command_id="same"), Put(box="a", value=1)])
        assert [outcome.status for outcome in batch.outcomes] == ["rejected", "accepted"]
        assert isinstance(batch.outcomes[0].error, IdempotencyConflict)
        async with bus.worker():
            await bus.wait_idle(5)
            with pytest.raises(IdempotencyConflict):
                await bus.call(others[0], command_id="same", timeout=5)
            assert service.seen == [("a", 0), ("a", 1)]
            await service.assert_unharmed("a", "b")


BAD_ITEMS: dict[str, Any] = {
    "too large": Loose(box="line-3", thing=bytes(2 * 1024 * 1024)),
    "not serializable": Loose(box="line-3", thing=object()),
    "empty entity id": Put.model_construct(box="", value=1),
    "no entity id": Put.model_construct(value=1),
    "no command": "Put",
    "headers": Envelope(Put(box="line-3", value=1), headers={"x": "y" * 100_000}),
    "delay": Envelope(Put(box="line-3", value=1), delay=-1.0),
    "id": Envelope(Put(box="line-3", value=1), command_id=""),
}


@pytest.mark.parametrize("bad", BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
async def test_31_one_bad_item_of_ten_thousand_is_reported_exactly(sandbox: Sandbox, bad: Any) -> None:
    count, at = (10_000, 4_003) if bad is BAD_ITEMS["too large"] and sandbox.name != "memory" else (600, 303)
    items: list[Any] = [Put(box=f"line-{number % 10}", value=number) for number in range(count)]
    items[at] = bad
    async with sandbox.bus() as bus:
        service = PutService(sandbox, bus)
        batch = await bus.dispatch_batch(items)
        assert len(batch) == count
        assert isinstance(batch.outcomes[at].error, InvalidCommand)
        known = "line-3" in str(bad)
        followers = set(range(at + 10, count, 10)) if known else set()
        assert {index for index, outcome in enumerate(batch.outcomes) if outcome.status == "rejected"} == followers | {at}
        assert all(getattr(batch.outcomes[index].error, "limit", "") == "predecessor" for index in followers)
        async with bus.worker():
            await bus.wait_idle(30)
            for line in range(10):
                numbers = [value for box, value in service.seen if box == f"line-{line}"]
                assert numbers == [number for number in range(line, count, 10) if number != at and number not in followers]
            await service.assert_unharmed("line-3")


async def test_31_a_batch_may_be_empty_or_endless_in_kind(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:
        assert len(await service.bus.dispatch_batch([])) == 0
        assert len(await service.bus.dispatch_batch(iter(()))) == 0
        with pytest.raises(TypeError):
            await service.bus.dispatch_batch(7)  # type: ignore[arg-type]

        def failing() -> Iterator[Put]:
            yield Put(box="a", value=0)
            raise LookupError("the source broke")

        with pytest.raises(LookupError):
            await service.bus.dispatch_batch(failing())
        await service.assert_unharmed("a")
