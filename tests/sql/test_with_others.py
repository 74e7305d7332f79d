"""The inbox beside states of entities and batch handlers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from command_bus import Command, CommandContext, EntityId, EntityState, Event, HandlerRegistry, InvalidCommand, RawEvent
from command_bus.sql import Inbox, Outbox, OutboxRelay
from command_bus.testing import CRASH_POINTS, TestBus
from tests.sql.conftest import ADD, Stage


class Wallet(EntityState, entity="wallet"):
    cents: int = 0


class Pay(Command[int], entity="wallet"):
    wallet: EntityId


class Post(Command[int], entity="entry"):
    entry: EntityId
    cents: int


class Mail(Command[None], entity="letter"):
    letter: EntityId


async def test_a_handler_with_a_state_has_no_inbox(stage: Stage) -> None:
    registry, refused, inbox = HandlerRegistry(), list[str](), Inbox()

    @registry.handles(Pay)
    async def pay(command: Pay, wallet: Wallet, context: CommandContext) -> int:
        wallet.cents += 1
        async with AsyncSession(stage.awaited) as session:
            with pytest.raises(InvalidCommand, match="keep its data in the database, or in the state") as raised:
                inbox.once(session, context)
            refused.append(raised.value.code)
        return wallet.cents

    async with TestBus(registry) as bus:
        assert await bus.call(Pay(wallet="w")) == 1
    assert refused == ["invalid_command"]


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_batch_whose_worker_dies_makes_each_effect_once(stage: Stage, point: str) -> None:
    registry, inbox, mails = HandlerRegistry(), Inbox(), dict[str, str]()

    @registry.handles_many(Post, size=8, wait=0.01)
    def post(commands: Sequence[Post], contexts: Sequence[CommandContext]) -> Sequence[int]:
        with Session(stage.engine) as session, inbox.batch(session, contexts) as batch:
            for place in batch.fresh:
                session.execute(ADD, {"id": str(commands[place].entry), "sum": commands[place].cents})
                contexts[place].send(Mail(letter=commands[place].entry))
            return batch.results({place: commands[place].cents for place in batch.fresh})

    @registry.handles(Mail)
    async def mail(command: Mail, context: CommandContext) -> None:
        mails[context.command_id] = str(command.letter)  # a mail that ran on the worker that died runs again

    async with TestBus(registry) as bus:
        bus.crash_after(point, Post, nth=3)  # type: ignore[arg-type]
        for number in range(20):
            await bus.dispatch(Post(entry=f"e{number}", cents=number + 1))
        await bus.run_until_idle()
    assert [stage.balance(f"e{number}") for number in range(20)] == list(range(1, 21))
    assert sorted(mails.values()) == sorted(f"e{number}" for number in range(20))


async def test_the_poisoned_one_is_found_and_its_halves_are_new_transactions(stage: Stage) -> None:
    registry, inbox = HandlerRegistry(), Inbox()

    @registry.handles_many(Post, size=8, wait=0.05)
    async def post(commands: Sequence[Post], contexts: Sequence[CommandContext]) -> Sequence[int]:
        async with AsyncSession(stage.awaited) as session, inbox.batch(session, contexts) as batch:
            for place in batch.fresh:
                await session.execute(ADD, {"id": str(commands[place].entry), "sum": 1})
            if any(each.cents == 5 for each in commands):
                raise ValueError("poisoned")
            return batch.results({place: commands[place].cents for place in batch.fresh})

    async with TestBus(registry) as bus:
        for number in range(8):
            await bus.dispatch(Post(entry=f"e{number}", cents=number))
        await bus.run_until_idle()
    assert [stage.balance(f"e{number}") for number in range(8)] == [1, 1, 1, 1, 1, 0, 1, 1]


class Paid(Event, entity="wallet", name="wallet.paid"):
    wallet: EntityId
    by: str


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_what_is_published_within_an_inbox_is_published_once(stage: Stage, point: str) -> None:
    registry, inbox, heard = HandlerRegistry(), Inbox(), list[str]()

    @registry.handles(Post)
    async def post(command: Post, context: CommandContext) -> int:
        async with AsyncSession(stage.awaited) as session, inbox.once(session, context) as block:
            if not block.repeated:
                context.publish(Paid(wallet="w", by=f"attempt {context.attempt}"))
                block.remember(command.cents)
        return command.cents

    @registry.subscribes("first", Paid)
    async def first(event: Paid) -> None:
        heard.append(f"first {event.by}")

    @registry.subscribes("second", "wallet.*")
    async def second(event: RawEvent) -> None:
        heard.append(f"second {event.fields['by']}")

    async with TestBus(registry) as bus:
        bus.crash_after(point, Post)
        await bus.dispatch(Post(entry="e", cents=5))
        await bus.run_until_idle()
    attempt = "attempt 2" if point == "claimed" else "attempt 1"
    assert sorted(heard) == [f"first {attempt}", f"second {attempt}"]


async def test_an_event_leaves_with_the_transaction(stage: Stage) -> None:
    registry, heard = HandlerRegistry(), list[str]()

    @registry.subscribes("first", Paid)
    async def first(event: Paid, context: CommandContext) -> None:
        heard.append(f"{context.event_id} {event.by}")

    async with TestBus(registry) as bus:
        outbox = Outbox(bus.bus)
        for number, fate in enumerate(("commit", "rollback", "commit")):
            async with AsyncSession(stage.awaited) as session:
                outbox.add(session, Paid(wallet="w", by=str(number)), command_id=f"e-{number}")
                await (session.commit() if fate == "commit" else session.rollback())
        async with OutboxRelay(bus.bus, stage.awaited) as relay:
            await relay.drained()
        await bus.run_until_idle()
    assert heard == ["e-0 0", "e-2 2"]
