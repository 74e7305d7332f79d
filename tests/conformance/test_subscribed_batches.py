"""Subscriptions whose function takes many events: the order of each entity, and one event that is poison. Over every server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal

import pytest

from command_bus import CommandContext, EntitiesStopped, EntityId, Event, RawEvent, RegistrationError, RetryPolicy
from tests.conformance.conftest import Sandbox

ONCE = RetryPolicy(attempts=1)


class Deposited(Event, entity="account", name="account.deposited"):
    account: EntityId
    cents: int


class Closed(Event, entity="account", name="account.closed"):
    account: EntityId


Rows = dict[str, list[int]]


async def _published(sandbox: Sandbox, calls: list[int], rows: Rows, poison: int, *, parks: bool) -> None:
    async with sandbox.bus(shards=2) as bus:
        await bus.sender.subscriptions.declare(sandbox.registry)
        events = [Deposited(account=f"a-{number % 10}", cents=number) for number in range(100)]
        await bus.publish(*events)
        async with bus.worker(concurrency=50):
            with pytest.raises(EntitiesStopped) if parks else nullcontext():
                await bus.wait_idle(20)
            letters = [each async for each in bus.dead_letters.list()]
            assert [each.payload["cents"] for each in letters] == [poison]
            expected = {f"a-{account}": list(range(account, 100, 10)) for account in range(10)}
            mine = expected[f"a-{poison % 10}"]
            if parks:
                assert rows[f"a-{poison % 10}"] == mine[: mine.index(poison)], "nothing passes it"
            else:
                mine.remove(poison)
                assert rows == expected
            assert max(calls) > 1, "several came together"


@pytest.mark.parametrize("parks", [False, True], ids=["skip", "park"])
@pytest.mark.parametrize("by", ["class", "name", "entity"])
async def test_many_events_keep_the_order_of_each_entity_beside_one_that_is_poison(
    sandbox: Sandbox, by: str, parks: bool
) -> None:
    rows: Rows = defaultdict(list)
    calls: list[int] = []
    on_poison: Literal["park", "skip"] = "park" if parks else "skip"

    def keep(found: list[tuple[str, int]]) -> None:
        calls.append(len(found))
        if any(cents == 54 for _, cents in found):
            raise ValueError("the table refuses 54")
        for account, cents in found:
            rows[account].append(cents)

    if by == "name":

        @sandbox.registry.subscribes("archive", "account.*", size=20, on_poison=on_poison, retry=ONCE)
        async def archive(events: Sequence[RawEvent], contexts: Sequence[CommandContext]) -> None:
            assert [each.event_id for each in events] == [each.event_id for each in contexts]
            keep([(each.entity_id(), each.fields["cents"]) for each in events])

    else:
        of: Literal["entity"] | None = "entity" if by == "entity" else None

        @sandbox.registry.subscribes("archive", Deposited, size=20, of=of, on_poison=on_poison, retry=ONCE)
        async def archived(events: Sequence[Deposited]) -> None:
            keep([(str(each.account), each.cents) for each in events])

    await _published(sandbox, calls, rows, 54, parks=parks)


def test_210_a_subscription_that_takes_no_batch_is_refused(sandbox: Sandbox) -> None:
    registry = sandbox.registry

    async def one(event: Deposited) -> None: ...

    async def many(events: Sequence[Deposited]) -> None: ...

    async def raw(events: Sequence[RawEvent]) -> None: ...

    with pytest.raises(RegistrationError, match="takes no batch"):
        registry.subscribes("s", Deposited, size=10)(one)
    with pytest.raises(RegistrationError, match="is durable"):
        registry.subscribes("s", Deposited, size=10, durable=True)(many)
    with pytest.raises(RegistrationError, match="is at_most_once"):
        registry.subscribes("s", Deposited, size=10, delivery="at_most_once")(many)
    with pytest.raises(RegistrationError, match=r"subscribes\('s'\): size is a whole number from 2"):
        registry.subscribes("s", Deposited, size=1)
    with pytest.raises(RegistrationError, match="does not wait"):
        registry.subscribes("s", Deposited, of="entity", wait=1.0)
    with pytest.raises(RegistrationError, match="has no entity"):
        registry.subscribes("s", "account.*", of="entity")(raw)
    with pytest.raises(RegistrationError):
        registry.subscribes("s", Deposited)(many)
