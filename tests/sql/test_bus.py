"""The inbox in handlers of a bus whose workers crash: each row of the crash table, follow-ups, refusals, edited replays, encryption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from command_bus import (
    Command,
    CommandContext,
    CommandFailed,
    CommandRejected,
    EntityId,
    Envelope,
    HandlerRegistry,
    Middleware,
    Reject,
    RetryPolicy,
)
from command_bus.errors import BadResult
from command_bus.sql import Inbox
from command_bus.testing import CRASH_POINTS, TestBus
from tests.security.test_cipher import ToyCipher
from tests.sql.conftest import ADD, Stage

Where = Literal["loop", "thread"]


class Charge(Command[int], entity="account", retry=RetryPolicy(attempts=3, delay=0.0)):
    account: EntityId
    cents: int = 1


class ChargeThread(Command[int], entity="account", retry=RetryPolicy(attempts=3, delay=0.0)):
    account: EntityId
    cents: int = 1


class Free(Command[int], retry=RetryPolicy(attempts=3, delay=0.0)):
    cents: int = 1


class Mail(Command[None], entity="letter"):
    letter: EntityId
    text: str


Hook = Callable[[Any], None]


@dataclass
class Shop:
    """Handlers on a database, what they do at their ends, and the letters that were sent."""

    stage: Stage
    inbox: Inbox = field(default_factory=Inbox)
    registry: HandlerRegistry = field(default_factory=HandlerRegistry)
    mails: list[tuple[str, str]] = field(default_factory=list)
    repeats: int = 0
    within: Hook = lambda _: None
    behind: Hook = lambda _: None

    def __post_init__(self) -> None:
        registry = self.registry

        @registry.handles(Charge)
        async def charge(command: Charge, context: CommandContext) -> int:
            return await self.charge(str(command.account), command.cents, context)

        @registry.handles(Free)
        async def free(command: Free, context: CommandContext) -> int:
            return await self.charge("free", command.cents, context)

        @registry.handles(ChargeThread)
        def charge_thread(command: ChargeThread, context: CommandContext) -> int:
            with Session(self.stage.engine) as session, self.inbox.once(session, context) as once:
                if once.repeated:
                    return self.repeat(once.reply)
                reply = session.execute(ADD, {"id": str(command.account), "sum": command.cents}).scalar_one()
                context.send(Mail(letter=command.account, text=f"now {reply}"), headers={"by": "thread"})
                self.within(context)
                return once.remember(reply)

        @registry.handles(Mail)
        async def mail(command: Mail, context: CommandContext) -> None:
            self.mails.append((context.command_id, command.text))

    async def charge(self, account: str, cents: int, context: CommandContext) -> int:
        async with AsyncSession(self.stage.awaited) as session:
            async with self.inbox.once(session, context) as once:
                if once.repeated:
                    return self.repeat(once.reply)
                reply = (await session.execute(ADD, {"id": account, "sum": cents})).scalar_one()
                context.send(Mail(letter=account, text=f"now {reply}"))
                context.send(Mail(letter="audit", text=f"{account} {reply}"), on="always", priority="high")
                self.within(context)
                once.remember(reply)
        self.behind(context)
        return reply

    def repeat(self, reply: int) -> int:
        self.repeats += 1
        return reply


@pytest.fixture
def shop(stage: Stage) -> Shop:
    return Shop(stage)


COMMANDS = pytest.mark.parametrize("kind", [Charge, ChargeThread])


@pytest.mark.promise("An inbox's effect happens once")
@COMMANDS
@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_crash_at_any_point_makes_one_effect_and_sends_once(shop: Shop, kind: type[Charge], point: str) -> None:
    async with TestBus(shop.registry) as bus:
        bus.crash_after(point, kind)
        assert await bus.call(kind(account="a-1", cents=5), timeout=600) == 5
        await bus.run_until_idle()
        assert bus.crashed == 1
    assert shop.stage.balance("a-1") == 5
    assert sorted(text for _, text in shop.mails) == (["a-1 5", "now 5"] if kind is Charge else ["now 5"])
    assert shop.repeats == (point == "handled")


async def test_a_crash_without_an_entity(shop: Shop) -> None:
    async with TestBus(shop.registry) as bus:
        bus.crash_after("handled", Free)
        assert await bus.call(Free(cents=4), timeout=600) == 4
        await bus.run_until_idle()
    assert (shop.stage.balance("free"), shop.repeats, len(shop.mails)) == (4, 1, 2)


async def test_a_death_before_the_commit_does_nothing(shop: Shop) -> None:
    deaths = [OSError("killed within the block"), OSError("and again")]

    def die(_: Any) -> None:
        if deaths:
            raise deaths.pop()

    shop.within = die
    async with TestBus(shop.registry) as bus:
        assert await bus.call(Charge(account="a-1", cents=5)) == 5
        await bus.run_until_idle()
    assert (shop.stage.balance("a-1"), shop.repeats, len(shop.mails)) == (5, 0, 2)


@pytest.mark.parametrize("committed", [True, False])
async def test_an_answer_of_the_commit_that_is_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
    """The handler fails and is retried; it finds the id, or not."""
    ended, lost = SessionTransaction.__exit__, [True]

    def end(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        if lost and kind is None:
            lost.pop()
            fault = OperationalError("COMMIT", {}, OSError("connection lost"))
            ended(self, *((None, None, None) if committed else (OSError, fault, None)))
            raise fault
        return ended(self, kind, error, trace)

    monkeypatch.setattr(SessionTransaction, "__exit__", end)
    async with TestBus(shop.registry) as bus:
        assert await bus.call(Charge(account="a-1", cents=5)) == 5
        await bus.run_until_idle()
    assert (shop.stage.balance("a-1"), shop.repeats, len(shop.mails)) == (5, committed, 2)


@pytest.mark.promise("An inbox's effect happens once")
async def test_a_failover_that_loses_settlements(shop: Shop) -> None:
    """The server goes back to before seven commands were settled: they start again, in order, and are found, whatever became of later ones."""
    commands = [Envelope(Charge(account="a-1", cents=number), command_id=f"c-{number}") for number in range(1, 9)]
    async with TestBus(shop.registry, namespace="fo") as bus:
        await bus.dispatch_batch(commands)
        await bus.run_until_idle()
    first, shop.mails[:] = sorted(shop.mails), []
    async with TestBus(shop.registry, namespace="fo") as bus:
        await bus.dispatch_batch(commands[1:])
        assert await bus.call(Charge(account="a-1", cents=100), timeout=3600) == 136
        await bus.run_until_idle()
        assert [each for each in bus.replies if each][:7] == [3, 6, 10, 15, 21, 28, 36]
    assert (shop.stage.balance("a-1"), shop.repeats) == (136, 7)
    again = [mail for mail in sorted(shop.mails) if "136" not in mail[1]]
    assert again == [mail for mail in first if mail[1] not in ("now 1", "a-1 1")]  # the same, under the same ids


async def test_a_clock_that_fell_back_is_waited_for(shop: Shop) -> None:
    """Fences are about the server's time: after a failover to one that is behind, a start waits until that has caught up."""
    async with TestBus(shop.registry, namespace="clock") as bus:
        await bus.call(Charge(account="a-1"))
        shop.stage.ask("UPDATE command_fence SET fence = fence + 150 * 1000000 RETURNING 1")
        before = asyncio.get_running_loop().time()
        assert await bus.call(Charge(account="a-1"), timeout=600) == 2
        assert 140 < asyncio.get_running_loop().time() - before < 400
        shop.stage.ask("UPDATE command_fence SET fence = fence + 10000 * CAST(1000000 AS bigint) RETURNING 1")
        with pytest.raises(CommandFailed, match="put off 10 times"):
            await bus.call(Charge(account="a-1"), timeout=3600)
    assert shop.stage.balance("a-1") == 2


