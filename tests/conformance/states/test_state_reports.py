"""Faults that states had: of versions, defaults, middleware, names, times, limits and bad values."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, Field

from command_bus import (
    BadState,
    Command,
    CommandContext,
    CommandFailed,
    EntityId,
    EntityState,
    HandlerRegistry,
    Middleware,
    RegistrationError,
    RetryPolicy,
    upcasts,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.states.test_states import Account, Balance, Close, Count, Deposit, Kept, overwrite, registry

pytestmark = pytest.mark.server


class Cents1(EntityState, entity="purse"):
    amount: int = 0


class Cents2(EntityState, entity="purse", version=2):
    amount: int = 0


@upcasts(Cents2, since=1)
def in_cents(fields: dict[str, Any]) -> dict[str, Any]:
    return {"amount": fields["amount"] * 100}


class Move(Command[int], entity="purse"):
    purse: EntityId
    amount: int


def moving(kind: Any) -> HandlerRegistry:
    own = HandlerRegistry()

    async def move(command: Move, state: Any) -> int:
        state.amount += command.amount
        return int(state.amount)

    move.__annotations__["state"] = kind
    own.handles(Move)(move)
    return own


async def test_a_state_of_a_new_version_is_written_though_its_bytes_are_those_of_the_old_one(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=moving(Cents1)) as old, old.worker():
        assert await old.call(Move(purse="p", amount=5)) == 5
    async with sandbox.bus(registry=moving(Cents2)) as new, new.worker():
        assert await new.call(Move(purse="p", amount=-495)) == 5
        assert await new.call(Move(purse="p", amount=0)) == 5


def test_a_default_of_another_type_is_refused_at_registration() -> None:
    for annotation, default in ((set[str], []), (int, "0"), (bytes, ""), (dict[str, int], None)):

        class Odd(EntityState, entity="purse"):
            fine: int = 0
            odd: annotation = default  # type: ignore[valid-type]

        with pytest.raises(RegistrationError, match=r"Odd\.odd: its default is not of its type"):
            moving(Odd)


class Again(Middleware):
    """Calls again in place, or answers for a handler that raised."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers

    async def handle(self, command: Any, context: CommandContext, proceed: Any) -> Any:
        try:
            return await proceed()
        except ConnectionError:
            return -1 if self.answers else await proceed()


@pytest.mark.parametrize("answers", [False, True])
async def test_what_a_failed_call_within_middleware_has_changed_does_not_count(sandbox: Sandbox, *, answers: bool) -> None:
    own, tries = HandlerRegistry(), list[int]()

    @own.handles(Move)
    async def move(command: Move, purse: Cents1) -> int:
        purse.amount += command.amount
        tries.append(purse.amount)
        if len(tries) == 1:
            raise ConnectionError("once")
        return purse.amount

    async with sandbox.bus(registry=own, middleware=[Again(answers=answers)]) as bus, bus.worker():
        assert await bus.call(Move(purse="p", amount=5)) == (-1 if answers else 5)
        assert await bus.states.get(Cents1, "p") == (None if answers else Cents1(amount=5))
        assert await bus.call(Move(purse="p", amount=1)) == (1 if answers else 6)


def with_amount() -> HandlerRegistry:
    own = HandlerRegistry()

    class Purse(EntityState, entity="purse"):
        amount: int = 0

    @own.handles(Move)
    async def move(command: Move, purse: Purse) -> int:
        return purse.amount + 1

    return own


def with_total() -> HandlerRegistry:
    own = HandlerRegistry()

    class Purse(EntityState, entity="purse"):
        total: int = 0

    @own.handles(Move)
    async def move(command: Move, purse: Purse) -> int:
        return purse.total + 2

    return own


async def test_a_name_means_the_class_beside_the_handler(sandbox: Sandbox) -> None:
    for number, made in enumerate((with_amount, with_total, with_amount)):
        async with sandbox.bus(registry=made(), namespace=f"{sandbox.namespace}-{number}") as bus, bus.worker():
            assert await bus.call(Move(purse="p", amount=1)) == (2 if made is with_total else 1)


