"""Publication: each subscription gets each event once, in the order of acceptance, in a line of its own. Over every server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    CommandContext,
    Draining,
    DurableContext,
    EntityId,
    Event,
    InvalidCommand,
    InvalidSettings,
    PublishedInPart,
    RawEvent,
    RegistrationError,
    Reject,
    RetryPolicy,
    UnknownSubscription,
    every,
)
from command_bus.sending.publishing import BOOK, SubscriptionRecord
from command_bus.transport.mailboxes import shard_key
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.states.test_states import Mirror


class Deposited(Event, entity="account", name="account.deposited"):
    account: EntityId
    cents: int


class Closed(Event, entity="account", name="account.closed"):
    account: EntityId


class Deposit(Command[None], entity="account", retry=RetryPolicy(attempts=3, delay=0.01)):
    account: EntityId
    cents: int


Seen = dict[str, list[Any]]


@pytest.fixture
def seen(sandbox: Sandbox) -> Seen:
    """Subscribe as `ledger` by classes and as `audit` by a pattern; what they got, by subscription and entity."""
    got: Seen = defaultdict(list)
    attempts: dict[str, int] = defaultdict(int)

    @sandbox.registry.subscribes("ledger", Deposited, Closed, on_poison="park", retry=RetryPolicy(attempts=1))
    async def post(event: Deposited | Closed, context: CommandContext) -> None:
        cents = event.cents if isinstance(event, Deposited) else 0
        if cents < 0 and attempts[context.event_id] == 0:
            attempts[context.event_id] += 1
            raise ValueError("below zero")
        got[f"{context.subscription} {event.account}"].append((cents, context.event_id))

    @sandbox.registry.subscribes("audit", "account.*", "order.*")
    async def write(event: RawEvent, context: CommandContext) -> None:
        assert context.event_id == event.event_id
        got[f"audit {event.entity_id()}"].append((event.name, event.fields.get("cents", 0), event.event_id))

    @sandbox.registry.handles(Deposit)
    async def deposit(command: Deposit, context: CommandContext) -> None:
        context.publish(Deposited(account=command.account, cents=command.cents))
        if command.cents == 13:
            context.publish(Closed(account=command.account), on="always")
            raise Reject("unlucky")
        if command.cents == 7 and context.attempt < 3:
            raise ValueError("later")
        more = [Closed(account=command.account)] if command.cents == 30 else []
        context.publish(Deposited(account=command.account, cents=command.cents + 1), *more)

    return got


async def test_each_subscription_gets_each_event_once_in_order(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=4) as bus, bus.worker():
        for number in range(40):
            published = await bus.publish(Deposited(account=f"a-{number % 4}", cents=number), event_id=f"e-{number}")
            assert published == (f"e-{number}", ("audit", "ledger"))
        again = await bus.publish(Deposited(account="a-3", cents=39), event_id="e-39")
        assert again.subscriptions == ("audit", "ledger")
        await bus.wait_idle(10)
        for account in range(4):
            mine = range(account, 40, 4)
            assert seen[f"ledger a-{account}"] == [(number, f"e-{number}") for number in mine]
            assert seen[f"audit a-{account}"] == [("account.deposited", number, f"e-{number}") for number in mine]


async def test_several_events_go_together_and_in_order(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=4) as bus, bus.worker():
        events = [Deposited(account=f"a-{number % 3}", cents=number) for number in range(9)]
        for _ in range(2):  # the second is a repeat
            published = await bus.publish(*events, Closed(account="a-0"), event_id="psp-77")
            assert published == ("psp-77", ("audit", "ledger"))
        assert (await bus.publish(*events)).event_id
        await bus.wait_idle(10)
    for account in range(3):
        mine = [(number, f"psp-77.{number + 1}") for number in range(account, 9, 3)] + [(0, "psp-77.10")] * (account == 0)
        assert seen[f"ledger a-{account}"][: len(mine)] == mine
        assert len(seen[f"ledger a-{account}"]) == len(mine) + 3


async def test_a_repeat_of_several_events_completes_them(sandbox: Sandbox, seen: Seen) -> None:
    events = [Deposited(account="a-1", cents=1), Deposited(account="a-2", cents=2), Deposited(account="a-1", cents=3)]
    async with sandbox.bus() as bus:
        await bus.sender.subscriptions.declare(sandbox.registry)
        await bus.entity("account@ledger", "a-1").drain("closing")
        with pytest.raises(PublishedInPart, match="publish it again with this id") as caught:
            await bus.publish(*events)
        assert (caught.value.subscriptions, set(caught.value.refused)) == (("audit",), {"ledger"})
        await bus.entity("account@ledger", "a-1").resume()
        assert (await bus.publish(*events, event_id=caught.value.event_id)).subscriptions == ("audit", "ledger")
        with pytest.raises(InvalidCommand, match="at least one event"):
            await bus.publish()
        async with bus.worker():
            await bus.wait_idle(10)
    assert [[cents for cents, _ in seen[f"ledger a-{account}"]] for account in (1, 2)] == [[1, 3], [2]]
    assert [len(seen[f"audit a-{account}"]) for account in (1, 2)] == [2, 1]


async def test_all_deliveries_of_an_event_are_on_the_shard_of_its_entity(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=4) as bus:
        await bus.sender.subscriptions.declare(sandbox.registry)
        for number in range(12):
            await bus.publish(Deposited(account=f"x@{number}", cents=1))
        for number in range(12):
            shards = {bus.transport.shard_of(f"{kind}:x@{number}") for kind in ("account", "account@ledger", "account@audit")}
            assert len(shards) == 1
        stored = [(await bus.entities.of(f"account@{name}").list()).matching for name in ("ledger", "audit")]
        assert stored == [12, 12]
    assert shard_key("account@ledger:x@1") == "account:x@1"
    assert shard_key("account@ledger/3") == "account/3"
    assert shard_key("~:x@1") == "~:x@1"


async def test_what_a_handler_publishes_goes_with_its_settlement(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        for cents in (1, 7, 13, 20, 30):
            await bus.dispatch(Deposit(account="a-1", cents=cents))
        await bus.wait_idle(10)
    assert [cents for cents, _ in seen["ledger a-1"]] == [1, 2, 7, 8, 0, 20, 21, 30, 31, 0]
    assert [name for name, _, _ in seen["audit a-1"]].index("account.closed") == 4
    ids = [event_id for _, event_id in seen["ledger a-1"]]
    assert len(set(ids)) == len(ids)
    assert ids == [event_id for *_, event_id in seen["audit a-1"]]


async def test_one_that_parks_holds_up_nobody_else(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        for cents in (1, -1, 2):
            await bus.publish(Deposited(account="a-1", cents=cents))
        await bus.publish(Deposited(account="a-2", cents=3))
        await until(lambda: len(seen["audit a-1"]) == 3 and len(seen["ledger a-2"]) == 1)
        await until_parked(bus)
        assert [cents for cents, _ in seen["ledger a-1"]] == [1]
        (info,) = [each for each in await bus.subscriptions.list() if each.name == "ledger"]
        assert (info.waiting, info.entities, info.parked) == (2, 1, 1)
        assert info.events == ("account.closed", "account.deposited")
        assert len(info.workers) == 1
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert (letter.entity_type, letter.entity_id, letter.name) == ("account@ledger", "a-1", "account.deposited@ledger")
        await bus.dead_letters.replay(letter.id)
        await bus.wait_idle(10)
        assert [cents for cents, _ in seen["ledger a-1"]] == [1, -1, 2]


async def until_parked(bus: CommandBus) -> None:
    while not (await bus.subscriptions.get("ledger")).parked:
        await asyncio.sleep(0.02)


async def test_a_subscription_is_paused_as_a_whole(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=2) as bus, bus.worker():
        assert await bus.subscriptions.pause("audit", "disk full")
        for number in range(4):
            await bus.publish(Deposited(account=f"a-{number}", cents=number))
            await bus.publish_raw("order", number, "order.placed", {"cents": 5})
        await until(lambda: sum(len(got) for key, got in seen.items() if key.startswith("ledger")) == 4)
        audit = await bus.subscriptions.get("audit")
        assert (audit.paused, audit.waiting) == ("disk full", 8)
        (hold,) = await bus.entities.holds()
        assert hold.what == "subscription audit"
        assert not any(key.startswith("audit") for key in seen)
        entity = (await bus.entity("account@audit", "a-1").show()).entity
        assert entity.state == "paused"
        assert entity.hold is not None
        assert entity.hold.reason == "disk full"
        assert await bus.subscriptions.resume("audit")
        await bus.wait_idle(10)
        assert seen["audit 3"] == [("order.placed", 5, seen["audit 3"][0][2])]


async def test_what_stands_in_lines_of_subscriptions_is_counted_alone(sandbox: Sandbox, seen: Seen) -> None:
    del seen
    async with sandbox.bus(shards=2) as bus:
        await bus.sender.subscriptions.declare(sandbox.registry)
        for account in ("a-1", "x@ledger", "account@ledger:a-1"):
            await bus.dispatch(Deposit(account=account, cents=1))
        await bus.publish(*(Deposited(account=account, cents=1) for account in ("a-1", "x@ledger", "x@ledger")))
        await bus.publish(Deposited(account="later", cents=1), delay=60)
        found = {each.name: (each.waiting, each.entities) for each in await bus.subscriptions.list()}
        assert found == {"ledger": (4, 3), "audit": (4, 3)}


async def test_put_and_remove_under_load_lose_and_leave_nothing(sandbox: Sandbox) -> None:
    got: list[str] = []

    @sandbox.registry.subscribes("late", Deposited)
    async def late(event: Deposited, context: CommandContext) -> None:
        got.append(context.event_id)

    worker_bus = sandbox.bus()
    async with sandbox.bus() as bus:
        begun: list[tuple[float, str]] = []
        is_over = asyncio.Event()

        async def load(publisher: CommandBus) -> None:
            number = 0
            while not is_over.is_set():
                event_id = f"{id(publisher)}-{number}"
                begun.append((asyncio.get_running_loop().time(), event_id))
                await publisher.publish(Deposited(account=f"a-{number % 3}", cents=1), event_id=event_id)
                number += 1
                await asyncio.sleep(0.005)

        async with sandbox.bus() as other, asyncio.TaskGroup() as tasks:
            tasks.create_task(load(bus))
            tasks.create_task(load(other))
            await asyncio.sleep(0.3)
            async with sandbox.bus() as admin:
                await admin.subscriptions.put("late", "account.*")
                there = asyncio.get_running_loop().time()
                await asyncio.sleep(0.3)
                until_then = asyncio.get_running_loop().time()
                async with worker_bus, worker_bus.worker():
                    await asyncio.sleep(0.3)
                    wanted = {event_id for at, event_id in begun if there <= at < until_then}
                    await until(lambda: wanted <= set(got))
                assert len(set(got)) == len(got)
                await admin.subscriptions.remove("late")
                left = (await admin.entities.of("account@late").list()).matching
                await asyncio.sleep(0.5)
                assert (left, (await admin.entities.of("account@late").list()).matching) == (0, 0)
                is_over.set()
        assert await bus.subscriptions.list() == []


async def test_a_delivery_of_one_that_was_removed_is_dropped(
    sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("command_bus.sending.publishing._SKEW_MS", -100_000)  # as if it was accepted long ago
    monkeypatch.setattr("command_bus.sending.publishing._FORGOTTEN", 0.2)
    async with sandbox.bus() as stale, sandbox.bus() as bus:
        await bus.sender.subscriptions.declare(sandbox.registry)
        await stale.publish(Deposited(account="a-0", cents=1))
        await bus.subscriptions.remove("ledger")
        monkeypatch.setattr(stale.sender.subscriptions, "_asked", 1e18)  # it was stopped between table and script
        await stale.publish(Deposited(account="a-1", cents=1), event_id="stray")
        await bus.subscriptions.put("other", "account.closed")
        async with bus.worker(registry=type(sandbox.registry)()):
            await until_status(bus, "stray@ledger")
    assert seen["ledger a-1"] == []


async def until_status(bus: CommandBus, command_id: str) -> None:
    while True:
        if (await bus.commands.status(command_id)).outcome == "unsubscribed":
            return
        await asyncio.sleep(0.05)


async def test_a_record_that_is_lost_is_put_again_and_nothing_is_dropped(
    sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("command_bus.worker.worker_bus._EVERY", 0.1)
    monkeypatch.setattr("command_bus.sending.publishing._SKEW_MS", -100_000)
    async with sandbox.bus() as bus:
        await bus.sender.subscriptions.declare(sandbox.registry)
        await bus.publish(Deposited(account="a-1", cents=1))
        record = await bus.transport.notes.read(BOOK, "ledger")
        await bus.transport.notes.change(BOOK, "ledger", record, None)
        async with bus.worker():
            await until(lambda: [cents for cents, _ in seen["ledger a-1"]] == [1])
            record = await bus.transport.notes.read(BOOK, "ledger")
            await bus.transport.notes.change(BOOK, "ledger", record, None)
            while await bus.transport.notes.read(BOOK, "ledger") is None:
                await asyncio.sleep(0.02)
        await bus.subscriptions.remove("audit")
        await bus.sender.subscriptions.declare(sandbox.registry, only_missing=True)  # what an operator removed stays so
        assert [each.name for each in await bus.subscriptions.list()] == ["ledger"]


async def test_a_table_is_as_old_as_the_request_for_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async with sandbox.bus() as bus, sandbox.bus() as admin:
        table, notes = bus.sender.subscriptions, bus.transport.notes
        read = notes.all

        async def slow(book: str) -> dict[str, bytes]:
            found = await read(book)
            await asyncio.sleep(1.2)
            return found

        monkeypatch.setattr(notes, "all", slow)
        reading = asyncio.create_task(table.refresh())
        await asyncio.sleep(0.1)
        await admin.subscriptions.put("late", "account.*")
        await reading
        monkeypatch.setattr(notes, "all", read)
        assert (await bus.publish(Deposited(account="a-1", cents=1))).subscriptions == ("late",)


async def test_what_is_younger_than_the_table_is_not_dropped(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as old, sandbox.bus() as bus:
        await old.sender.subscriptions.declare(sandbox.registry)
        await bus.subscriptions.remove("ledger")
        await bus.subscriptions.remove("audit")
        worker = old.worker(registry=type(sandbox.registry)())  # it declares nothing, and has read that both are gone
        await old.sender.subscriptions.refresh(0.0)
        for handlers in sandbox.registry.subscriptions().values():
            for handler in handlers:
                worker.registry.add(handler)
        worker.declarations = type(worker.declarations)(old, worker.settings, type(sandbox.registry)(), worker.stop)
        async with worker:
            await bus.subscriptions.put("ledger", "account.deposited")
            await bus.publish(Deposited(account="a-1", cents=1))
            await until(lambda: len(seen["ledger a-1"]) == 1)


async def test_208_a_full_line_is_told_and_a_repeat_completes_it(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus:
        await bus.sender.subscriptions.declare(sandbox.registry)
        await bus.entity("account@ledger", "a-1").drain("closing")
        with pytest.raises(PublishedInPart) as caught:
            await bus.publish(Deposited(account="a-1", cents=5), event_id="e-1")
        assert caught.value.subscriptions == ("audit",)
        assert isinstance(caught.value.refused["ledger"], Draining)
        await bus.entity("account@ledger", "a-1").resume()
        assert (await bus.publish(Deposited(account="a-1", cents=5), event_id="e-1")).subscriptions == ("audit", "ledger")
        async with bus.worker():
            await bus.wait_idle(10)
    assert seen["ledger a-1"] == [(5, "e-1")]
    assert len(seen["audit a-1"]) == 1


async def test_a_durable_subscription_survives_its_waits(sandbox: Sandbox) -> None:
    got: list[str] = []

    @sandbox.registry.subscribes("ship", Deposited, durable=True)
    async def ship(event: Deposited, context: DurableContext) -> None:
        await context.step("once", got.append, f"step {event.cents}")
        await context.sleep(0.05)
        context.publish(Closed(account=event.account))
        got.append(f"end {event.cents}")

    @sandbox.registry.subscribes("after", Closed, delivery="at_most_once")
    async def after(event: Closed) -> None:
        got.append(f"closed {event.account}")

    async with sandbox.bus() as bus, bus.worker():
        await bus.publish(Deposited(account="a-1", cents=1))
        await until(lambda: "closed a-1" in got)
        assert got == ["step 1", "end 1", "closed a-1"]
        assert (await bus.subscriptions.get("after")).delivery == "at_most_once"


async def test_a_schedule_publishes(sandbox: Sandbox, seen: Seen) -> None:
    sandbox.registry.schedule("pay", Deposited(account="a-1", cents=9), every(1.0))
    async with sandbox.bus() as bus, bus.worker():
        await until(lambda: len(seen["ledger a-1"]) >= 1)
    assert seen["ledger a-1"][0][0] == 9


async def test_events_are_signed_and_encrypted_as_commands(sandbox: Sandbox, seen: Seen) -> None:
    options: dict[str, Any] = {"signing_keys": {"k": "s" * 32}, "cipher": Mirror()}
    sandbox.registry.schedule("pay", Deposited(account="a-9", cents=9), every(1.0))
    async with sandbox.bus(**options) as bus, bus.worker():
        await bus.publish(Deposited(account="a-1", cents=77))
        await bus.dispatch(Deposit(account="a-2", cents=1))
        await until(lambda: bool(seen["ledger a-1"] and seen["ledger a-2"] and seen["audit a-1"] and seen["ledger a-9"]))
        assert [each async for each in bus.dead_letters.list()] == []


async def test_what_no_one_subscribes_to_is_told(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        published = await bus.publish(Deposited(account="a-1", cents=5))
        assert published.subscriptions == ()
        assert (await bus.stats()).depth == 0


async def test_a_dead_letter_of_a_delivery_is_edited_and_replayed(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker(), sandbox.bus(registry=type(sandbox.registry)()) as operator:
        await bus.publish(Deposited(account="a-1", cents=-1))
        await until_parked(bus)
        (letter,) = [each async for each in operator.dead_letters.list()]
        with pytest.raises(InvalidCommand, match="entity"):
            await operator.dead_letters.replay(letter.id, payload={"account": "a-2", "cents": 5})
        await operator.dead_letters.replay(letter.id, payload={"account": "a-1", "cents": 5})
        await until(lambda: len(seen["ledger a-1"]) == 1)
        await bus.publish(Deposited(account="a-1", cents=-2))
        await until_parked(bus)
        (letter,) = [each async for each in operator.dead_letters.list()]
        await operator.dead_letters.replay(letter.id, payload=Deposited(account="a-1", cents=6))
        await bus.wait_idle(10)
    assert [cents for cents, _ in seen["ledger a-1"]] == [5, 6]


async def test_209_there_are_200_subscriptions_at_most(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus, sandbox.bus() as fresh:
        for number in range(200):
            record = SubscriptionRecord(("x",), at_most_once=False, revision=1, since_ms=1)
            await bus.sender.subscriptions.put(f"s{number}", record)
        with pytest.raises(InvalidSettings, match="200 subscriptions"):
            await fresh.subscriptions.put("more", "x")
        assert not await fresh.subscriptions.put("s7", "x", revision=1)


async def test_207_what_is_no_event_or_subscription_is_refused(sandbox: Sandbox, seen: Seen) -> None:
    del seen
    registry = sandbox.registry
    event = Deposited(account="a-1", cents=1)
    async with sandbox.bus() as bus:
        refused: list[tuple[Any, Callable[[], Any], str]] = [
            (InvalidCommand, lambda: bus.dispatch(event), "is an event: await bus.publish"),
            (InvalidCommand, lambda: bus.call(event), "is an event"),
            (InvalidCommand, lambda: bus.publish(Deposit(account="a", cents=1)), "is a command: dispatch it"),  # type: ignore[arg-type]
            (InvalidCommand, lambda: bus.publish(event, event_id="e" * 401), "at most 400|400 bytes"),
            (InvalidCommand, lambda: bus.publish(event, event_id=""), "non-empty"),
            (TypeError, lambda: bus.publish(event, unique=None), "unexpected keyword"),  # type: ignore[call-arg]
            (InvalidCommand, lambda: bus.publish_raw("account@x", "a", "x.y", {}), "entity type"),
            (InvalidCommand, lambda: bus.dispatch_raw("account@ledger", "a", "X", {}), "entity type"),
            (InvalidCommand, lambda: bus.dispatch_raw("account", "a", "account.deposited@ledger", {}), "wire name"),
            (UnknownSubscription, lambda: bus.subscriptions.pause("nope"), "there is no subscription 'nope'"),
            (UnknownSubscription, lambda: bus.subscriptions.remove("nope"), "there is no subscription"),
            (InvalidSettings, lambda: bus.subscriptions.put("a b", "x"), "must have 1 to 64"),
            (InvalidSettings, lambda: bus.subscriptions.put("ab", ""), "give names"),
            (InvalidSettings, lambda: bus.subscriptions.put("ab", "x", revision=0), "revision of at least 1"),
        ]
        for error, call, text in refused:
            with pytest.raises(error, match=text):
                await call()
        result = await bus.dispatch_batch([event])
        assert isinstance(result.outcomes[0].error, InvalidCommand)
    with pytest.raises(RegistrationError, match="is an event, which goes to subscriptions"):
        registry.handles(Deposited)
    with pytest.raises(RegistrationError, match="one delivery"):
        registry.subscribes("ledger", "x.y", delivery="at_most_once")(lambda event: None)
    with pytest.raises(RegistrationError, match=r"is handled by .* already"):
        registry.subscribes("ledger", Deposited)(lambda event: None)


async def test_more_than_may_be_sent_with_a_settlement_is_refused_at_the_call(sandbox: Sandbox, seen: Seen) -> None:
    del seen
    counted: list[int] = []

    class Many(Command[None], entity="account", retry=RetryPolicy(attempts=1)):
        account: EntityId

    @sandbox.registry.handles(Many)
    async def many(command: Many, context: CommandContext) -> None:
        try:
            for number in range(1_000):
                context.publish(Deposited(account=command.account, cents=number))
                counted.append(number)
        except InvalidCommand:
            return

    async with sandbox.bus() as bus, bus.worker():
        await bus.publish(Deposited(account="x", cents=1))  # the table is known
        await bus.dispatch(Many(account="a-1"))
        await until(lambda: bool(counted))
        await bus.wait_idle(20)
    assert len(counted) == 500


def test_the_settings_know_no_more() -> None:
    assert BusSettings().entity("account@ledger") == BusSettings().entity("x")