async def test_a_reject_leaves_nothing_and_sends_what_it_always_sends(shop: Shop) -> None:
    def refuse(_: Any) -> None:
        raise Reject("no money", code="poor")

    shop.within = refuse
    async with TestBus(shop.registry) as bus:
        with pytest.raises(CommandRejected):
            await bus.call(Charge(account="a-1"))
        await bus.run_until_idle()
    assert shop.stage.balance("a-1") == 0
    assert [text for _, text in shop.mails] == ["a-1 1"]
    assert shop.stage.ask("SELECT * FROM command_inbox") == shop.stage.ask("SELECT * FROM command_fence") == []


async def test_a_reject_behind_the_block_stands_with_the_effect(shop: Shop) -> None:
    """It is a mistake of the handler: the effect is committed. A repeat says what it then would: its reply."""

    def refuse(_: Any) -> None:
        raise Reject("too late")

    shop.behind = refuse
    async with TestBus(shop.registry) as bus:
        with pytest.raises(CommandRejected):
            await bus.call(Charge(account="a-1"))
    assert shop.stage.balance("a-1") == 1


async def test_what_is_sent_around_the_block_is_sent_once(stage: Stage) -> None:
    registry, mails = HandlerRegistry(), list[str]()

    @registry.handles(Charge)
    async def charge(command: Charge, context: CommandContext) -> int:
        context.send(Mail(letter="l", text="before"))
        async with AsyncSession(stage.awaited) as session, Inbox().once(session, context) as once:
            if not once.repeated:
                context.send(Mail(letter="l", text="within"))
        context.send(Mail(letter="l", text="behind"))
        return context.attempt

    @registry.handles(Mail)
    async def mail(command: Mail) -> None:
        mails.append(command.text)

    async with TestBus(registry) as bus:
        bus.crash_after("handled", Charge)
        assert await bus.call(Charge(account="a-1"), timeout=600) == 2
        await bus.run_until_idle()
    assert mails == ["before", "within", "behind"]


