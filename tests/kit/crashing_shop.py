"""Handlers for the crash certificate: ten with a fault each, and as many that survive any crash. Faults are marked at their line."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    EntityState,
    HandlerRegistry,
    Reject,
    RetryPolicy,
)
from command_bus.testing import TestBus

registry = HandlerRegistry()
shop = CommandBus("redis://shop.invalid", registry=registry)


class Psp:
    """The outside: keeps what it has seen, and does nothing twice for one id."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []
        self.ids: set[str] = set()

    def charge(self, what: object, idem: str | None = None) -> None:
        if idem is not None:
            if idem in self.ids:
                return
            self.ids.add(idem)
        self.seen.append(("charge", what))

    async def refund(self, what: object, idem: str) -> None:
        await asyncio.sleep(0)
        self.charge(f"back {what}", idem)


psp = Psp()
books: dict[object, int] = {}
marks: set[object] = set()


def clear() -> None:
    psp.seen.clear()
    psp.ids.clear()
    books.clear()
    marks.clear()


# With a fault.


class ChargeFirst(Command[None], entity="order"):
    order: EntityId


@registry.handles(ChargeFirst)
async def charge_first(command: ChargeFirst) -> None:
    psp.charge(command.order)  # fault: repeated
    if command.order in books:
        return
    books[command.order] = 1


class AddToTotal(Command[None], entity="order"):
    order: EntityId


@registry.handles(AddToTotal)
async def add_to_total(command: AddToTotal) -> None:
    books[command.order] = books.get(command.order, 0) + 1
    marks.add(command.order)  # fault: state


class Place(Command[None], entity="order"):
    order: EntityId


class Bill(Command[None], entity="bill"):
    bill: EntityId


@registry.handles(Place)
async def place(command: Place) -> None:
    await shop.dispatch(Bill(bill=command.order))
    marks.add(command.order)


@registry.handles(Bill)
async def bill(command: Bill, context: CommandContext) -> None:
    psp.charge(command.bill, context.command_id)  # fault: repeated


class StepWithoutKey(Command[None], entity="order", durable=True):
    order: EntityId


async def pay(order: object) -> None:
    psp.charge(order)  # fault: repeated


@registry.handles(StepWithoutKey)
async def step_without_key(command: StepWithoutKey, context: DurableContext) -> None:
    await context.step("pay", pay, command.order)


async def mark(order: object) -> None:
    marks.add(order)


class OutsideOfSteps(Command[None], entity="order", durable=True):
    order: EntityId


@registry.handles(OutsideOfSteps)
async def outside_of_steps(command: OutsideOfSteps, context: DurableContext) -> None:
    psp.charge("mail")  # fault: repeated
    await context.step("note", mark, command.order)


class MarkFirst(Command[None], entity="order"):
    order: EntityId


@registry.handles(MarkFirst)
async def mark_first(command: MarkFirst) -> None:
    if command.order in marks:
        return
    marks.add(command.order)
    psp.charge(command.order)  # fault: lost


class InThread(Command[None], entity="order"):
    order: EntityId


@registry.handles(InThread)
def in_thread(command: InThread) -> None:
    psp.charge(command.order)  # fault: repeated
    marks.add(command.order)


class Gather(Command[None], entity="order"):
    order: EntityId


async def charge_part(part: str) -> None:
    await asyncio.sleep(0)
    psp.charge(part)  # fault: repeated
    marks.add(part)


@registry.handles(Gather)
async def gather(command: Gather) -> None:
    await asyncio.gather(charge_part("a"), charge_part("b"))


class Insert(Command[None], entity="row"):
    row: EntityId


@registry.handles_many(Insert, size=10, wait=1)
async def insert(commands: Sequence[Insert]) -> None:
    for each in commands:
        psp.charge(each.row)  # fault: repeated


class OneAttempt(Command[None], entity="order", retry=RetryPolicy(attempts=1)):
    order: EntityId


@registry.handles(OneAttempt)
async def one_attempt(command: OneAttempt, context: CommandContext) -> None:
    psp.charge(command.order, context.command_id)  # fault: lost


# Without one.


class Charge(Command[None], entity="order"):
    order: EntityId


@registry.handles(Charge)
async def charge(command: Charge, context: CommandContext) -> None:
    psp.charge(command.order, context.command_id)
    books[command.order] = 1


class Account(EntityState, entity="account"):
    total: int = 0


class Deposit(Command[int], entity="account"):
    account: EntityId


@registry.handles(Deposit)
async def deposit(command: Deposit, account: Account) -> int:
    account.total += 1
    return account.total


class PlaceWell(Command[None], entity="order"):
    order: EntityId


@registry.handles(PlaceWell)
async def place_well(command: PlaceWell, context: CommandContext) -> None:
    context.send(BillWell(bill=command.order))
    marks.add(command.order)


class BillWell(Command[None], entity="bill"):
    bill: EntityId


@registry.handles(BillWell)
async def bill_well(command: BillWell, context: CommandContext) -> None:
    psp.charge(command.bill, context.command_id)


class Steps(Command[str], entity="order", durable=True):
    order: EntityId