async def test_a_default_is_not_shared_by_entities(sandbox: Sandbox) -> None:
    class Inner(BaseModel):
        items: list[int] = Field(default_factory=list[int])

    class Shared(EntityState, entity="purse"):
        inner: Inner = Inner()

    own = HandlerRegistry()

    @own.handles(Move)
    async def move(command: Move, state: Shared) -> int:
        state.inner.items.append(command.amount)
        if command.amount < 0:
            raise ValueError("no")
        return len(state.inner.items)

    async with sandbox.bus(registry=own) as bus, bus.worker():
        await bus.dispatch(Move(purse="a", amount=-1), retry=RetryPolicy(attempts=1))
        await bus.wait_idle(10)
        assert await bus.call(Move(purse="b", amount=1)) == 1
        assert await bus.call(Move(purse="c", amount=1)) == 1


def test_a_state_is_never_none() -> None:
    async def move(command: Move, purse: Cents1 | None = None) -> int:
        return 0 if purse is None else purse.amount

    with pytest.raises(RegistrationError, match="a state is never None"):
        HandlerRegistry().handles(Move)(move)


async def test_time_of_a_change_is_that_of_the_end_of_its_handler(sandbox: Sandbox) -> None:
    own = HandlerRegistry()

    @own.handles(Count)
    async def count(command: Count, kept: Kept) -> int:
        kept.count += 1
        await asyncio.sleep(1.2)
        return kept.count

    async with sandbox.bus(registry=own) as bus, bus.worker():
        assert await bus.call(Count(kept="k")) == 1
        assert await bus.states.get(Kept, "k") == Kept(count=1), "it is kept for 1 s from now on"


async def test_a_smaller_limit_holds_for_what_is_written_and_a_larger_one_than_that_of_payloads_too(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        await bus.states.put("a", Account(notes=["x" * 5_000]))
    async with sandbox.bus(registry=registry, max_state=1_000) as bus, bus.worker():
        assert await bus.call(Balance(account="a")) == 0
        with pytest.raises(CommandFailed, match="the setting max_state allows 1,000"):
            await bus.call(Deposit(account="a", amount=1))
        await bus.call(Close(account="a"))
    async with sandbox.bus(registry=registry, max_state=2_000_000, max_payload=100_000) as bus, bus.worker():
        await bus.states.put("b", Account(notes=["x" * 1_000_000]))
        assert await bus.call(Deposit(account="b", amount=1)) == 1
        found = await bus.states.get(Account, "b")
        assert found is not None
        assert len(found.notes) == 2


async def test_one_bad_state_keeps_no_other_from_being_listed_and_can_be_replaced(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        for name in ("a", "b", "c"):
            await bus.states.put(name, Account(balance=1))
        await overwrite(sandbox, "account:b", b"\xc1 odd")
        seen: list[str] = []

        async def read() -> None:
            async for each in bus.states.list(Account):
                seen.append(each.entity_id)  # noqa: PERF401 - those before the error count

        with pytest.raises(BadState, match="1 states cannot be read, all others were given: the state of account:b"):
            await read()
        assert sorted(seen) == ["a", "c"]
        with pytest.raises(BadState):
            await bus.states.put("b", Account(balance=2), expected=1)
        await bus.states.put("b", Account(balance=2))
        assert await bus.states.get(Account, "b") == Account(balance=2)


async def test_defaults_that_fail_leave_the_command_to_a_later_try(sandbox: Sandbox) -> None:
    made: list[int] = []

    def default() -> int:
        made.append(1)
        if len(made) in (2, 3):
            raise RuntimeError("the service of defaults is away")
        return 0

    class Fresh(EntityState, entity="purse"):
        amount: int = Field(default_factory=default)

    own = moving(Fresh)
    made.clear()
    async with sandbox.bus(registry=own, unknown_grace=30.0) as bus, bus.worker():
        for _ in range(3):
            await bus.dispatch(Move(purse="p", amount=0))
        assert await bus.call(Move(purse="p", amount=0), timeout=20) == 0


async def test_a_state_that_was_made_again_has_another_revision(sandbox: Sandbox) -> None:
    """A deleted state leaves no revision, and a clock of milliseconds gave a quick one that of the state before."""
    async with sandbox.bus() as bus:
        for number in range(20):
            before = await bus.states.put(f"a-{number}", Account(balance=1))
            assert await bus.states.delete(Account, f"a-{number}")
            assert await bus.states.put(f"a-{number}", Account(balance=2)) > before