async def test_a_repeat_sends_with_all_options_and_through_middleware(stage: Stage) -> None:
    registry, seen = HandlerRegistry(), list[Any]()

    class Stamp(Middleware):
        async def dispatch(self, outgoing: Any, proceed: Any) -> Any:
            outgoing.headers["stamp"] = outgoing.name
            return await proceed(outgoing)

    @registry.handles(Charge)
    async def charge(command: Charge, context: CommandContext) -> int:
        async with AsyncSession(stage.awaited) as session, Inbox().once(session, context) as once:
            if not once.repeated:
                policy = RetryPolicy(attempts=2, delay=7.0)
                context.send(
                    Mail(letter="l", text="x"), delay=60, headers={"a": "b"}, expires=9000, retry=policy, history="1 day"
                )
        return context.attempt

    @registry.handles(Mail)
    async def mail(command: Mail, context: CommandContext) -> None:
        seen.append((dict(context.headers), context.causation_id, context.correlation_id, context.attempt))
        if context.attempt == 1:
            raise OSError

    async with TestBus(registry, middleware=[Stamp()]) as bus:
        bus.crash_after("handled", Charge)
        await bus.dispatch(Charge(account="a-1"), command_id="c-1")
        await bus.advance(200)
        before = asyncio.get_running_loop().time()
        await bus.run_until_idle()
        assert [each[1:] for each in seen] == [("c-1", "c-1", 1), ("c-1", "c-1", 2)]
        assert seen[0][0] == {"a": "b", "stamp": "Mail"}
        assert len((await bus.bus.history.search(name="Mail")).entries) == 1
        assert asyncio.get_running_loop().time() - before < 100


async def test_195_an_edited_replay_parks_and_goes_on_once_it_is_cancelled(shop: Shop) -> None:
    def fail(_: Any) -> None:
        raise OSError("the handler fails behind its commit")

    async with TestBus(shop.registry) as bus:
        shop.behind = fail
        await bus.dispatch(Charge(account="a-1", cents=5), command_id="c-1")
        bus.crash_after("claimed", Charge, nth=2, times=2)
        await bus.run_until_idle()
        (letter,) = await _letters(bus)
        shop.behind = lambda _: None
        await bus.bus.dead_letters.replay(letter.id, payload={"account": "a-1", "cents": 7})
        await bus.dispatch(Charge(account="a-1", cents=1), command_id="c-2")
        await bus.advance(30)
        assert shop.stage.balance("a-1") == 5
        entity = await bus.bus.entity("account", "a-1").show()
        assert entity.entity.state == "parked"
        (parked,) = await _letters(bus)
        assert parked.error_type.endswith("InboxConflict")
        await bus.bus.dead_letters.discard(parked.id)
        await bus.run_until_idle()
        assert shop.stage.balance("a-1") == 6


async def _letters(bus: TestBus) -> list[Any]:
    return [each async for each in bus.bus.dead_letters.list()]


async def test_a_replay_as_it_was_is_a_repeat(shop: Shop) -> None:
    def fail(_: Any) -> None:
        raise OSError("behind the commit")

    async with TestBus(shop.registry) as bus:
        shop.behind = fail
        bus.crash_after("claimed", Charge, nth=2, times=2)
        await bus.dispatch(Charge(account="a-1", cents=5), command_id="c-1")
        await bus.run_until_idle()
        (letter,) = await _letters(bus)
        await bus.bus.dead_letters.replay(letter.id)
        await bus.run_until_idle()
    assert (shop.stage.balance("a-1"), shop.repeats) == (5, 1)
    assert bus.replies[-2:] == [None, None] or 5 in bus.replies


SECRET = "4111-1111"


class Pay(Command[str], entity="box", retry=RetryPolicy(attempts=3, delay=0.0)):
    box: EntityId
    card: str