@registry.handles(Steps)
async def steps(command: Steps, context: DurableContext) -> str:
    async def paid() -> None:
        psp.charge(command.order, context.step_key)

    await context.step("pay", paid)
    await context.sleep(3600)
    await context.call(BillWell(bill=command.order))
    return await context.signal("packed", returns=str)


class Once(Command[None], entity="order", delivery="at_most_once"):
    order: EntityId


@registry.handles(Once)
async def once(command: Once) -> None:
    psp.charge(command.order)
    marks.add(command.order)


class ThreadWell(Command[None], entity="order"):
    order: EntityId


@registry.handles(ThreadWell)
def thread_well(command: ThreadWell, context: CommandContext) -> None:
    time.sleep(0.001)
    psp.charge(command.order, context.command_id)
    marks.add(command.order)


class GatherWell(Command[None], entity="order"):
    order: EntityId


@registry.handles(GatherWell)
async def gather_well(command: GatherWell, context: CommandContext) -> None:
    async with asyncio.TaskGroup() as group:
        for part in ("a", "b"):
            group.create_task(psp.refund(part, f"{context.command_id} {part}"))


class Undo(Command[None], entity="order", durable=True):
    order: EntityId


class Refund(Command[None], entity="bill"):
    bill: EntityId


@registry.handles(Undo)
async def undo(command: Undo, context: DurableContext) -> None:
    async def paid() -> None:
        psp.charge(command.order, context.step_key)

    context.compensate(Refund(bill=command.order))
    await context.step("pay", paid)
    raise Reject("sold out", code="sold_out")


@registry.handles(Refund)
async def refund(command: Refund, context: CommandContext) -> None:
    await psp.refund(command.bill, context.command_id)


class InsertWell(Command[None], entity="row"):
    row: EntityId


@registry.handles_many(InsertWell, size=10, wait=1)
async def insert_well(commands: Sequence[InsertWell], contexts: Sequence[CommandContext]) -> None:
    for each, context in zip(commands, contexts, strict=True):
        psp.charge(each.row, context.command_id)


class Transfer(Command[None], entity="account"):
    source: EntityId
    target: EntityId


@registry.handles(Transfer)
async def transfer(command: Transfer, context: CommandContext) -> None:
    for attempt in range(3):  # retries in place
        try:
            if attempt < 2:
                raise ConnectionError
            psp.charge(f"{command.source} to {command.target}", context.command_id)
        except ConnectionError:
            continue
        finally:
            books["tries"] = attempt


# Odd ones.


class TimedOut(Command[None], entity="order"):
    order: EntityId


@registry.handles(TimedOut)
async def timed_out(command: TimedOut) -> None:
    try:
        async with asyncio.timeout(0.005):
            await asyncio.sleep(10)
    except TimeoutError:
        books[command.order] = 1
    psp.charge(command.order)
    books[command.order] = 2


class Recursive(Command[None], entity="order"):
    order: EntityId


def deep(depth: int) -> int:
    return deep(depth + 1)


@registry.handles(Recursive)
async def recursive(command: Recursive) -> None:
    try:
        deep(0)
    except RecursionError:
        await asyncio.sleep(0)
    psp.charge(command.order)
    books[command.order] = 1


class Locked(Command[None], entity="order"):
    order: EntityId


@registry.handles(Locked)
async def locked(command: Locked) -> None:
    try:
        books[command.order] = 1
        books[command.order] = 2
    finally:
        psp.charge("unlocked")


class CatchesAll(Command[None], entity="order"):
    order: EntityId


@registry.handles(CatchesAll)
async def catches_all(command: CatchesAll) -> None:
    try:
        books[command.order] = 1
    except BaseException:
        psp.charge("unlocked")


class Cancelled(Command[None], entity="order"):
    order: EntityId


@registry.handles(Cancelled)
async def cancelled(command: Cancelled) -> None:
    try:
        await asyncio.sleep(0.003)
        books[command.order] = 1
    except asyncio.CancelledError:
        psp.charge("unlocked")
        raise


class Random(Command[None], entity="order"):
    order: EntityId


@registry.handles(Random)
async def by_chance(command: Random) -> None:
    psp.charge(random.random())


async def placed(bus: TestBus) -> None:
    async with shop:
        await bus.dispatch(Place(order="o-1"))
        await bus.run_until_idle()


async def packed(bus: TestBus) -> None:
    await bus.dispatch(Steps(order="o-1"), command_id="o-1")
    await bus.run_until_idle()
    await bus.bus.commands.signal("o-1", "packed", "yes")


async def rows(bus: TestBus) -> None:
    await bus.dispatch_batch([Insert(row=str(row)) for row in range(3)])


async def rows_well(bus: TestBus) -> None:
    await bus.dispatch_batch([InsertWell(row=str(row)) for row in range(3)])


async def transferred(bus: TestBus) -> None:
    await bus.dispatch(Transfer(source="a-1", target="a-2"))


async def deposited(bus: TestBus) -> None:
    for _ in range(2):
        await bus.dispatch(Deposit(account="a-1"))


async def total(bus: TestBus) -> object:
    return await bus.states.get(Account, "a-1")
