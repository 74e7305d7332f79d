"""Encrypted durable commands: what is stored of steps, signals and calls is encrypted, and means nothing elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import Command, CommandFailed, DurableContext, EntityId, HandlerRegistry, RetryPolicy
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.security.test_cipher import CIPHER, SECRET, ToyCipher, everything

WORD = "open-sesame"
ONCE = RetryPolicy(attempts=1)


class Buy(Command[str], entity="box", durable=True, retry=ONCE):
    box: EntityId
    card: str


class Book(Command[str], entity="book", retry=ONCE):
    book: EntityId
    card: str


class Unbook(Command[None], entity="book", retry=ONCE):
    book: EntityId
    card: str


class Shop:
    """A durable handler that stores secrets of all kinds, then waits; what it did."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.charged = 0
        self.unbooked: list[str] = []
        self.runs = 0

        @sandbox.registry.handles(Book)
        async def book(command: Book) -> str:
            return command.card

        @sandbox.registry.handles(Unbook)
        async def unbook(command: Unbook) -> None:
            self.unbooked.append(command.card)

        @sandbox.registry.handles(Buy)
        async def buy(command: Buy, context: DurableContext) -> str:
            self.runs += 1
            card = await context.step("charge", self._charge, command.card)
            booked = await context.call(Book(book="b", card=card), undo=Unbook(book="b", card=card))
            word = await context.signal("word", returns=str)
            again = await context.signal("again", returns=str)
            if again == "fail":
                raise ValueError("no line")
            return f"{card} {booked} {word}"

    async def _charge(self, card: str) -> str:
        self.charged += 1
        return card


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox("memory", MemoryClients())


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


async def suspended(bus: Any, signal: str) -> None:
    """Wait until the purchase waits for a signal."""

    async def is_there() -> bool:
        waits = (await bus.commands.status("buy")).suspension
        return waits is not None and [each.name for each in waits.waits_for] == [signal]

    await until(is_there)


async def begun(sandbox: Sandbox, bus: Any) -> None:
    """Let a purchase store its step, its call, what undoes that and its first signal, and wait for the second."""
    async with bus.worker():
        await bus.dispatch(Buy(box="a", card=SECRET), command_id="buy")
        await suspended(bus, "word")
        await bus.commands.signal("buy", "word", WORD)
        await suspended(bus, "again")


async def test_the_server_never_sees_what_a_durable_command_stores(sandbox: Sandbox, shop: Shop) -> None:
    async with sandbox.bus(cipher=CIPHER) as bus:
        await begun(sandbox, bus)
        assert any("}:x:buy" in key for key in await sandbox.keys())
        data = await everything(sandbox)
        assert SECRET.encode() not in data
        assert WORD.encode() not in data
        await bus.commands.signal("buy", "again", "go")
        async with bus.worker():
            assert await bus.result("buy", Buy, timeout=10) == f"{SECRET} {SECRET} {WORD}"
    assert (shop.charged, shop.runs > 1) == (1, True)  # the later runs read what was stored


async def test_what_undoes_is_encrypted_and_sent_as_it_was(sandbox: Sandbox, shop: Shop) -> None:
    async with sandbox.bus(cipher=CIPHER) as bus:
        await begun(sandbox, bus)
        await bus.commands.signal("buy", "again", "fail")
        async with bus.worker():
            with pytest.raises(CommandFailed, match="no line"):
                await bus.result("buy", Buy, timeout=10)
        assert SECRET.encode() not in await everything(sandbox)
    assert shop.unbooked == [SECRET]


async def _side(sandbox: Sandbox) -> tuple[Any, str]:
    client = sandbox.client()
    return client, next(key for key in await sandbox.keys() if "}:x:buy" in key)


async def test_a_stored_result_means_nothing_under_another_name(sandbox: Sandbox, shop: Shop) -> None:
    """Somebody who may write to the server puts one value where another belongs."""
    async with sandbox.bus(cipher=CIPHER) as bus:
        await begun(sandbox, bus)
        client, key = await _side(sandbox)
        fields = dict(await client.hgetall(key))
        (step,) = [name for name in fields if name.startswith(b"s:")]
        (word,) = [name for name in fields if name.startswith(b"g:word")]
        await client.hset(key, step, fields[step][:8] + fields[word])
        await client.aclose()
        await bus.commands.signal("buy", "again", "go")
        async with bus.worker():
            with pytest.raises(CommandFailed):
                await bus.result("buy", Buy, timeout=10)
    assert shop.charged == 1


async def test_a_worker_with_another_key_ends_nothing_as_done(sandbox: Sandbox, shop: Shop) -> None:
    async with sandbox.bus(cipher=CIPHER) as bus:
        await begun(sandbox, bus)
        await bus.commands.signal("buy", "again", "go")
        async with sandbox.bus(cipher=ToyCipher(b"x" * 32)) as other, other.worker():
            with pytest.raises(Exception, match="decrypt") as found:
                await bus.result("buy", Buy, timeout=10)
        assert SECRET not in str(found.value)
    assert shop.charged == 1


async def test_a_worker_without_the_key_sends_what_undoes(sandbox: Sandbox, shop: Shop) -> None:
    """It cannot read the command, what undoes or what that returned. The purchase is known to it alone, and what undoes to the other one alone."""
    without, only = HandlerRegistry(), HandlerRegistry()

    @without.handles(Buy)
    async def buy(command: Buy, context: DurableContext) -> str:
        raise AssertionError

    @only.handles(Unbook)
    async def unbook(command: Unbook) -> None:
        shop.unbooked.append(command.card)

    async with sandbox.bus(cipher=CIPHER) as bus:
        await begun(sandbox, bus)
        await bus.commands.signal("buy", "again", "go")
        async with sandbox.bus(registry=without) as other, other.worker():
            letter = await until(lambda: anext(bus.dead_letters.list(), None))
            assert (letter.reason, letter.parked, shop.unbooked) == ("invalid", True, [])
            await bus.dead_letters.discard(letter.id)
            async with sandbox.bus(registry=only, cipher=CIPHER) as third, third.worker():
                await bus.wait_idle(20)
        assert not await bus.dead_letters.count()
    assert shop.unbooked == [SECRET]