async def test_196_what_is_kept_is_encrypted_where_the_bus_encrypts(stage: Stage) -> None:
    registry, mails = HandlerRegistry(), list[str]()

    @registry.handles(Pay)
    async def pay(command: Pay, context: CommandContext) -> str:
        async with AsyncSession(stage.awaited) as session, Inbox().once(session, context) as once:
            if once.repeated:
                return str(once.reply)
            context.send(Mail(letter="l", text=command.card), headers={"card": command.card})
            return once.remember(command.card)

    @registry.handles(Mail)
    async def mail(command: Mail) -> None:
        mails.append(command.text)

    keys = {"k1": "s" * 32}
    async with TestBus(registry, namespace="enc", cipher=ToyCipher(b"k" * 32), signing_keys=keys) as bus:
        bus.crash_after("handled", Pay)
        assert await bus.call(Pay(box="b-1", card=SECRET), command_id="p-1", timeout=600) == SECRET
        await bus.run_until_idle()
        assert mails == [SECRET]
    (row,) = stage.ask("SELECT kept FROM command_inbox")
    assert SECRET.encode() not in bytes(row[0])
    stage.ask("UPDATE command_inbox SET command_id = 'enc:p-2' RETURNING 1")  # a row that somebody has moved to another command
    async with TestBus(registry, namespace="enc", cipher=ToyCipher(b"k" * 32)) as bus:
        with pytest.raises(CommandFailed, match="cannot be decrypted"):
            await bus.call(Pay(box="b-1", card=SECRET), command_id="p-2", timeout=600)
    async with TestBus(registry, namespace="enc") as bus:
        with pytest.raises(CommandFailed, match="no cipher"):
            await bus.call(Pay(box="b-1", card=SECRET), command_id="p-2", timeout=600)


async def test_two_buses_share_a_database(shop: Shop) -> None:
    """The same entity and the same id in two namespaces are two."""
    for number, namespace in enumerate(("one", "two"), start=1):
        async with TestBus(shop.registry, namespace=namespace) as bus:
            assert await bus.call(Charge(account="a-1"), command_id="c-1") == number
    assert sorted(row[0] for row in shop.stage.ask("SELECT command_id FROM command_inbox")) == ["one:c-1", "two:c-1"]


async def test_194_a_second_block_of_a_run_is_refused(stage: Stage) -> None:
    """It would find its own id, and skip the effect. In another database it may be."""
    registry = HandlerRegistry()

    @registry.handles(Charge)
    async def charge(command: Charge, context: CommandContext) -> int:
        for _ in range(2):
            async with AsyncSession(stage.awaited) as session, Inbox().once(session, context):
                await session.execute(ADD, {"id": "a-1", "sum": 1})
        return 1

    async with TestBus(registry) as bus:
        with pytest.raises(CommandFailed, match="one block of an inbox"):
            await bus.call(Charge(account="a-1"), timeout=600)


async def test_196_a_reply_type_that_has_changed(stage: Stage) -> None:
    class Old(Command[int], entity="account", name="Changed", retry=RetryPolicy(attempts=1)):
        account: EntityId

    class New(Command[str], entity="account", name="Changed", retry=RetryPolicy(attempts=1)):
        account: EntityId

    for kind in (Old, New):
        registry = HandlerRegistry()

        async def change(command: Any, context: CommandContext) -> Any:
            async with AsyncSession(stage.awaited) as session, Inbox().once(session, context) as once:
                return once.reply if once.repeated else once.remember(5)

        registry.handles(kind)(change)
        async with TestBus(registry, namespace="changed") as bus:
            if kind is Old:
                assert await bus.call(kind(account="a-1"), command_id="c-1") == 5
            else:
                with pytest.raises((CommandFailed, BadResult), match="str"):
                    await bus.call(kind(account="a-1"), command_id="c-1", timeout=60)


async def test_in_a_step_of_a_durable_handler(stage: Stage) -> None:
    from command_bus import DurableContext

    registry, runs = HandlerRegistry(), list[int]()

    class Book(Command[int], entity="trip", durable=True, retry=RetryPolicy(attempts=5, delay=0.0)):
        trip: EntityId

    @registry.handles(Book)
    async def book(command: Book, context: DurableContext) -> int:
        async def charge() -> int:
            runs.append(1)
            async with AsyncSession(stage.awaited) as session, Inbox().once(session, context) as once:
                if once.repeated:
                    return int(once.reply)
                return once.remember((await session.execute(ADD, {"id": "trip", "sum": 3})).scalar_one())

        paid = await context.step("charge", charge)
        await context.sleep(3600)
        return paid

    async with TestBus(registry) as bus:
        bus.crash_after("ran:charge", Book)
        assert await bus.call(Book(trip="t-1"), timeout=9000) == 3
    assert (len(runs), stage.balance("trip")) == (2, 3)


async def test_a_handler_that_is_over_keeps_nothing(shop: Shop) -> None:
    left: list[Any] = []
    shop.within = left.append
    async with TestBus(shop.registry) as bus:
        await bus.call(Charge(account="a-1"))
    with pytest.raises(RuntimeError, match="is over"):
        shop.inbox.once(shop.stage.engine.connect(), left[0])
    await asyncio.sleep(0)
